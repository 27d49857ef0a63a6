"""Trade-off fronts: sets of points where every coordinate is to be small.

A point may be (error, unfairness), or (loss of client 1, ..., loss of client K).
"""

from __future__ import annotations

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.errors import DataError
from isonomy.metrics.counts import Floats


def hypervolume(points: ArrayLike, reference: ArrayLike | None = None) -> float:
    """The volume that the points dominate, up to the reference point; larger is better.

    All coordinates are minimised. The reference is (1, ..., 1) unless given; a point that is not
    below it in every coordinate adds nothing. No points: 0.

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
    """Which points form the front: no other is as small everywhere and smaller somewhere.

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
        raise DataError(f"points of shape {at.shape}: give [points, coordinates], at least two.")
    # moocore would quietly count a NaN coordinate as some number.
    if np.isnan(at).any():
        row = int(np.isnan(at).any(1).argmax())
        raise DataError(f"point {row} of the front, {at[row].tolist()}, is not a number; drop it.")
    return at
