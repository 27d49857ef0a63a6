"""Which features give away a label or a group by themselves, and which say nothing at all.

From means and variances by label or group. An indicator (0 or 1) is judged by its shares, any
other feature as if it were normal on both sides. A combination of features that gives away what
none does alone is not found.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from isonomy.data.profile.statistics import Integers, Mask, Portrait, Reals

LEAK, PROXY = 0.99, 0.9  # the least chance of telling two rows apart
SURE_LABEL, SURE_GROUP = 0.995, 0.97  # the least share of one level among the rows of an indicator
_COMMON = 0.02  # the least share of rows with that value of the indicator
_FLAT = 1e-12  # of a variance beside the squared mean: constant to the six figures of a float


class Tell(NamedTuple):
    """A feature that gives a level away.

    `auc` is the chance that it orders a row of the level and a row of the rest rightly. For an
    indicator, `share` of the rows where it is `value` have the level.
    """

    column: int
    level: int
    auc: float
    share: float | None = None
    value: int = 1

    @property
    def strength(self) -> float:
        """How much it tells, for the order."""
        return max(self.auc, self.share or 0.0)


def of_labels(portrait: Portrait) -> list[Tell]:
    """Features that nearly give away a label, strongest first."""
    if portrait.shape.regression:
        return _of_target(portrait)
    width = len(portrait.shape.features)
    rows = portrait.rows.sum(0)
    first = portrait.first.sum(0)[:, :width]
    second = portrait.second.sum(0)[:, :width]
    return _tells(portrait, rows, first, second, LEAK, SURE_LABEL)


def of_groups(portrait: Portrait, attribute: int) -> list[Tell]:
    """Features that nearly give away a group of an attribute, strongest first."""
    rows = portrait.groups[attribute][:, 0].sum((0, 1))
    return _tells(portrait, rows, portrait.by_group[attribute], None, PROXY, SURE_GROUP)


def themselves(portrait: Portrait) -> Mask:
    """The features that are a group's indicator under another name."""
    out: Mask = np.zeros(len(portrait.shape.features), dtype=np.bool_)
    for attribute in range(len(portrait.groups)):
        out[[one.column for one in of_groups(portrait, attribute) if one.auc > 1 - 1e-9]] = True
    return out


def constant(portrait: Portrait, kind: Literal["indicator", "number"]) -> Integers:
    """The columns of features that are the same in all training rows."""
    width = len(portrait.shape.features)
    variance = portrait.second.sum((0, 1))[:width] / max(1, portrait.rows.sum())
    flat = variance <= _FLAT * np.square(portrait.centre[:width])
    indicator = portrait.between[:width] == 0
    out: Integers = np.flatnonzero(flat & (indicator if kind == "indicator" else ~indicator))
    return out


def _tells(
    portrait: Portrait,
    rows: Integers,
    first: Reals,
    second: Reals | None,
    least: float,
    sure: float,
) -> list[Tell]:
    """`first` [levels, features] are sums about the centre; `second` squares, if known by level."""
    width = len(portrait.shape.features)
    n = rows[:, None].astype(np.float64)
    rest = n.sum() - n
    squares = portrait.second.sum((0, 1))[:width]
    total = portrait.first.sum((0, 1))[:width]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, other = first / n, (total - first) / rest
        if second is None:  # one variance inside levels
            inside = (squares - (n * mean**2).sum(0)) / n.sum()
            spread = 2 * inside + 0 * mean
        else:
            spread = second / n - mean**2 + (squares - second) / rest - other**2
        spread = np.maximum(spread, 0)
        auc = special.ndtr(np.abs(mean - other) / np.sqrt(spread))
        auc = np.where(mean == other, 0.5, auc)
    indicator = portrait.between[:width] == 0
    auc = np.where(indicator, 0.5 + np.abs(mean - other) / 2, auc)
    flat = squares <= _FLAT * n.sum() * np.square(portrait.centre[:width])
    found: dict[int, Tell] = {}
    for level in np.flatnonzero((rows >= _COMMON * rows.sum()) & (rows < rows.sum())):
        for j in np.flatnonzero((auc[level] >= least) & ~flat):
            _keep(found, Tell(int(j), int(level), float(auc[level, j])))
    ones = first + n * portrait.centre[:width]  # rows of the level with the indicator at 1
    for value, at in ((1, ones), (0, n - ones)):
        with np.errstate(divide="ignore", invalid="ignore"):
            share = at / at.sum(0)
        there = indicator & ~flat & (at.sum(0) >= _COMMON * n.sum())
        common = 1 - (1 - sure) * 2  # a level that nearly all rows have is given away by nothing
        usual = np.maximum(rows / rows.sum(), 0)[:, None]
        for level, j in np.argwhere(there & (share >= sure) & (usual <= min(common, 0.9))):
            one = Tell(int(j), int(level), float(auc[level, j]), float(share[level, j]), value)
            _keep(found, one)
    return sorted(found.values(), key=lambda one: -one.strength)


def _keep(found: dict[int, Tell], one: Tell) -> None:
    if one.column not in found or one.strength > found[one.column].strength:
        found[one.column] = one


def _of_target(portrait: Portrait) -> list[Tell]:
    """Features whose correlation with the target leaves next to nothing open."""
    width = len(portrait.shape.features)
    n = float(portrait.rows.sum())
    x1, x2 = portrait.first.sum((0, 1))[:width], portrait.second.sum((0, 1))[:width]
    y1, y2 = portrait.target.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (portrait.cross.sum(0)[:width] - x1 * y1 / n) / np.sqrt(
            (x2 - x1**2 / n) * (y2 - y1**2 / n)
        )
    r = np.abs(np.nan_to_num(r))
    order = np.argsort(-r)
    return [Tell(int(j), 0, float(r[j])) for j in order if r[j] >= LEAK]
