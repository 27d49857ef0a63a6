"""Trade-off fronts: sets of points whose coordinates are all to be minimised.

A point may be (error, unfairness), or (loss of client 1, ..., loss of client K).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.core.examples import Attribute
from isonomy.core.notions import find_objectives, read_objective
from isonomy.errors import DataError
from isonomy.metrics import group
from isonomy.metrics.counts import Floats, ratio, tally_of, with_everyone


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
    everyone = tally_of(counts[..., :1, :, :], np.zeros((*counts.shape[:-3], 1, 1)))
    size = everyone.size[..., 0]
    out = []
    for name in names:
        objective = read_objective(name)
        if objective.notion is None:
            out.append(1 - ratio(everyone.hit.sum(-1)[..., 0], size))
            continue
        start = 1
        for each in attributes:
            if each.name == objective.attribute:
                break
            start += len(each.levels)
        at = with_everyone(slice(start, start + len(each.levels)))
        tally = tally_of(counts[..., at, :, :], np.zeros((*counts.shape[:-3], len(at), 1)))
        out.append(group.overall(tally, objective.notion))
    return np.stack(out, -1)


def volume(at: Floats) -> float:
    """The hypervolume of the points whose coordinates are all defined; NaN if there are none."""
    defined = at[~np.isnan(at).any(-1)]
    return hypervolume(defined) if len(defined) else math.nan


def within(at: Floats, limits: Mapping[int, float]) -> int | None:
    """The point with the smallest first coordinate among those within the limits.

    `limits` maps the number of a coordinate to its largest allowed value. Returns the number of the
    point, or None if no point is within the limits.

    >>> within(np.array([[0.1, 0.3], [0.2, 0.04], [0.3, 0.0]]), {1: 0.05})
    1
    """
    allowed = ~np.isnan(at).any(-1)
    for column, most in limits.items():
        allowed &= at[:, column] <= most
    if not allowed.any():
        return None
    return int(np.where(allowed, at[:, 0], np.inf).argmin())
