"""Exchanges with given replies: what differential privacy makes of them, without any training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.cohort import Ask, Cohort, Replies
from isonomy.core.phase import phase
from isonomy.core.work import Work
from isonomy.privacy.ledger import Ledger, Terms
from isonomy.privacy.noise import Key
from isonomy.privacy.release import ClientRelease, finite_only
from isonomy.robust.screen import Screen

EXPECTED = 4  # clients in a round
CLIENTS = 16


@phase("mean", "sum", "gather", params="model", slope="gradient", loss="statistic")
def asked(task: Any, message: Any, client: Any) -> Any:
    raise AssertionError("replies are given")


@phase("weigh", seen=("loss",), params="model", loss="statistic")
def weighed(task: Any, message: Any, client: Any) -> Any:
    raise AssertionError("replies are given")


class Silent(Key):
    """A key whose noise is zero, to see what the noise is added to."""

    def normal(self, shape: tuple[int, ...], *name: Any) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)


def terms(multiplier: float = 1.5, *, secret: bool = True, **more: Any) -> Terms:
    given = {"budget": None, "rounds": 100, "releases": 1, "clients": CLIENTS, "delta": 1e-5}
    rate = EXPECTED / CLIENTS if secret else 1.0
    return Terms(level="client", multiplier=multiplier, rate=rate, **(given | more))


def release(ledger: Ledger, key: Key | None = None, **more: Any) -> ClientRelease:
    given: dict[str, Any] = {"clip": 0.5, "bounds": {"loss": 2.0}}
    given["sizes"] = torch.arange(10, 10 + 40 * CLIENTS, 40)
    return ClientRelease(ledger, key or Silent(b""), **(given | more))


def cohort(
    made: ClientRelease, value: dict[str, Tensor], *, round: int = 0, chunk: int = 2
) -> Cohort:
    """The clients 0, 1, ... that give these replies, a few at a time."""
    count = len(value["loss"])

    def exchange(ask: Ask) -> Iterator[Replies]:
        for first in range(0, count, chunk):
            ids = ask.ids[first : first + chunk]
            part = {k: v[first : first + chunk] for k, v in value.items()}
            yield Replies(tree.tmap(torch.clone, part), ids, torch.ones(len(ids)))

    through: Any = exchange
    screen = Screen()
    for wrapper in (screen.learn, finite_only, screen, made):
        through = wrapper(through)
    return Cohort(
        through,
        torch.arange(count),
        torch.arange(10, 10 + 40 * count, 40),
        work=Work(),
        round=round,
        rate=0.1,
        clients=CLIENTS,
        release=made,
    )
