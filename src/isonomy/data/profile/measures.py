"""Measures of heterogeneity: of sizes, and of the shares of labels or groups.

The shares of a small client differ from the overall shares by chance alone. So each distance comes
with its expected value by chance, and Cramér's V is corrected for chance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from isonomy.data.profile.statistics import Reals

LEAST_EXPECTED = 5.0  # Cochran's rule for the chi-square distribution
Z95 = 1.959963984540054


class Distances(NamedTuple):
    """Each client's distance to all rows: total variation, Jensen-Shannon; and by chance."""

    variation: Reals
    shannon: Reals
    chance: Reals


class Association(NamedTuple):
    """Cramér's V, corrected for chance, and the p-value of the chi-square test."""

    v: float
    p: float


def gini(values: ArrayLike) -> float:
    """Return the Gini coefficient of sizes: 0 if all are equal, near 1 if one has everything.

    >>> gini([5, 5, 5]), round(gini([0, 0, 9]), 3)
    (0.0, 0.667)
    """
    at = np.sort(np.asarray(values, dtype=np.float64))
    n, total = len(at), at.sum()
    if not total:
        return 0.0
    return float(((2 * np.arange(1, n + 1) - n - 1) * at).sum() / (n * total))


def distances(counts: ArrayLike) -> Distances:
    """Return the distance of each client's shares of `counts` [K, levels] to the overall shares.

    Total variation is half the sum of the differences of shares: the share of rows that would
    have to change. The Jensen-Shannon distance is the square root of the divergence, to base 2.
    Both are between 0 and 1; they are NaN for a client without rows.

    >>> distances([[10, 0], [0, 10]]).variation.tolist()
    [0.5, 0.5]
    """
    at = np.asarray(counts, dtype=np.float64)
    sizes, whole = at.sum(1, keepdims=True), at.sum(0)
    p = whole / max(whole.sum(), 1)
    with np.errstate(invalid="ignore"):
        q = at / np.where(sizes > 0, sizes, np.nan)
    middle = (p + q) / 2
    entropy = (special.rel_entr(p, middle) + special.rel_entr(q, middle)).sum(1) / 2
    shannon = np.sqrt(np.maximum(entropy, 0) / np.log(2))
    return Distances(np.abs(q - p).sum(1) / 2, shannon, _by_chance(sizes[:, 0], p))


def _by_chance(sizes: Reals, p: Reals) -> Reals:
    """Return the expected total variation of clients whose rows are a random sample of all rows.

    This is De Moivre's mean deviation of a binomial count, reduced for a client that is itself a
    large part of all rows.
    """
    n, p = sizes[:, None], np.clip(p, 0, 1)[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.floor(n * p) + 1
        choose = -special.betaln(above + 1, n - above + 1) - np.log(n + 1)
        powers = special.xlogy(above, p) + special.xlogy(n - above + 1, 1 - p)
        mean = np.where((p <= 0) | (p >= 1), 0.0, 2 * above * np.exp(choose + powers))
        rest = np.sqrt(np.maximum(0, 1 - sizes / sizes.sum()))
        out: Reals = np.where(sizes > 0, mean.sum(1) / (2 * sizes) * rest, np.nan)
    return out


def association(counts: ArrayLike) -> Association:
    """Test whether the rows and columns of a table of counts are associated, and how strongly.

    V is that of Bergsma (2013), whose expectation without association is about 0 however small
    the clients are. The p-value is that of Pearson's chi-square test. If an expected count is below
    5, a gamma distribution with the exact mean and variance of the statistic is used.

    >>> v, p = association([[30, 10], [10, 30]])
    >>> round(v, 3), round(p, 6)
    (0.49, 8e-06)
    """
    at = np.asarray(counts, dtype=np.float64)
    at = at[at.sum(1) > 0][:, at.sum(0) > 0]
    r, c, n = len(at), at.shape[1], float(at.sum())
    if r < 2 or c < 2 or n < 5:
        return Association(0.0, 1.0)
    rows, columns = at.sum(1), at.sum(0)
    expected = np.outer(rows, columns) / n
    statistic = float(((at - expected) ** 2 / expected).sum())
    phi = max(0.0, statistic / n - (r - 1) * (c - 1) / (n - 1))
    narrow = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    v = float(np.sqrt(phi / narrow)) if narrow > 0 else 0.0
    if expected.min() >= LEAST_EXPECTED:
        p = float(special.chdtrc((r - 1) * (c - 1), statistic))
    else:
        mean, variance = _moments(rows, columns)
        p = float(gamma_tail(statistic, mean, variance)) if variance > 1e-9 else 1.0
    return Association(min(v, 1.0), p)


def _moments(rows: Reals, columns: Reals) -> tuple[float, float]:
    """Return mean and variance of Pearson's statistic given the margins (Haldane 1940).

    In the form of Lewis, Saunders and Westcott (1984).
    """
    n, r, c = rows.sum(), len(rows), len(columns)
    mean = n * (r - 1) * (c - 1) / (n - 1)
    v1, v2 = (r - 1) * (n - r) / (n - 1), (c - 1) * (n - c) / (n - 1)
    w1, w2 = (((n / m).sum() - len(m) ** 2) / (n - 2) for m in (rows, columns))
    variance = 2 * n / (n - 3) * (v1 - w1) * (v2 - w2) + n**2 / (n - 1) * w1 * w2
    return float(mean), float(variance)


def gamma_tail(value: Any, mean: Any, variance: Any) -> Any:
    """Return the probability that a gamma variable with this mean and variance is >= `value`.

    >>> round(float(gamma_tail(3.841459, 1.0, 2.0)), 4)  # chi-square with one degree of freedom
    0.05
    """
    shape = np.square(mean) / variance
    return special.gammaincc(shape, np.maximum(value, 0) * shape / mean)


def margin(rows: ArrayLike, rate: float = 0.5) -> Reals:
    """Return half the width of a 95 % interval of a rate estimated from so many rows, at most 1.

    >>> margin([100, 1000]).round(3).tolist()
    [0.098, 0.031]
    """
    at = np.asarray(rows, dtype=np.float64)
    with np.errstate(divide="ignore"):
        out: Reals = np.minimum(1.0, Z95 * np.sqrt(rate * (1 - rate) / at))
    return out


def chance_spread(rows: ArrayLike, rate: float) -> float:
    """Return the standard deviation of accuracies between clients by chance alone.

    `rows` is the number of evaluated rows of each client, `rate` the true accuracy of all.

    >>> round(chance_spread([100, 100], 0.5), 4)
    0.05
    """
    at = np.asarray(rows, dtype=np.float64)
    at = at[at > 0]
    return float(np.sqrt((rate * (1 - rate) / at).mean())) if len(at) else 0.0
