"""Group-weighted FedAvg: FedAvg in which all groups have equal weight; PFFL's baseline.

"Fair federated learning via bounded group loss" compares with FedAvg "trained on loss weighted by
groups", without a formula. Ours: with n examples in total and m_a of them in group a of A groups,
client k minimises the mean over its examples of u_a loss,

    u_a = (n / (A m_a))^power,    w <- sum_k n_k w_k / sum_k n_k

With power = 1 the federation's objective is the mean of the groups' mean losses; power = 0 is
FedAvg. With several attributes the weights are averaged; an example in no group has weight 1. n and
m_a are sums over the round's cohort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.constraints import (
    columns,
    groups_of,
    sizes,
    told_by_attribute,
    weighted_losses,
)
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import check_least
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task


class Server(NamedTuple):
    """The model, and for each group how many groups its attribute has, [groups of all]."""

    params: Params
    of: Tensor


@dataclass(frozen=True)
class GroupFedAvg(Algorithm[Server]):
    """Federated averaging with examples weighted by the inverse size of their group."""

    name: ClassVar[str] = "group_fedavg"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fair federated learning via bounded group loss (its baseline)"
    reveals: ClassVar[str] = (
        "sums over the cohort of models and of the groups' sizes, and each client's size"
    )

    power: float = option(1.0, "1: all groups have equal weight; 0: FedAvg", search=Range(0.0, 2.0))
    attributes: tuple[str, ...] = option(
        (), 'protected attributes; "sex*race" for their intersections; all if empty'
    )
    weight: Literal["size", "equal"] = option("size", "weight of a client in the mean")
    least: int = option(0, "a client withholds the size of a group with fewer examples")

    def __post_init__(self) -> None:
        if not 0 <= self.power < math.inf:
            raise ValueError(f"power = {self.power}: give a number of at least 0.")
        check_least(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and the number of groups of each group's attribute."""
        numbers = sizes(task, columns(task, self.attributes))
        of = torch.tensor([float(n) for n in numbers for _ in range(n)], dtype=torch.float64)
        return Server(params, of)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """The groups' sizes, then a round of FedAvg."""
        seen = cohort.sum(self.count, {})["count"]
        total = cohort.sizes.sum().double()
        known = seen > 0
        weights = torch.where(known, total / (server.of * seen.clamp(min=1)), 1.0) ** self.power
        message = {"params": server.params, "weights": weights.float()}
        params = cohort.mean(self.local, message, weight=self.weight)["params"]
        return server._replace(params=params)

    def deployed(self, server: Server) -> Global:
        """The model."""
        return Global(server.params)

    @phase("sum", count="group statistic")
    def count(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The number of examples of each group that the client has."""
        at = columns(task, self.attributes)
        pages = client.pages("train")
        parts = [groups_of(task, p, at).double() * p.weight.unsqueeze(-1) for p in pages]
        count = torch.stack([part.sum(0) for part in parts]).sum(0)
        shown = told_by_attribute(task, self.attributes, count, self.least)
        return {"count": torch.where(shown, count, 0.0)}, client.state

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descent on the weighted losses."""
        at = columns(task, self.attributes)
        extra: Tensor = (message["weights"] - 1) / len(at)

        def weights(batch: Batch) -> Tensor:
            return 1 + groups_of(task, batch, at) @ extra

        objective = weighted_losses(task, weights)
        return {"params": descend(objective, message["params"], client)}, client.state
