"""What the planted faults share: a base class, a sound algorithm, and how a fault is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from contract.table import ENGINES
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.blocks.descent import descend
from isonomy.contract.running import LOOP
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task

BATCHED = ENGINES["batched"]

both = pytest.mark.parametrize("transport", [LOOP, BATCHED], ids=["loop", "batched"])


class Planted(Algorithm[Any]):
    """What the faulty algorithms share."""

    name: ClassVar[str] = "planted"
    family: ClassVar[str] = "test"
    paper: ClassVar[str] = "none"
    reveals: ClassVar[str] = "nothing"

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return Global(params)


def averaged(server: Any, cohort: Cohort) -> Global:
    """A round of FedAvg."""
    return Global(cohort.mean(FedAvg().local, {"params": server.params})["params"])


def caught(check: Callable[..., None], *args: Any, by: str = "", **kwargs: Any) -> str:
    """The breach that a check reports; fails if it reports none, or another error than `by`."""
    with pytest.raises(AssertionError) as breach:
        check(*args, **kwargs)
    text = str(breach.value)
    for error in ("DeclarationError", "NameError", "KeyError"):
        assert (f" {error}: " in text) == (error == by), text
    return text


class Server(NamedTuple):
    """The server's state of `Sound`."""

    params: Params
    loss: Tensor  # [clients]
    noise: Tensor


class Own(NamedTuple):
    """A client's state of `Sound`."""

    params: Params
    rounds: Tensor


@dataclass(frozen=True)
class Sound(Planted):
    """Uses everything that the contract offers, correctly."""

    mixing: float = 0.3

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        return Server(params, torch.zeros(clients), torch.zeros(2))

    def init_client(self, task: Task, params: Params) -> Own:
        return Own(params, torch.zeros((), dtype=torch.int64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        first = cohort.gather(self.measure, {"params": server.params})
        loss = server.loss.clone()
        loss[first.ids] = first.value["loss"]
        each = {"share": torch.sigmoid(loss[first.ids] - loss.mean())}
        mean = cohort.mean(self.train, {"params": server.params}, each=each)
        return Server(mean["params"], loss, mean["noise"])

    @phase("gather", loss="statistic")
    def measure(self, task: Task, message: Message, client: Client) -> Any:
        state = client.state._replace(rounds=client.state.rounds + 1)
        return {"loss": task.loss(message["params"], client.validation)}, state

    @phase("mean", params="model", noise="statistic")
    def train(self, task: Task, message: Message, client: Client) -> Any:
        start = tree.mix(message["params"], client.state.params, self.mixing * message["share"])
        own = descend(task.loss, start, client)
        reply = {"params": own, "noise": client.normal("noise", (2,))}
        return reply, client.state._replace(params=own)

    def personal(self, deployed: Any) -> bool:
        return True

    def model(self, task: Task, deployed: Any, state: Own) -> Params:
        return state.params
