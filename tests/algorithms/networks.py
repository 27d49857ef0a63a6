"""Small federations for methods that match neurons, where clients start from permuted copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isonomy.core.algorithm import Algorithm
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.models import make_task

CLIENTS = 4
STILL = Work(epochs=1, batch=0, lr=1e-30)  # training that changes no weight
STEPS = Work(steps=3, batch=0, lr=0.2)


def same(shape: tuple[int, ...] = (4,), rows: int = 12, *, classes: int = 3) -> Federation:
    """Clients with the same examples; the first one has them twice, so it is the largest."""
    random = torch.Generator().manual_seed(11)
    x = torch.randn(rows, *shape, generator=random)
    y = torch.arange(rows) % classes if classes else x.flatten(1).sum(1)
    copies = [2, *[1] * (CLIENTS - 1)]
    parts, at = [], 0
    for count in copies:
        parts.append(torch.arange(at, at + count * rows))
        at += count * rows
    return build(
        x.repeat(sum(copies), *[1] * len(shape)),
        y.repeat(sum(copies)),
        torch.zeros(at, 0, dtype=torch.int64),
        {"train": parts},
        classes=classes,
        source="same",
    )


def mlp(federation: Federation, hidden: list[int]) -> Task:
    return make_task("mlp", federation, {"hidden": hidden})


def cnn(federation: Federation) -> Task:
    return make_task("cnn", federation, {"channels": [3, 4], "kernel": 3, "dense": [5]})


def shuffled(server: Any) -> Any:
    """Give each client except the first the server's neurons in a different order."""
    random = torch.Generator().manual_seed(12)

    def mixed(at: Tensor) -> Tensor:
        rows = [at[0], *(row[torch.randperm(len(row), generator=random)] for row in at[1:])]
        return torch.stack(rows)

    return server._replace(assigned={name: mixed(at) for name, at in server.assigned.items()})


def play(
    algorithm: Algorithm,
    kind: type[Engine],
    task: Task,
    federation: Federation,
    *,
    work: Work,
    shuffle: bool = False,
    rounds: int = 1,
    ids: list[int] | None = None,
    wrap: tuple[Any, ...] = (),
) -> Any:
    """The server after some rounds."""
    params = task.init(5)
    engine = kind(task, federation)
    engine.reset(algorithm.init_client(task, params))
    server = algorithm.init_server(task, params, len(federation))
    if shuffle:
        server = shuffled(server)
    chosen = engine.everyone() if ids is None else torch.tensor(ids)
    for r in range(rounds):
        cohort = engine.cohort(chosen, work=work, round=r, wrap=wrap)
        server = algorithm.round(server, cohort)
    return server


def close(got: Any, expected: Any) -> None:
    assert list(got) == list(expected)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-6)
