"""Confidence bounds for errors and gaps, and the choice among many models with such bounds.

What is bounded is counted on examples: `counts` [..., 1 + L, P, 2] are numerators and denominators
of the rates of everyone and of L groups, for P positive classes; the error has L = 0. The distance
of a group's rate from everyone's is (1 - w) |p - q|, with w the group's share of the examples, p
its rate and q the rate of all others. Limits of p - q combine the exact (Clopper-Pearson) limits of
p and q by the method of variance estimates recovery (Zou and Donner, 2008):

    upper = d + sqrt((p_upper - p)^2 + (q - q_lower)^2),   d = p - q

The combination is approximate, and for small alpha it would miss up to 1.6 times too often, so the
exact limits are those at half of alpha; a test enumerates all outcomes for alpha from .0005.
The largest distance is attained by one group, so the largest of the groups' upper limits, each at
the same level, bounds it at that level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.metrics.counts import Floats, ratio

LEVEL = 0.95
STARTS = 20  # models at which the test of many models starts
FINEST = 5e-4  # the smallest alpha that is used
MOST_STARTS = 100  # the largest number of them, so that each has an alpha of `FINEST`
MOST_TIMES = 1e6  # how many times as many examples are considered
STEPS = 12  # halvings of the logarithm of a p-value


def value(counts: ArrayLike) -> Floats:
    """The measured error, or the largest distance of a group's rate from everyone's."""
    at = np.asarray(counts, np.float64)
    rate = ratio(at[..., 0], at[..., 1])
    if at.shape[-3] == 1:
        return np.asarray(rate[..., 0, 0])
    gap = np.abs(rate[..., 1:, :] - rate[..., :1, :])
    return np.asarray(np.where(at[..., 1:, :, 1] > 0, gap, 0.0).max((-1, -2)))


def upper(counts: ArrayLike, alpha: ArrayLike) -> Floats:
    """A limit that the true value exceeds with probability `alpha` at most.

    A group without examples is left out, as in the measured value.
    """
    at = np.asarray(counts, np.float64)
    if at.shape[-3] == 1:
        return exact(at[..., 0, 0, 0], at[..., 0, 0, 1], alpha)[1]
    _, high = _gaps(at, alpha)
    return np.asarray(high.max((-1, -2), initial=0.0))


def interval(counts: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """The ends of a confidence interval for the value of one model."""
    at, alpha = np.asarray(counts, np.float64), (1 - level) / 2
    if at.shape[-3] == 1:
        low, high = exact(at[0, 0, 0], at[0, 0, 1], alpha)
        return float(low), float(high)
    # two groups with one positive class have a single difference; else any of several may miss
    pairs = (at.shape[-3] - 1) * at.shape[-2]
    low, _ = _gaps(at, alpha / (1 if pairs <= 2 else pairs))
    return float(low.max(initial=0.0)), float(upper(at, alpha))


def _gaps(at: Floats, alpha: ArrayLike) -> tuple[Floats, Floats]:
    """Limits [..., L, P] of each group's distance from everyone's rate; 0 for an empty group."""
    level = np.asarray(alpha, np.float64)
    level = level.reshape((*level.shape, 1, 1)) if level.ndim else level
    mine, rest = at[..., 1:, :, :], at[..., :1, :, :] - at[..., 1:, :, :]
    known = (mine[..., 1] > 0) & (rest[..., 1] > 0)
    limits = difference_limits(mine[..., 0], mine[..., 1], rest[..., 0], rest[..., 1], level)
    below, above = (np.where(known, each, 0.0) for each in limits)
    others = 1 - ratio(mine[..., 1], np.broadcast_to(at[..., :1, :, 1], mine.shape[:-1]))
    others = np.where(known, others, 0.0)
    least = np.maximum(np.maximum(below, -above), 0.0)
    return others * least, others * np.maximum(np.maximum(above, -below), 0.0)


def difference_limits(
    count: Floats, size: Floats, count2: Floats, size2: Floats, alpha: ArrayLike
) -> tuple[Floats, Floats]:
    """Limits of a difference of two proportions, each missed with probability `alpha` at most.

    NaN where one of the two has no examples.
    """
    level = np.asarray(alpha, np.float64) / 2
    p, q = ratio(count, size), ratio(count2, size2)
    p_low, p_high = exact(count, size, level)
    q_low, q_high = exact(count2, size2, level)
    with np.errstate(invalid="ignore"):
        low = (p - q - np.hypot(p - p_low, q_high - q)).clip(min=-1)
        high = (p - q + np.hypot(p_high - p, q - q_low)).clip(max=1)
    return np.asarray(low), np.asarray(high)


def exact(count: Floats, size: Floats, alpha: ArrayLike) -> tuple[Floats, Floats]:
    """Clopper-Pearson limits of a proportion, each missed with probability `alpha` at most."""
    from scipy.special import betainccinv, betaincinv  # slow to import

    k, n = np.asarray(count, np.float64), np.asarray(size, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.where(k > 0, betaincinv(np.maximum(k, 1e-9), n - k + 1, alpha), 0.0)
        high = np.where(k < n, betainccinv(k + 1, np.maximum(n - k, 1e-9), alpha), 1.0)
    return np.asarray(low), np.asarray(high)


def times_needed(enough: Callable[[float], bool], most: float = MOST_TIMES) -> float:
    """How many times as many examples are enough, to 1 %; infinity if it is above `most`."""
    low, high = 1.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return math.inf
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class Limit(NamedTuple):
    """The counts of a coordinate for each of R models, [R, 1 + L, P, 2], and its largest value."""

    counts: NDArray[np.int64]
    most: float


def levels_needed(limits: Sequence[Limit]) -> Floats:
    """The least alpha [R] at which each model is within all limits: its p-value.

    A model that is not within its limits has a p-value of at most alpha with probability alpha.
    It is 1 if a measured value is above its limit, and not below `FINEST`.
    """
    count = len(limits[0].counts)

    def enough(alpha: Floats) -> NDArray[np.bool_]:
        inside = np.ones(count, np.bool_)
        for one in limits:
            inside &= upper(one.counts, alpha) <= one.most
        return inside

    low, high = np.full(count, np.log(FINEST)), np.full(count, np.log(0.5))
    possible = enough(np.exp(high))
    for _ in range(STEPS):
        middle = (low + high) / 2
        inside = enough(np.exp(middle))
        low, high = np.where(inside, low, middle), np.where(inside, middle, high)
    return np.asarray(np.where(possible, np.exp(high), 1.0))


def within_limits(needed: Floats, alpha: float, starts: int = STARTS) -> dict[int, float]:
    """Models that are shown to be within their limits, and the error probability each was given.

    `needed` are the models' p-values. With probability 1 - `alpha`, all models returned are within
    their limits, although many were tried. Models are in an order that was fixed before the data
    were seen, so that neighbours are similar. `alpha` is divided between evenly spaced starting
    models; a model that passes hands its part to its two neighbours, half to each (the graphical
    procedure of Bretz et al., 2009), so that a run of passing models is followed to both ends.

    Of a run between models l and r, which did not pass, a start at s has handed (r - s) / (r - l)
    of its part to l and the rest to r, as in a walk of equal steps; beyond the first or last model,
    all of it goes to the other end.
    """
    count = len(needed)
    first = sorted({round(at) for at in np.linspace(0, count - 1, min(starts, count))})
    part = alpha / len(first)
    found = {s: part for s in first if max(needed[s], FINEST) <= part}
    runs = [_Run(s - 1, s + 1, (s,)) for s in found]
    while True:
        runs = _joined(runs)
        given: dict[int, float] = {}
        for run in runs:
            for model, own in run.handed(part, count):
                given[model] = given.get(model, part if model in first else 0.0) + own
        passed = {m: own for m, own in given.items() if max(needed[m], FINEST) <= own}
        if not passed:
            return found
        found |= passed
        runs = [
            _Run(run.left - (run.left in passed), run.right + (run.right in passed), run.starts)
            for run in runs
        ]


class _Run(NamedTuple):
    """Models between `left` and `right` that passed, and the starts among them."""

    left: int
    right: int
    starts: tuple[int, ...]

    def handed(self, part: float, count: int) -> list[tuple[int, float]]:
        """What the starts have handed to the models at both ends."""
        to_left = sum((self.right - s) / (self.right - self.left) for s in self.starts)
        if self.right >= count:
            to_left = float(len(self.starts))
        if self.left < 0:
            to_left = 0.0
        to_right = len(self.starts) - to_left
        both = ((self.left, part * to_left), (self.right, part * to_right))
        return [(model, own) for model, own in both if 0 <= model < count]


def _joined(runs: Sequence[_Run]) -> list[_Run]:
    """Runs that have met are one run."""
    out: list[_Run] = []
    for run in runs:
        if out and out[-1].right > run.left:
            out[-1] = _Run(out[-1].left, run.right, out[-1].starts + run.starts)
        else:
            out.append(run)
    return out
