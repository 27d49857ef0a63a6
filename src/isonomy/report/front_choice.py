"""Fronts read from a run: the fronts of each client, their best points, the choice of a point.

A run's front is a table with one row per client (-1: all clients together) and preference:
`split`, `client`, `preference.0`, ..., and the coordinates of the point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isonomy.errors import ConfigError, RunError, unknown
from isonomy.metrics.counts import Floats
from isonomy.metrics.front import nondominated, within

Columns = Mapping[str, Sequence[Any]]
TOGETHER = -1


@dataclass(frozen=True, eq=False)
class Part:
    """One front: preferences [R, m] and points [R, c]."""

    preferences: Floats
    points: Floats


@dataclass(frozen=True)
class Choice:
    """A preference within limits: the split it was chosen on, its point there and as evaluated."""

    preference: tuple[float, ...]
    split: str
    chosen: tuple[float, ...]
    measured: tuple[float, ...]


def coordinates(columns: Columns) -> tuple[str, ...]:
    """The names of a point's coordinates."""
    known = ("split", "client")
    return tuple(n for n in columns if n not in known and not n.startswith("preference."))


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
    lam = np.array([columns[n] for n in rays], np.float64).reshape(len(rays), len(keep))[:, keep].T
    at = np.array([columns[n] for n in coordinates(columns)], np.float64)[:, keep].T
    return {int(k): Part(lam[client == k], at[client == k]) for k in np.unique(client)}


def best(part: Part) -> Part:
    """The points that no other point dominates, sorted by their coordinates."""
    known = ~np.isnan(part.points).any(1)
    lam, at = part.preferences[known], part.points[known]
    front = nondominated(at)
    lam, at = lam[front], at[front]
    order = np.lexsort(at.T[::-1])
    return Part(lam[order], at[order])


def choose(columns: Columns, limits: Mapping[str, float], client: int = TOGETHER) -> Choice | None:
    """The preference with the smallest error among those within the limits, such as {"dp": 0.05}.

    It is chosen on validation examples if the run has them. The result also has its point on the
    evaluated examples, which may differ. Returns None if no preference is within the limits. Raises
    RunError if the run has no front or the client has none, ConfigError for an unknown coordinate.
    """
    if "preference.0" not in columns:
        raise RunError(
            "the method of this run learnt one model, not a front, so there is nothing to choose."
        )
    names, given = coordinates(columns), splits(columns)
    at = {_position(names, name): most for name, most in limits.items()}
    split = "validation" if "validation" in given else given[0]
    there, evaluated = parts(columns, split), parts(columns)
    if client not in there:
        who = "all clients together" if client == TOGETHER else f"client {client}"
        raise RunError(f"this run has no front of {who}; choose a client that has one.")
    found = within(there[client].points, at)
    if found is None:
        return None
    return Choice(
        tuple(there[client].preferences[found].tolist()),
        split,
        tuple(there[client].points[found].tolist()),
        tuple(evaluated[client].points[found].tolist()),
    )


def _position(names: Sequence[str], name: str) -> int:
    """The number of a coordinate, given by its full name or by its notion if that is unique."""
    if name in names:
        return names.index(name)
    same = [i for i, each in enumerate(names) if each.partition(".")[0] == name]
    if len(same) != 1:
        raise ConfigError(unknown("coordinate of the front", name, names))
    return same[0]
