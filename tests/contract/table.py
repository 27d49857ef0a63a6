"""What the contract suite has to be told: a row for each algorithm and each engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from contract.checks import LOOP, Transport, check_same_run
from isonomy.algorithm import Algorithm
from isonomy.algorithms import registry
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.average.fedprox import FedProx
from isonomy.algorithms.personal.local import Local
from isonomy.data.federation import Federation
from isonomy.engines.batched import Batched
from isonomy.engines.program import Programs
from isonomy.task import Task

# --- engines --------------------------------------------------------------------------------------

_programs = Programs()  # one cache for all engines of the suite: a stale program would show


def sharing(kind: type[Batched]) -> Callable[..., Batched]:
    """Makes engines of this kind that share their traced programs: tracing is the slow part."""

    def make(task: Task, federation: Federation, **options: Any) -> Batched:
        engine = kind(task, federation, **options)
        engine.programs = _programs
        return engine

    return make


ENGINES: dict[str, Transport] = {
    "loop": LOOP,
    "batched": Transport(sharing(Batched), chunks=({}, {"chunk": 1}, {"chunk": 2}, {"chunk": 3})),
}


# --- algorithms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """`variants`: the options to check under, the first of which must reach every part of the
    algorithm. `limit` states in what limit it equals what, on a given engine. `classes`: how many
    classes the algorithm can be given.
    """

    limit: Callable[[Transport], None] | None
    variants: tuple[dict[str, Any], ...] = ({},)
    classes: tuple[int, ...] = (3, 2)


_ALONE = [torch.tensor([5])] * 3


def _one_client_is_local(transport: Transport) -> None:
    """With one client, averaging is that client's own training."""
    check_same_run(FedAvg(), Local(), transport, cohorts=_ALONE, part=lambda got: got.outputs[5])


def _mu_zero_is_fedavg(transport: Transport) -> None:
    """Without the pull, FedProx is FedAvg."""
    check_same_run(FedProx(mu=0.0), FedAvg(), transport)
    check_same_run(FedProx(mu=0.0, weight="equal"), FedAvg(weight="equal"), transport)


ROWS: dict[str, Row] = {
    "fedavg": Row(_one_client_is_local, variants=({}, {"weight": "equal"})),
    "fedprox": Row(_mu_zero_is_fedavg, variants=({"mu": 0.5},)),
    "local": Row(_one_client_is_local),
}


# --- what the suite runs over ---------------------------------------------------------------------


def row(name: str) -> Row:
    """An algorithm's row; one without a row joins with its default options."""
    return ROWS.get(name, Row(limit=None))


def algorithms() -> dict[str, Algorithm]:
    """Every registered algorithm in every variant, by a readable name."""
    made: dict[str, Algorithm] = {}
    for name, kind in registry().items():
        for options in row(name).variants:
            label = ",".join(f"{k}={v}" for k, v in options.items())
            made[f"{name}({label})"] = kind(**options)
    return made
