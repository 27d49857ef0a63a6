"""Group-weighted FedAvg: FedAvg in which every group counts the same; PFFL's baseline.

"Fair federated learning via bounded group loss" compares with FedAvg "trained on loss weighted by
groups", without a formula. Ours: with n examples in all and m_a of them in group a of A groups,
client k minimises the mean over its examples of u_a loss,

    u_a = (n / (A m_a))^power,    w <- sum_k n_k w_k / sum_k n_k

With power = 1 the federation's objective is the mean of the groups' mean losses; power = 0 is
FedAvg. Of several attributes the weights are averaged; an example of no group has weight 1. n and
m_a are those of the round's cohort, from sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.constraints import columns, groups_of, sizes, weighted_losses
from isonomy.blocks.descent import descend
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class GroupFedAvg(Algorithm):
    """Federated averaging with examples weighted by their group's rarity."""

    name: ClassVar[str] = "group_fedavg"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fair federated learning via bounded group loss (its baseline)"
    reveals: ClassVar[str] = (
        "sums over the cohort of models and of the groups' sizes, and each client's size"
    )

    power: float = option(1.0, "1: every group counts the same; 0: FedAvg")
    attributes: tuple[str, ...] = option(
        (), 'protected attributes, "sex*race" for groups of both; all'
    )
    weight: Literal["size", "equal"] = option("size", "a client's say in the mean")
    least: int = option(0, "examples below which a client withholds a group's number")

    def __post_init__(self) -> None:
        if not 0 <= self.power < math.inf:
            raise ValueError(f"power = {self.power}: give a number of at least 0.")
        if self.least < 0:
            raise ValueError(f"least = {self.least}: give a number of examples of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, and how many groups the attribute of each group has."""
        numbers = sizes(task, columns(task, self.attributes))
        of = torch.tensor([float(n) for n in numbers for _ in range(n)], dtype=torch.float64)
        return {"params": params, "of": of}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """The groups' sizes, then a round of FedAvg."""
        seen = cohort.sum(self.count, {})["count"]
        total = cohort.sizes.sum().double()
        known = seen > 0
        say = torch.where(known, total / (server["of"] * seen.clamp(min=1)), 1.0) ** self.power
        message = {"params": server["params"], "say": say.float()}
        params = cohort.mean(self.local, message, weight=self.weight)["params"]
        return {"params": params, "of": server["of"]}

    def deployed(self, server: Any) -> Any:
        """The model."""
        return {"params": server["params"]}

    @phase("sum", count="group statistic")
    def count(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """How many examples of each group the client has."""
        at = columns(task, self.attributes)
        pages = client.pages("train")
        parts = [groups_of(task, p, at).double() * p.weight.unsqueeze(-1) for p in pages]
        count = torch.stack([part.sum(0) for part in parts]).sum(0)
        return {"count": torch.where(count >= self.least, count, 0.0)}, client.state

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descent on the weighted losses."""
        at = columns(task, self.attributes)
        extra: Tensor = (message["say"] - 1) / len(at)

        def say(batch: Batch) -> Tensor:
            return 1 + groups_of(task, batch, at) @ extra

        objective = weighted_losses(task, say)
        return {"params": descend(objective, message["params"], client)}, client.state
