"""Features that reveal a label or a group on their own, and features that are constant.

They are found from means and variances by label or group. An indicator (0 or 1) is judged by its
shares, any other feature as if it were normally distributed. A combination of features that
reveals what no single feature does is not found.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from isonomy.data.profile.statistics import ClientStatistics, Integers, Mask, Reals

LEAK, PROXY = 0.99, 0.9  # smallest AUC
SURE_LABEL, SURE_GROUP = 0.995, 0.97  # smallest share of one level among the rows of an indicator
_COMMON = 0.02  # smallest share of rows with that value of the indicator
_FLAT = 1e-12  # of a variance relative to the squared mean: constant to six digits


class Leak(NamedTuple):
    """A feature that reveals a level.

    `auc` is the probability that it ranks a row of the level and another row correctly. For an
    indicator, `share` is the share of the level among the rows in which it is `value`.
    """

    column: int
    level: int
    auc: float
    share: float | None = None
    value: int = 1

    @property
    def strength(self) -> float:
        """The strength by which leaks are sorted."""
        return max(self.auc, self.share or 0.0)


def of_labels(statistics: ClientStatistics) -> list[Leak]:
    """Return the features that almost determine a label, strongest first."""
    if statistics.shape.regression:
        return _of_target(statistics)
    width = len(statistics.shape.features)
    rows = statistics.rows.sum(0)
    first = statistics.first.sum(0)[:, :width]
    second = statistics.second.sum(0)[:, :width]
    return _leaks(statistics, rows, first, second, LEAK, SURE_LABEL)


def of_groups(statistics: ClientStatistics, attribute: int) -> list[Leak]:
    """Return the features that almost determine a group of an attribute, strongest first."""
    rows = statistics.groups[attribute][:, 0].sum((0, 1))
    return _leaks(statistics, rows, statistics.by_group[attribute], None, PROXY, SURE_GROUP)


def group_copies(statistics: ClientStatistics) -> Mask:
    """Return which features are the indicator of a group under another name."""
    out: Mask = np.zeros(len(statistics.shape.features), dtype=np.bool_)
    for attribute in range(len(statistics.groups)):
        out[[one.column for one in of_groups(statistics, attribute) if one.auc > 1 - 1e-9]] = True
    return out


def constant(statistics: ClientStatistics, kind: Literal["indicator", "number"]) -> Integers:
    """Return the columns of features that are the same in all training rows."""
    width = len(statistics.shape.features)
    variance = statistics.second.sum((0, 1))[:width] / max(1, statistics.rows.sum())
    flat = variance <= _FLAT * np.square(statistics.centre[:width])
    indicator = statistics.between[:width] == 0
    out: Integers = np.flatnonzero(flat & (indicator if kind == "indicator" else ~indicator))
    return out


def _leaks(
    statistics: ClientStatistics,
    rows: Integers,
    first: Reals,
    second: Reals | None,
    least: float,
    sure: float,
) -> list[Leak]:
    """`first` [levels, features]: sums of x - centre; `second`: of squares, if known by level."""
    width = len(statistics.shape.features)
    n = rows[:, None].astype(np.float64)
    rest = n.sum() - n
    squares = statistics.second.sum((0, 1))[:width]
    total = statistics.first.sum((0, 1))[:width]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, other = first / n, (total - first) / rest
        if second is None:  # one variance for all levels
            inside = (squares - (n * mean**2).sum(0)) / n.sum()
            spread = 2 * inside + 0 * mean
        else:
            spread = second / n - mean**2 + (squares - second) / rest - other**2
        spread = np.maximum(spread, 0)
        auc = special.ndtr(np.abs(mean - other) / np.sqrt(spread))
        auc = np.where(mean == other, 0.5, auc)
    indicator = statistics.between[:width] == 0
    auc = np.where(indicator, 0.5 + np.abs(mean - other) / 2, auc)
    flat = squares <= _FLAT * n.sum() * np.square(statistics.centre[:width])
    found: dict[int, Leak] = {}
    for level in np.flatnonzero((rows >= _COMMON * rows.sum()) & (rows < rows.sum())):
        for j in np.flatnonzero((auc[level] >= least) & ~flat):
            _keep(found, Leak(int(j), int(level), float(auc[level, j])))
    ones = first + n * statistics.centre[:width]  # rows of the level with the indicator at 1
    for value, at in ((1, ones), (0, n - ones)):
        with np.errstate(divide="ignore", invalid="ignore"):
            share = at / at.sum(0)
        there = indicator & ~flat & (at.sum(0) >= _COMMON * n.sum())
        common = 1 - (1 - sure) * 2  # a level that nearly all rows have is not revealed
        usual = np.maximum(rows / rows.sum(), 0)[:, None]
        for level, j in np.argwhere(there & (share >= sure) & (usual <= min(common, 0.9))):
            one = Leak(int(j), int(level), float(auc[level, j]), float(share[level, j]), value)
            _keep(found, one)
    return sorted(found.values(), key=lambda one: -one.strength)


def _keep(found: dict[int, Leak], one: Leak) -> None:
    if one.column not in found or one.strength > found[one.column].strength:
        found[one.column] = one


def _of_target(statistics: ClientStatistics) -> list[Leak]:
    """Return the features that almost determine the target, by their correlation."""
    width = len(statistics.shape.features)
    n = float(statistics.rows.sum())
    x1, x2 = statistics.first.sum((0, 1))[:width], statistics.second.sum((0, 1))[:width]
    y1, y2 = statistics.target.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (statistics.cross.sum(0)[:width] - x1 * y1 / n) / np.sqrt(
            (x2 - x1**2 / n) * (y2 - y1**2 / n)
        )
    r = np.abs(np.nan_to_num(r))
    order = np.argsort(-r)
    return [Leak(int(j), 0, float(r[j])) for j in order if r[j] >= LEAK]
