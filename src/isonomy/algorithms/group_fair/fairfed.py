"""FairFed: clients whose unfairness is close to the federation's get a larger weight.

Ezzeldin, Yan, He, Ferrara and Avestimehr, "FairFed", AAAI 2023. F is the gap between the groups'
positive rates over all clients, computed from sums alone; F_k is the same gap at client k. Both are
those of the model at the start of the round. With Delta_k = |F - F_k|, or |Acc - Acc_k| where
client k does not report F_k:

    running      omega_k <- omega_k - beta (Delta_k - mean of Delta),   omega_k = n_k / n at first
    exponential  omega_k <- exp(-beta Delta_k) n_k / n
    w <- sum_k omega_k w_k / sum_k omega_k

The running form is, as far as we know, the paper's; a later comparison uses the other. A negative
omega_k counts as 0 in the mean. beta = 0 is FedAvg. The paper leaves the local debiasing open:
`local` either reweights a client's examples by P(y) P(z) / P(y, z), of its own examples or of all
clients of the round, or does nothing. With more than
two groups, F is the largest distance between a group's rate and everyone's. A client withholds the
sums of a cell with fewer than `least` examples, and any gap that is computed from such a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import (
    NOTION_OPTION,
    Cells,
    accuracy,
    cells,
    check_least,
    column,
    correct,
    counted,
    debiasing_weights,
    gap,
    local_gap,
    require_binary,
    share,
    weighted_loss,
    withhold_small,
)
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """The model, and how much of the total weight each client has lost so far, [clients]."""

    params: Params
    lost: Tensor


@dataclass(frozen=True)
class FairFed(Algorithm[Server]):
    """Weights of clients by the distance of their unfairness from the federation's."""

    name: ClassVar[str] = "fairfed"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Ezzeldin et al., AAAI 2023"
    reveals: ClassVar[str] = (
        "each client's distance |F - F_k|; only sums of the counts by label and group and of the "
        "models"
    )

    beta: float = option(
        1.0,
        "how strongly distances change the weights; 0 is FedAvg",
        search=Range(0.02, 50.0, log=True),
    )
    notion: NotionCode = option("dp", NOTION_OPTION)
    update: Literal["running", "exponential"] = option(
        "running", "change the previous weights, or compute them from this round's distances alone"
    )
    local: Literal["plain", "reweigh", "reweigh_all"] = option(
        "plain",
        "local training: plain, or with debiasing weights of the client's own examples, or of all "
        "clients of the round",
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "a client withholds the sums of a cell with fewer examples")

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta = {self.beta}: give a number of at least 0.")
        check_least(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and no weight lost."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Server(params, torch.zeros(clients, dtype=torch.float64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Global gap from sums, each client's distance from it, weighted average."""
        params, lost = server
        total = cohort.sum(self.measure, {"params": params})
        value, known = gap(total["cells"], NOTIONS[self.notion])
        everyone = share(total["correct"], total["count"])
        message = {"params": params, "gap": value, "known": known, "accuracy": everyone}
        got = cohort.gather(self.distance, message)
        distance = got.value["distance"]
        if self.update == "running":
            lost = lost.index_add(0, got.ids, self.beta * (distance - distance.mean()))
            weight = (got.sizes - got.sizes.sum() * lost[got.ids]).clamp(min=0)
        else:
            weight = got.sizes * torch.exp(-self.beta * (distance - distance.min()))
        if not bool((weight > 0).any()):
            return Server(params, lost)
        if self.local == "plain":
            params = cohort.mean(self.train, {"params": params}, weight=weight)["params"]
        else:
            sent = {"params": params, "table": debiasing_weights(total["cells"].count)}
            params = cohort.mean(self.debias, sent, weight=weight)["params"]
        return Server(params, lost)

    @phase("sum", cells="group statistic", correct="statistic", count="statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and predictions by label and group, and totals, to be summed over clients."""
        own = self._cells(task, message["params"], client)
        sums = withhold_small(own, self.least)
        return {"cells": sums, "correct": correct(own), "count": own.count.sum()}, client.state

    @phase("gather", distance="group statistic")
    def distance(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """|F - F_k|, or the distance between accuracies."""
        own = self._cells(task, message["params"], client)
        value, reported = local_gap(own, NOTIONS[self.notion], self.least)
        fair = (message["gap"] - value).abs()
        accurate = (message["accuracy"] - accuracy(own)).abs()
        return {"distance": torch.where(reported & message["known"], fair, accurate)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain local training."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("mean", params="model")
    def debias(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training with weights under which label and group are independent."""
        at, table = column(task, self.attribute, self.name), message["table"]
        if self.local == "reweigh":
            table = debiasing_weights(counted(task, client, at))
        objective = weighted_loss(task, table, at)
        return {"params": descend(objective, message["params"], client)}, client.state

    def _cells(self, task: Task, params: Params, client: Client) -> Cells:
        return cells(task, params, client, column(task, self.attribute, self.name))
