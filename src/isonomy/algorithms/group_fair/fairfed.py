"""FairFed: clients whose own unfairness is near the federation's have more say.

Ezzeldin, Yan, He, Ferrara and Avestimehr, "FairFed", AAAI 2023. F is the gap between groups'
positive rates over all clients, from sums alone; F_k the same gap at client k, both of the model
that the round starts from. With Delta_k = |F - F_k|, or |Acc - Acc_k| where client k cannot tell
F_k:

    running      omega_k <- omega_k - beta (Delta_k - mean of Delta),   omega_k = n_k / n at first
    exponential  omega_k <- exp(-beta Delta_k) n_k / n
    w <- sum_k omega_k w_k / sum_k omega_k

The running form is the paper's as far as known; a later comparison uses the other. omega_k is
cut off at 0 in the mean. beta = 0 is FedAvg. The paper leaves local debiasing open: `local`
reweighs a client's examples by P(y) P(z) / P(y, z), or not. For more than two groups F is the
largest distance of a group's rate from everyone's. A client tells nothing of a cell with fewer
than `least` examples; a gap that rests on one is a gap it cannot tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import (
    Cells,
    accuracy,
    binary,
    cells,
    column,
    gap,
    least_cell,
    own_gap,
    right,
    share,
    shown,
    weighted,
)
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FairFed(Algorithm):
    """Weights of clients by the distance of their unfairness from the federation's."""

    name: ClassVar[str] = "fairfed"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Ezzeldin et al., AAAI 2023"
    reveals: ClassVar[str] = (
        "each client's distance |F - F_k|; of counts by label and group, and of models, only sums"
    )

    beta: float = option(1.0, "how strongly distances change weights; 0 is FedAvg")
    notion: Literal["dp", "eo"] = option("dp", "whose rates: all examples, or those with label 1")
    update: Literal["running", "exponential"] = option("running", "weights move, or are made anew")
    local: Literal["plain", "reweigh"] = option(
        "plain", "local training, or with debiasing weights"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "examples below which a client withholds a cell's sums")

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta = {self.beta}: give a number of at least 0.")
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, and how much of all weight each client has lost so far."""
        binary(task, self.name)
        column(task, self.attribute, self.name)
        return {"params": params, "lost": torch.zeros(clients, dtype=torch.float64)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Global gap from sums, each client's distance to it, weighted average."""
        params, lost = server["params"], server["lost"]
        total = cohort.sum(self.measure, {"params": params})
        value, told = gap(total["cells"], self.notion)
        everyone = share(total["right"], total["count"])
        message = {"params": params, "gap": value, "told": told, "accuracy": everyone}
        got = cohort.gather(self.distance, message)
        far = got.value["distance"]
        if self.update == "running":
            lost = lost.index_add(0, got.ids, self.beta * (far - far.mean()))
            say = (got.sizes - got.sizes.sum() * lost[got.ids]).clamp(min=0)
        else:
            say = got.sizes * torch.exp(-self.beta * (far - far.min()))
        if not bool((say > 0).any()):
            return {"params": params, "lost": lost}
        if self.local == "reweigh":
            params = cohort.mean(self.debias, {"params": params}, weight=say)["params"]
        else:
            params = cohort.mean(self.train, {"params": params}, weight=say)["params"]
        return {"params": params, "lost": lost}

    @phase("sum", cells="group statistic", right="statistic", count="statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and predictions by label and group, and of all, to be summed over clients."""
        own = self._cells(task, message["params"], client)
        told = {"cells": shown(own, self.least), "right": right(own), "count": own.count.sum()}
        return told, client.state

    @phase("gather", distance="group statistic")
    def distance(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """|F - F_k|, or the distance of accuracies."""
        own = self._cells(task, message["params"], client)
        value, told = own_gap(own, self.notion, self.least)
        fair = (message["gap"] - value).abs()
        apart = (message["accuracy"] - accuracy(own)).abs()
        return {"distance": torch.where(told & message["told"], fair, apart)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain local training."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("mean", params="model")
    def debias(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training with weights under which label and group are independent at this client."""
        at = column(task, self.attribute, self.name)
        count = self._cells(task, message["params"], client).count
        label, group = count.sum(1, keepdim=True), count.sum(0, keepdim=True)
        table = share(label * group, count * count.sum())
        objective = weighted(task, table, at)
        return {"params": descend(objective, message["params"], client)}, client.state

    def _cells(self, task: Task, params: Params, client: Client) -> Cells:
        return cells(task, params, client, column(task, self.attribute, self.name))
