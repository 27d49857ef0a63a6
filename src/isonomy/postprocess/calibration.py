"""Beta calibration of scores from histograms, one map for each client and group.

Kull, Silva Filho and Flach (2017): the probability of class 1 at a score s is
sigmoid(a log s - b log(1 - s) + c), fitted by likelihood. A penalty pulls (a, b, c) towards
(1, 1, 0), which leaves scores as they are, so that a cell with few examples is hardly changed.
"""

from __future__ import annotations

import numpy as np

from isonomy.metrics.counts import Floats

PULL = 10.0  # strength of the penalty, as a normal prior of deviation .32 has
STEPS = 50
LEAST = 1e-3  # of a and b, so that the map rises


def calibrated(counts: Floats) -> Floats:
    """The probability of class 1 in each bin [..., bins], from counts [..., label, bin]."""
    bins = counts.shape[-1]
    score = centres(bins)
    feature = np.stack([np.log(score), -np.log1p(-score), np.ones(bins)])
    flat = counts.reshape(-1, 2, bins).astype(np.float64)
    identity = np.array([1.0, 1.0, 0.0])
    out = np.empty((len(flat), bins))
    for i, cell in enumerate(flat):
        used = np.flatnonzero(cell.sum(0))
        theta = _fitted(feature[:, used], cell[1, used], cell.sum(0)[used], identity)
        out[i] = _sigmoid(theta @ feature)
    return out.reshape(*counts.shape[:-2], bins)


def centres(bins: int) -> Floats:
    """The middle of each bin."""
    return (np.arange(bins) + 0.5) / bins


def _fitted(feature: Floats, yes: Floats, total: Floats, start: Floats) -> Floats:
    """The penalised maximum of the likelihood, by Newton's method with halved steps."""
    theta = start.copy()

    def cost(at: Floats) -> float:
        z = at @ feature
        return float((total * np.logaddexp(0, z) - yes * z).sum() + PULL / 2 * _square(at - start))

    now = cost(theta)
    for _ in range(STEPS):
        p = _sigmoid(theta @ feature)
        slope = feature @ (total * p - yes) + PULL * (theta - start)
        curve = (feature * (total * p * (1 - p))) @ feature.T + PULL * np.eye(3)
        step, rate = np.linalg.solve(curve, slope), 1.0
        while cost(theta - rate * step) > now and rate > 1e-8:
            rate /= 2
        theta = theta - rate * step
        before, now = now, cost(theta)
        if before - now < 1e-12 * (1 + abs(now)):
            break
    return np.array([max(theta[0], LEAST), max(theta[1], LEAST), theta[2]])


def _square(at: Floats) -> float:
    return float(at @ at)


def _sigmoid(z: Floats) -> Floats:
    found: Floats = 0.5 + 0.5 * np.tanh(z / 2)
    return found
