"""One front of several runs: a method that trains one model, swept over its strength.

A method that learns a front has many points, and a method that trains one model has one, so their
hypervolumes cannot be compared. The points of runs at several strengths form a front that can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isonomy.errors import DataError
from isonomy.metrics.front import volume
from isonomy.runs.front import TOGETHER
from isonomy.runs.record import Record


def joined(label: str, runs: Sequence[Record]) -> Record:
    """The runs of one seed as one record, whose metrics are those of their joined points.

    `hv.local` is the mean over clients of the hypervolume of a client's points, and `hv.global` the
    hypervolume of the points of all clients together. It is complete if every run is.
    """
    done = all(run.complete for run in runs)
    return replace(
        runs[0],
        label=label,
        metrics=_volumes(runs) if done else {},
        seconds=sum(run.seconds for run in runs),
        complete=done,
        rounds=[],
        clients={},
        front={},
        excess={},
        verdict=None,
    )


def _volumes(runs: Sequence[Record]) -> dict[str, float]:
    points: dict[int, list[list[float]]] = {}
    for run in runs:
        columns = run.front
        if not columns:
            raise DataError(
                f"'{run.label}', seed {run.seed}, has no front to join; its config has no "
                "protected attribute or front.rays = 0."
            )
        names = [
            name
            for name in columns
            if name not in ("split", "client") and not name.startswith(("preference.", "count."))
        ]
        for i, split in enumerate(columns["split"]):
            if split == run.config["evaluate"]["split"]:
                at = points.setdefault(columns["client"][i], [])
                at.append([columns[name][i] for name in names])
    volumes = {client: volume(np.array(at, np.float64)) for client, at in points.items()}
    together = volumes.pop(TOGETHER, None)
    local = [value for value in volumes.values() if not np.isnan(value)]
    found = {"hv.local": float(np.mean(local))} if local else {}
    return found if together is None else {**found, "hv.global": together}
