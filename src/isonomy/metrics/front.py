"""Trade-off fronts: sets of points whose coordinates are all to be minimised.

A point may be (error, unfairness), or (loss of client 1, ..., loss of client K).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.core.examples import Attribute
from isonomy.core.notions import find_objectives, read_objective
from isonomy.errors import DataError
from isonomy.metrics import group
from isonomy.metrics.counts import Floats, Tally, ratio, tally_of, with_everyone


def hypervolume(points: ArrayLike, reference: ArrayLike | None = None) -> float:
    """The volume that the points dominate, up to the reference point; larger is better.

    All coordinates are minimised. The reference defaults to (1, ..., 1); a point that is not below
    it in every coordinate adds nothing. Without points the volume is 0.

    >>> hypervolume([[0.25, 0.5], [0.5, 0.25]])
    0.5
    """
    at = _points(points)
    if at is None:
        return 0.0
    ends = np.ones(at.shape[1]) if reference is None else np.asarray(reference, np.float64)
    if ends.shape != at.shape[1:] or not np.isfinite(ends).all():
        raise DataError(
            f"reference point {ends.tolist()}: give {at.shape[1]} finite numbers, one for each "
            "coordinate of the points."
        )
    return float(moocore.hypervolume(at, ref=ends))


def nondominated(points: ArrayLike) -> NDArray[np.bool_]:
    """Which points form the front, as booleans [n].

    A point is on the front if no other is at most as large everywhere and smaller somewhere.
    Of equal points only the first is kept.

    >>> nondominated([[0.1, 0.9], [0.5, 0.5], [0.6, 0.5]]).tolist()
    [True, True, False]
    """
    at = _points(points)
    if at is None:
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(moocore.is_nondominated(at), dtype=np.bool_)


def _points(points: ArrayLike) -> Floats | None:
    """The points as [n, d], None when there are none."""
    at = np.asarray(points, np.float64)
    if at.size == 0:
        return None
    if at.ndim != 2 or at.shape[1] < 2:
        raise DataError(
            f"points of shape {at.shape}: give [points, coordinates], at least two coordinates."
        )
    # moocore would treat a NaN coordinate as some number, without an error.
    if np.isnan(at).any():
        row = int(np.isnan(at).any(1).argmax())
        raise DataError(
            f"point {row} of the front, {at[row].tolist()}, has a coordinate that is not a "
            "number; remove the point."
        )
    return at


def coordinates(names: Sequence[str], attributes: Sequence[Attribute]) -> tuple[str, ...]:
    """The coordinates' full names: `dp` without an attribute refers to the first attribute.

    Raises ConfigError for an unknown notion or attribute.
    """
    found = find_objectives(names, [each.name for each in attributes])
    return tuple(objective.name for objective in found)


def points(
    counts: NDArray[np.int64], attributes: Sequence[Attribute], names: Sequence[str]
) -> Floats:
    """The points [..., coordinates] of counts [..., 1 + G, C, C]; NaN where undefined."""
    everyone = _everyone(counts)
    size = everyone.size[..., 0]
    out = []
    for name in names:
        objective = read_objective(name)
        if objective.notion is None:
            out.append(1 - ratio(everyone.hit.sum(-1)[..., 0], size))
            continue
        tally = _groups(counts, attributes, objective.attribute)
        out.append(group.overall(tally, objective.notion))
    return np.stack(out, -1)


def compared(
    counts: NDArray[np.int64], attributes: Sequence[Attribute], name: str
) -> NDArray[np.int64]:
    """The counts [..., 1 + L, P, 2] that a coordinate is computed from.

    They are numerators and denominators of the rates of everyone and of L groups, for P positive
    classes; those of the error are the wrong predictions among all, with L = 0 and P = 1.
    """
    objective, everyone = read_objective(name), _everyone(counts)
    if objective.notion is None:
        size = everyone.size
        wrong = size - everyone.hit.sum(-1)
        return np.stack([wrong, size], -1)[..., None, :].astype(np.int64)
    tally = _groups(counts, attributes, objective.attribute)
    return np.stack(group.rate_counts(tally, objective.notion.label), -1).astype(np.int64)


def _everyone(counts: NDArray[np.int64]) -> Tally:
    return tally_of(counts[..., :1, :, :], np.zeros((*counts.shape[:-3], 1, 1)))


def _groups(counts: NDArray[np.int64], attributes: Sequence[Attribute], attribute: str) -> Tally:
    """The tally of everyone and of the groups of an attribute."""
    start = 1
    for each in attributes:
        if each.name == attribute:
            break
        start += len(each.levels)
    at = with_everyone(slice(start, start + len(each.levels)))
    return tally_of(counts[..., at, :, :], np.zeros((*counts.shape[:-3], len(at), 1)))


def volume(at: Floats) -> float:
    """The hypervolume of the points whose coordinates are all defined; NaN if there are none."""
    defined = at[~np.isnan(at).any(-1)]
    return hypervolume(defined) if len(defined) else math.nan


def monotone(share: Floats, at: Floats) -> NDArray[np.intp]:
    """The chain of points along which more share of the first coordinate means less of it.

    `share` [n] is that of the first coordinate, `at` [n, 2] are points none of which dominates
    another. Of all such chains, it is the one with the largest hypervolume below (1, 1), and of
    these the longest. Returns the numbers of its points, by share.

    >>> share = np.array([0.1, 0.2, 0.3, 0.4])
    >>> at = np.array([[0.5, 0.1], [0.2, 0.4], [0.4, 0.2], [0.1, 0.6]])
    >>> monotone(share, at).tolist()
    [0, 1, 3]
    """
    order = np.argsort(share, kind="stable")
    error, gap = at[order].T
    longer = 1e-9  # for each point, so that points that add no volume are kept
    best, before = (1 - error) * (1 - gap) + longer, np.full(len(order), -1)
    for i in range(1, len(order)):
        found = best[:i] + (error[:i] - error[i]) * (1 - gap[i]) + longer
        found = np.where(error[:i] >= error[i], found, -np.inf)
        j = int(found.argmax())
        if found[j] > best[i]:
            best[i], before[i] = found[j], j
    chain: list[int] = []
    i = int(best.argmax()) if len(order) else -1
    while i >= 0:
        chain.append(i)
        i = int(before[i])
    return np.asarray(order[chain[::-1]], np.intp)
