"""Whether algorithms run on a device, and give the result of the CPU there: for `doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from isonomy import algorithms
from isonomy.config.schema import parse
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.devices import Name, place_of
from isonomy.errors import IsonomyError
from isonomy.runs.build import Setting, build
from isonomy.runs.client_counts import count_answering

CLOSE = 1e-3  # devices round differently, and three rounds add to it
ROUNDS = 3
SMALL = {
    "data": {"name": "synthetic", "clients": 6, "examples": 400, "partition": "dirichlet"},
    "model": {"name": "mlp", "hidden": [5]},
    "local": {"batch": 8, "lr": 0.05},
    "cohort": {"size": 4},
}


@dataclass(frozen=True)
class Found:
    """One algorithm on a device: what is wrong with it there; None if nothing is."""

    algorithm: str
    problem: str | None


def check_device(name: Name, wanted: Iterable[str] | None = None) -> Iterator[Found]:
    """Run algorithms on the CPU and on a device of this machine, and compare what they end with.

    `wanted` are names of algorithms, by default all. Raises a ConfigError if there is no such
    device. Every algorithm runs with its default options for a few rounds and its last phase, and
    its model is evaluated.
    """
    place = place_of(name)
    for known in algorithms.registry() if wanted is None else wanted:
        setting = build(parse({**SMALL, "algorithm": known}))
        expected = _ended(setting, Batched(setting.task, setting.federation))
        try:
            got = _ended(setting, Batched(setting.task, setting.federation, place=place))
            yield Found(known, _difference(got, expected))
        except (IsonomyError, RuntimeError, TypeError, NotImplementedError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            yield Found(known, f"it fails: {lines[0]}")


def _ended(setting: Setting, engine: Engine) -> dict[str, Tree]:
    """The state of the server and of the clients after some rounds, and the counts."""
    algorithm: Algorithm = setting.algorithm
    work, federation = setting.config.local, setting.federation
    server: Any = algorithm.init_server(setting.task, setting.params, len(federation))
    engine.reset(algorithm.init_client(setting.task, setting.params))
    for round in range(ROUNDS):
        ids = torch.arange(round, round + 4)
        server = algorithm.round(server, engine.cohort(ids, work=work, round=round))
    server = algorithm.finish(server, engine.cohort(engine.everyone(), work=work, round=ROUNDS))
    counts, _ = count_answering(algorithm, server, engine, "test")
    loss = torch.from_numpy(counts.loss)
    return {"server": server, "states": engine.all_states(), "loss": loss}


def _difference(got: dict[str, Tree], expected: dict[str, Tree]) -> str | None:
    for name, value in expected.items():
        for a, b in zip(tree.leaves(got[name]), tree.leaves(value), strict=True):
            if not a.is_floating_point():
                continue
            apart = float(((a - b).abs() / (1 + b.abs())).nan_to_num().max()) if a.numel() else 0.0
            if apart > CLOSE or bool((a.isnan() != b.isnan()).any()):
                return f"its {name} differs from that of the CPU by {apart:.2g}"
    return None
