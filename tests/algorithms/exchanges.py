"""Running a few rounds while recording what was asked and replied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isonomy.core.algorithm import Algorithm
from isonomy.core.cohort import Ask, Exchange, Replies
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine


class Asked(NamedTuple):
    """One exchange: the phase's name, the parts sent and replied, and the clients that answered."""

    phase: str
    sent: tuple[str, ...]
    replied: tuple[str, ...]
    ids: tuple[int, ...]


def listening(heard: list[Asked]) -> Any:
    """Middleware that records every exchange."""

    def wrap(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            chunks = list(exchange(ask))
            ids = tuple(sorted(int(k) for c in chunks for k in c.ids))
            name = getattr(ask.phase, "__name__", "?")
            heard.append(Asked(name, tuple(ask.message), tuple(chunks[0].value), ids))
            yield from chunks

        return wrapped

    return wrap


def lines(examples: list[list[tuple[tuple[float, ...], float]]]) -> tuple[Task, Federation]:
    """Clients with the given (x, y), and y = w x with squared loss and no constant."""
    width = len(examples[0][0][0])
    flat = [pair for client in examples for pair in client]
    at, rows = 0, []
    for client in examples:
        rows.append(torch.arange(at, at + len(client)))
        at += len(client)
    federation = build(
        torch.tensor([x for x, _ in flat]),
        torch.tensor([y for _, y in flat]),
        torch.zeros(len(flat), 0, dtype=torch.int64),
        {"train": rows},
        classes=0,
    )
    task = Task(lambda: nn.Linear(width, 1, bias=False), loss_name="squared", classes=0)
    return task, federation


def play(
    algorithm: Algorithm,
    kind: type[Engine],
    task: Task,
    federation: Federation,
    start: list[float],
    work: Work,
    *,
    rounds: int = 1,
    ids: list[int] | None = None,
    wrap: tuple[Any, ...] = (),
) -> Any:
    """The server after some rounds from the given weights."""
    params = {"weight": torch.tensor([start])}
    engine = kind(task, federation)
    engine.reset(algorithm.init_client(task, params))
    server = algorithm.init_server(task, params, len(federation))
    chosen = torch.arange(len(federation)) if ids is None else torch.tensor(ids)
    for r in range(rounds):
        cohort = engine.cohort(chosen, work=work, round=r, wrap=wrap)
        server = algorithm.round(server, cohort)
    return server


def weight_of(server: Any) -> Tensor:
    """The model's weights as a vector."""
    return server.params["weight"].flatten()
