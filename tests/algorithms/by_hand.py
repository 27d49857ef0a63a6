"""A federation that is small enough to compute by hand.

The model is y = w x, one weight, squared loss. Client 0 holds (x, y) = (1, 2) and (2, 2), client 1
holds (1, -1). Clients take full-batch gradient steps with rate 0.1 from w = 1. The gradients are

    client 0: mean of 2 x (w x - y) = (2 (w - 2) + 4 (2 w - 2)) / 2 = 5 w - 6
    client 1: 2 (w + 1)
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from isonomy.core.algorithm import Algorithm
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import build
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop

ENGINES = [Loop, Batched]

TASK = Task(lambda: nn.Linear(1, 1, bias=False), loss_name="squared", classes=0)

FEDERATION = build(
    torch.tensor([[1.0], [2.0], [1.0]]),
    torch.tensor([2.0, 2.0, -1.0]),
    torch.zeros(3, 0, dtype=torch.int64),
    {"train": [torch.tensor([0, 1]), torch.tensor([2])]},
    classes=0,
)

F = (lambda w: ((w - 2) ** 2 + (2 * w - 2) ** 2) / 2, lambda w: (w + 1) ** 2)  # losses
G = (lambda w: 5 * w - 6, lambda w: 2 * (w + 1))  # gradients


def start() -> dict[str, torch.Tensor]:
    """w = 1."""
    return {"weight": torch.tensor([[1.0]])}


def rounds(
    algorithm: Algorithm, kind: type[Engine], *, steps: int, rounds: int = 1, ids: Any = (0, 1)
) -> tuple[Any, Engine]:
    """The server's state, and the engine with the clients', after some rounds."""
    engine = kind(TASK, FEDERATION)
    engine.reset(algorithm.init_client(TASK, start()))
    server = algorithm.init_server(TASK, start(), len(FEDERATION))
    work = Work(epochs=steps, batch=0, lr=0.1)
    for r in range(rounds):
        server = algorithm.round(server, engine.cohort(torch.tensor(ids), work=work, round=r))
    return server, engine


def check_weight(algorithm: Algorithm, expected: float, **options: Any) -> None:
    """The server's weight is the one worked by hand, on each engine."""
    for kind in ENGINES:
        server, _ = rounds(algorithm, kind, **options)
        got = server.params["weight"].item()
        assert got == pytest.approx(expected, abs=1e-6), f"{kind.name}: {got}, not {expected}"
