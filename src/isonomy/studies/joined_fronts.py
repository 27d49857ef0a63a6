"""One front of several runs: a method that trains one model, swept over its strength.

A method that learns a front has many points, and a method that trains one model has one, so their
hypervolumes cannot be compared. The points of runs at several strengths form a front that can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isonomy.errors import DataError
from isonomy.metrics.front import nondominated, volume
from isonomy.runs.front import TOGETHER
from isonomy.runs.record import Record


def joined(label: str, runs: Sequence[Record]) -> Record:
    """The runs of one seed as one record, whose metrics are those of their joined points.

    `hv.local` is the mean over clients of the hypervolume of a client's points, and `hv.global` the
    hypervolume of the points of all clients together. It is complete if every run is.
    """
    done = all(run.complete for run in runs)
    made = replace(runs[0], front=_columns(runs) if done else {})
    return replace(
        made,
        label=label,
        metrics=_volumes(made) if done else {},
        seconds=sum(run.seconds for run in runs),
        complete=done,
        rounds=[],
        clients={},
        excess={},
        verdict=None,
    )


def together(run: Record) -> list[list[float]]:
    """The points of all clients together on the evaluated split that no other point beats."""
    found = _points(run).get(TOGETHER, [])
    points = np.array([at for at in found if not np.isnan(at).any()], np.float64)
    kept = points[nondominated(points)] if len(points) else points
    return [list(at) for at in sorted({tuple(at) for at in kept.tolist()})]


def _columns(runs: Sequence[Record]) -> dict[str, list[Any]]:
    """The runs' fronts, one below the other, without their counts."""
    for run in runs:
        if not run.front:
            raise DataError(
                f"'{run.label}', seed {run.seed}, has no front to join; its config has no "
                "protected attribute or front.rays = 0."
            )
    names = [name for name in runs[0].front if not name.startswith("count.")]
    return {name: [value for run in runs for value in run.front[name]] for name in names}


def _points(run: Record) -> dict[int, list[list[float]]]:
    """The points of each client, and of all together, on the evaluated split."""
    columns = run.front
    out: dict[int, list[list[float]]] = {}
    names = [
        name
        for name in columns
        if name not in ("split", "client") and not name.startswith(("preference.", "count."))
    ]
    for i, split in enumerate(columns.get("split", ())):
        if split == run.config["evaluate"]["split"]:
            out.setdefault(columns["client"][i], []).append([columns[name][i] for name in names])
    return out


def _volumes(run: Record) -> dict[str, float]:
    points = _points(run)
    volumes = {client: volume(np.array(at, np.float64)) for client, at in points.items()}
    whole = volumes.pop(TOGETHER, None)
    local = [value for value in volumes.values() if not np.isnan(value)]
    found = {"hv.local": float(np.mean(local))} if local else {}
    return found if whole is None else {**found, "hv.global": whole}
