"""FedFair: minimises the loss while the groups' losses stay within epsilon of each other.

Chu, Wang, Dong, Pei, Zhou and Zhang, "FedFair: training fair models in cross-silo federated
learning", 2021. With d(w) the mean loss of group 0 minus that of group 1, among examples with
label 1, from the sums and counts of all clients:

    min_w max_{a, b >= 0}  L(w) + a (d(w) - epsilon) + b (-d(w) - epsilon)
    a <- max(0, a + eta (d - epsilon)),  b <- max(0, b + eta (-d - epsilon)),  w <- FedAvg's round

d is a sum over clients, so a client's part of the Lagrangian is its mean loss with the weights 1
+ (a - b) n / M_0 on group 0 and 1 - (a - b) n / M_1 on group 1 (label 1, counts M of the whole
federation), and FedAvg's mean by size adds up the parts. `given = "all"` compares all examples of
the groups. With more than two groups there is a pair of multipliers for each group against group 0.
A large epsilon is FedAvg. Weights can become negative if the multipliers exceed a group's share;
`most` bounds each multiplier. The order of steps and the step sizes are our choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import (
    Cells,
    cells,
    check_least,
    column,
    require_binary,
    share,
    weighted_loss,
)
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """The model, and the multipliers a and b of each group except the first, [2, groups - 1]."""

    params: Params
    multipliers: Tensor


@dataclass(frozen=True)
class FedFair(Algorithm[Server]):
    """A bound on the difference between groups' losses, by two multipliers."""

    name: ClassVar[str] = "fedfair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Chu et al., 2021"
    reveals: ClassVar[str] = (
        "sums over all clients of models and of counts and losses by label and group"
    )

    epsilon: float = option(
        0.05,
        "largest difference between the groups' mean losses; inf is FedAvg",
        search=Range(0.005, 0.2, log=True),
    )
    eta: float = option(0.1, "step size of the multipliers", search=Range(0.01, 1.0, log=True))
    most: float = option(1.0, "largest value of a multiplier")
    given: Literal["positive", "all"] = option(
        "positive", "which examples are compared: those with label 1, or all"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "a client withholds the sums of a cell with fewer examples")

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon = {self.epsilon}: give a number of at least 0, or inf.")
        for name, value in {"eta": self.eta, "most": self.most}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} = {value}: give a number above 0.")
        check_least(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and multipliers of 0."""
        require_binary(task, self.name)
        at = column(task, self.attribute, self.name)
        pairs = torch.zeros(2, task.levels[at] - 1, dtype=torch.float64)
        return Server(params, pairs)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Ascent of the multipliers at w, then a round of descent on the Lagrangian."""
        params = server.params
        sums = cohort.sum(self.measure, {"params": params})["cells"]
        gaps = self.gaps(sums)
        rise = torch.stack([gaps - self.epsilon, -gaps - self.epsilon])
        pairs = (server.multipliers + self.eta * rise).clamp(0, self.most)
        message = {"params": params, "table": self.table(sums, pairs)}
        return Server(cohort.mean(self.train, message)["params"], pairs)

    def gaps(self, sums: Cells) -> Tensor:
        """d_z, group 0's mean loss minus that of each other group; 0 if one has no examples."""
        loss, count = self._compared(sums)
        mean = share(loss, count)
        known = (count > 0) & (count[0] > 0)
        return torch.where(known, mean[0] - mean, 0.0)[1:]

    def table(self, sums: Cells, pairs: Tensor) -> Tensor:
        """Weights by label and group with which the examples' losses sum to the Lagrangian."""
        net = pairs[0] - pairs[1]
        _, count = self._compared(sums)
        sign = torch.cat([net.sum().reshape(1), -net])
        weight = sign * share(sums.count.sum(), count)
        if self.given == "positive":
            return 1 + torch.stack([torch.zeros_like(weight), weight])
        return 1 + torch.stack([weight, weight])

    def _compared(self, sums: Cells) -> tuple[Tensor, Tensor]:
        """Sums of losses and counts of the examples that are compared, by group."""
        if self.given == "positive":
            return sums.loss[1], sums.count[1]
        return sums.loss.sum(0), sums.count.sum(0)

    @phase("sum", cells="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and losses by label and group."""
        at = column(task, self.attribute, self.name)
        return {"cells": cells(task, message["params"], client, at, self.least)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on the client's part of the Lagrangian."""
        at = column(task, self.attribute, self.name)
        objective = weighted_loss(task, message["table"], at)
        return {"params": descend(objective, message["params"], client)}, client.state
