"""Estimates with their sampling errors: means by client and label, differences, slopes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isonomy.data.profile.statistics import Integers, Mask, Reals

LEAST_ROWS = 10  # of a class at a client, so that its mean is compared
TINY = 1e-6


@dataclass(frozen=True)
class Cells:
    """Means by client and label, and what determines their sampling errors.

    `rows` [K, L]; `mean` and `variance` (of one row) [K, L, D]; `skew` and `excess` [L, D] of one
    row; `unit` [D], the standard deviation within labels, over all clients.
    """

    rows: Reals
    mean: Reals
    variance: Reals
    skew: Reals
    excess: Reals
    unit: Reals


@dataclass(frozen=True)
class Estimates:
    """One number per client and column [K, D], its sampling variance, third and fourth cumulant."""

    value: Reals
    variance: Reals
    third: Reals
    fourth: Reals


def cells(rows: Integers, first: Reals, second: Reals, third: Reals, fourth: Reals) -> Cells:
    """Compute means and variances by client and label from sums of powers."""
    n = rows.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n[..., None] > 0, first / n[..., None], 0.0)
        squares = np.maximum(second - first * mean, 0.0)  # about the cell's own mean
        freedom = np.maximum(n - 1, 0).sum(0)[:, None]
        within = np.where(freedom > 0, squares.sum(0) / freedom, 0.0)
        total = second.sum((0, 1)) / max(float(n.sum()), 1.0)
        by_label = second.sum(0) - np.square(first.sum(0)) / np.maximum(n.sum(0), 1)[:, None]
        unit = np.sqrt(np.maximum(by_label.sum(0) / max(float(n.sum()), 1.0), TINY**2 * total))
        skew, excess = _shape_of(n.sum(0)[:, None], first.sum(0), second.sum(0), third, fourth)
        within = np.maximum(within, TINY**2 * total)
        # a client whose rows vary clearly more than others gets its own variance
        own = squares / np.maximum(n - 1, 1)[..., None]
        clearly = 1 + 3 * np.sqrt((excess + 2) / np.maximum(n, 1)[..., None])
        variance = np.where((own > within * clearly) & (n[..., None] >= 2), own, within)
    return Cells(n, mean, variance, skew, excess, unit)


def _shape_of(
    n: Reals, first: Reals, second: Reals, third: Reals, fourth: Reals
) -> tuple[Reals, Reals]:
    """Return the skewness and excess kurtosis of a row from sums of powers of x - centre."""
    n = np.maximum(n, 1)
    m, s2, s3, s4 = first / n, second / n, third / n, fourth / n
    variance = s2 - m**2
    flat = variance <= np.square(TINY) * s2
    safe = np.where(flat, 1.0, variance)
    skew = (s3 - 3 * m * s2 + 2 * m**3) / safe**1.5
    excess = (s4 - 4 * m * s3 + 6 * m**2 * s2 - 3 * m**4) / safe**2 - 3
    return np.where(flat, 0.0, skew), np.where(flat, 0.0, np.maximum(excess, -2.0))


def has_enough(rows: Reals, labels: tuple[int, ...]) -> Mask:
    """Return which clients [K] have enough rows of all these labels."""
    out: Mask = np.asarray((rows[:, list(labels)] >= LEAST_ROWS).all(1))
    return out


def _mean_of(at: Cells, label: int) -> Estimates:
    """Return the means of one label, with the cumulants of their sampling errors."""
    n = np.maximum(at.rows[:, label], 1)[:, None]
    variance = at.variance[:, label]
    third = at.skew[label] * variance**1.5 / n**2
    fourth = at.excess[label] * variance**2 / n**3
    return Estimates(at.mean[:, label], variance / n, third, fourth)


def contrasts(at: Cells, pair: tuple[int, int]) -> tuple[Estimates, Reals, Mask]:
    """Return each client's difference between two class means, and its weight."""
    low, high = (_mean_of(at, label) for label in pair)
    out = Estimates(
        high.value - low.value,
        high.variance + low.variance,
        high.third - low.third,
        high.fourth + low.fourth,
    )
    enough = has_enough(at.rows, pair)
    a, b = (at.rows[:, label] for label in pair)
    return out, np.where(enough, a * b / np.maximum(a + b, 1), 0.0), enough


def offsets(at: Cells) -> tuple[Estimates, Reals, Mask]:
    """Return each client's mean distance to the overall class means, over the classes it has.

    Overall class means are subtracted first, so that clients with different labels are comparable.
    """
    n = at.rows[..., None]
    whole = (n * at.mean).sum(0) / np.maximum(n.sum(0), 1)
    held = at.rows >= LEAST_ROWS
    share = held / np.maximum(held.sum(1, keepdims=True), 1)
    value, variance, third, fourth = (np.zeros(at.mean[:, 0].shape) for _ in range(4))
    for label in range(at.rows.shape[1]):
        one, weight = _mean_of(at, label), share[:, [label]]
        value += weight * (one.value - whole[label])
        variance += weight**2 * one.variance
        third += weight**3 * one.third
        fourth += weight**4 * one.fourth
    enough: Mask = np.asarray(held.any(1))
    # all classes count equally, so few rows of one class reduce the weight of the client
    with np.errstate(divide="ignore"):
        weight = np.where(enough, 1 / (share**2 / np.maximum(at.rows, 1)).sum(1), 0.0)
    return Estimates(value, variance, third, fourth), weight, enough


def slope(xy: Reals, xx: Reals, yy: Reals, n: Reals, enough: Mask) -> tuple[Estimates, Reals]:
    """Return the slopes of y on x [K, D] from sums of squares and products, and their weights."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(xx > 0, xy / xx, 0.0)
        squares = np.maximum(yy - value * xy, 0.0)
        freedom = np.maximum(n - 2, 1)[:, None]
        within = squares[enough].sum(0) / freedom[enough].sum()
        own = squares / freedom
        clearly = 1 + 3 * np.sqrt(2 / freedom)
        variance = np.maximum(np.where(own > within * clearly, own, within), TINY**2)
        none = np.zeros(value.shape)
        known = np.where(xx > 0, variance / xx, np.inf)
    return Estimates(value, known, none, none), np.where(enough[:, None], xx, 0.0)
