"""Fronts read from a run: the front of each client, and which of its models are offered.

A run's front is a table with one row per client (-1: all clients together) and preference:
`split`, `client`, `preference.0`, ..., the coordinates of the point, and for a method that learns a
front the counts that they were computed from (`count.NAME`, `count.label`).

A model is offered if no other dominates it, where constant predictions count as models too. With
two objectives the offered models form a chain along which more share of an objective means less of
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.metrics.counts import Floats
from isonomy.metrics.front import monotone, nondominated

Columns = Mapping[str, Sequence[Any]]
TOGETHER = -1
COUNT = "count."


@dataclass(frozen=True, eq=False)
class Part:
    """One front: preferences [R, m], points [R, c], and the counts of each coordinate.

    `counts` are [R, 1 + L, P, 2] by coordinate (see `isonomy.metrics.front.compared`), and `labels`
    the number of examples of each class; both are empty if the run did not store them.
    """

    preferences: Floats
    points: Floats
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    labels: tuple[int, ...] = ()
    names: tuple[str, ...] = ()  # of the coordinates

    @property
    def rows(self) -> int:
        """The number of examples that the front was measured on."""
        return sum(self.labels)


def coordinates(columns: Columns) -> tuple[str, ...]:
    """The names of a point's coordinates."""
    known = ("split", "client")
    return tuple(n for n in columns if n not in known and not n.startswith(("preference.", COUNT)))


def splits(columns: Columns) -> list[str]:
    """The splits on which fronts were measured, the evaluated one first."""
    return list(dict.fromkeys(str(s) for s in columns.get("split", ())))


def parts(columns: Columns, split: str | None = None) -> dict[int, Part]:
    """The fronts of a split by client; of the evaluated split by default."""
    if not columns:
        return {}
    wanted = split or splits(columns)[0]
    keep = np.array([s == wanted for s in columns["split"]])
    client = np.asarray(columns["client"])[keep]
    rays = [n for n in columns if n.startswith("preference.")]
    names = coordinates(columns)
    lam = np.array([columns[n] for n in rays], np.float64).reshape(len(rays), len(keep))[:, keep].T
    at = np.array([columns[n] for n in names], np.float64)[:, keep].T
    counts: dict[str, NDArray[np.int64]] = {}
    labels: NDArray[np.int64] | None = None
    if f"{COUNT}label" in columns:
        labels = np.array(columns[f"{COUNT}label"], np.int64)[keep]
        classes = labels.shape[1]
        for name in names:
            flat = np.array(columns[COUNT + name], np.int64)[keep]
            positive = 1 if classes == 2 or name == "error" else classes
            counts[name] = flat.reshape(len(flat), -1, positive, 2)
    out = {}
    for k in np.unique(client):
        own = client == k
        shares = () if labels is None else tuple(int(v) for v in labels[own][0])
        out[int(k)] = Part(lam[own], at[own], {n: v[own] for n, v in counts.items()}, shares, names)
    return out


def best(part: Part) -> Part:
    """The points that no other point dominates, sorted by their coordinates."""
    known = ~np.isnan(part.points).any(1)
    lam, at = part.preferences[known], part.points[known]
    front = nondominated(at)
    lam, at = lam[front], at[front]
    order = np.lexsort(at.T[::-1])
    return Part(lam[order], at[order])


# --- what is offered -------------------------------------------------------------------------


def constant_point(part: Part) -> tuple[float, ...] | None:
    """The point of the best constant prediction: the most frequent class, without any gap."""
    if not part.rows:
        return None
    error = 1 - max(part.labels) / part.rows
    return tuple(error if name == "error" else 0.0 for name in part.names)


def undominated(part: Part) -> NDArray[np.bool_]:
    """Which preferences no other preference and no constant prediction dominates, [R]."""
    known = ~np.isnan(part.points).any(1)
    constant = constant_point(part)
    at = part.points[known] if constant is None else np.vstack([part.points[known], constant])
    kept = {tuple(point) for point in at[nondominated(at)]}
    return np.array([tuple(point) in kept for point in part.points], np.bool_)


def offered(part: Part) -> NDArray[np.intp]:
    """The preferences to choose from: undominated and, with two objectives, monotone."""
    free = np.flatnonzero(undominated(part))
    if part.preferences.shape[1] != 2 or part.points.shape[1] != 2 or not len(free):
        return np.asarray(free, np.intp)
    chain = monotone(part.preferences[free, 0], part.points[free])
    return np.asarray(free[chain], np.intp)
