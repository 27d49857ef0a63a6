"""FedFair: the loss is minimised while groups' losses stay within epsilon of each other.

Chu, Wang, Dong, Pei, Zhou and Zhang, "FedFair: training fair models in cross-silo federated
learning", 2021. With d(w) the mean loss of group 0 less that of group 1, among examples of label
1, from sums and counts of all clients:

    min_w max_{a, b >= 0}  L(w) + a (d(w) - epsilon) + b (-d(w) - epsilon)
    a <- max(0, a + eta (d - epsilon)),  b <- max(0, b + eta (-d - epsilon)),  w <- FedAvg's round

d is a sum over clients, so a client's part of the Lagrangian is its mean loss with the weights 1
+ (a - b) n / M_0 on group 0 and 1 - (a - b) n / M_1 on group 1 (label 1, counts M of the whole
federation), and FedAvg's mean by size adds the parts up to the whole. `given = "all"` compares
all examples of the groups. More than two groups: a pair of multipliers for each group against
group 0. A large epsilon is FedAvg. Weights may fall below 0 where the multipliers grow beyond a
group's share; `most` bounds each multiplier. The order of steps and the step sizes are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import Cells, binary, cells, column, least_cell, share, weighted
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FedFair(Algorithm):
    """A bound on the difference of groups' losses, by two multipliers."""

    name: ClassVar[str] = "fedfair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Chu et al., 2021"
    reveals: ClassVar[str] = (
        "sums over all clients of models and of counts and losses by label and group"
    )

    epsilon: float = option(0.05, "largest difference of the groups' mean losses; inf is FedAvg")
    eta: float = option(0.1, "step size of the multipliers")
    most: float = option(1.0, "largest value of a multiplier")
    given: Literal["positive", "all"] = option("positive", "which examples: of label 1, or all")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "examples below which a client withholds a cell's sums")

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon = {self.epsilon}: give a number of at least 0, or inf.")
        for name, value in {"eta": self.eta, "most": self.most}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} = {value}: give a number above 0.")
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model and a pair of multipliers for each group but the first."""
        binary(task, self.name)
        at = column(task, self.attribute, self.name)
        pairs = torch.zeros(2, task.levels[at] - 1, dtype=torch.float64)
        return {"params": params, "multipliers": pairs}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Ascent of the multipliers at w, then a round of descent on the Lagrangian."""
        params = server["params"]
        got = cohort.sum(self.measure, {"params": params})["cells"]
        gaps = self.gaps(got)
        rise = torch.stack([gaps - self.epsilon, -gaps - self.epsilon])
        pairs = (server["multipliers"] + self.eta * rise).clamp(0, self.most)
        message = {"params": params, "table": self.table(got, pairs)}
        return {"params": cohort.mean(self.train, message)["params"], "multipliers": pairs}

    def gaps(self, got: Cells) -> Tensor:
        """d_z, group 0's mean loss less that of each other group; 0 if one has no examples."""
        loss, count = self._compared(got)
        mean = share(loss, count)
        told = (count > 0) & (count[0] > 0)
        return torch.where(told, mean[0] - mean, 0.0)[1:]

    def table(self, got: Cells, pairs: Tensor) -> Tensor:
        """The weights of examples by label and group under which losses sum to the Lagrangian."""
        net = pairs[0] - pairs[1]
        _, count = self._compared(got)
        sign = torch.cat([net.sum().reshape(1), -net])
        weight = sign * share(got.count.sum(), count)
        if self.given == "positive":
            return 1 + torch.stack([torch.zeros_like(weight), weight])
        return 1 + torch.stack([weight, weight])

    def _compared(self, got: Cells) -> tuple[Tensor, Tensor]:
        """Sums of losses and counts of the examples that are compared, by group."""
        if self.given == "positive":
            return got.loss[1], got.count[1]
        return got.loss.sum(0), got.count.sum(0)

    @phase("sum", cells="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and losses by label and group."""
        at = column(task, self.attribute, self.name)
        return {"cells": cells(task, message["params"], client, at, self.least)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on the client's part of the Lagrangian."""
        at = column(task, self.attribute, self.name)
        objective = weighted(task, message["table"], at)
        return {"params": descend(objective, message["params"], client)}, client.state
