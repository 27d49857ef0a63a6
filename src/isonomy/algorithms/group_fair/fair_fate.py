"""FAIR-FATE: momentum of the updates from clients whose models are fairer.

Salazar, Fernandes, Araujo and Abreu, "FAIR-FATE: fair federated learning with momentum", ICCS
2023. With A_k = w_k - w, F the fairness of w over the federation and F_k that of w_k:

    v <- beta v + (1 - beta) sum over k with F_k >= F of F_k A_k / (sum of their F_k)
    w <- w + lambda v + (1 - lambda) sum_k n_k / n A_k,    lambda = min(lambda0 (1 + rho)^t, most)

Fairness is 1 minus the gap between the groups' positive rates. If no client is fairer, v does not
change. The paper measures F_k on data of the server. Here the server has no data, so each client
measures its model on its own training examples, and F is computed from the summed counts. A client
without examples of both groups does not count as fairer. The update is written from memory of the
paper: its three schedules are this one, growing with rho > 0, constant with rho = 0 and decreasing
with rho < 0. lambda0 = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import (
    NOTION_OPTION,
    cells,
    check_least,
    column,
    gap,
    local_gap,
    require_binary,
)
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task

NEVER = -1e4  # the logarithm of a weight that is 0


class Server(NamedTuple):
    """The model w and the momentum v."""

    params: Params
    momentum: Params


@dataclass(frozen=True)
class FairFate(Algorithm[Server]):
    """Momentum towards fairer clients."""

    name: ClassVar[str] = "fair_fate"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Salazar et al., ICCS 2023"
    reveals: ClassVar[str] = (
        "each client's fairness and size; only sums of the counts by label and group and of the "
        "models"
    )

    lambda0: float = option(
        0.5, "weight of the momentum in the first round; 0 is FedAvg", search=Grid((0.1, 0.5))
    )
    rho: float = option(
        0.05, "growth of that weight from round to round", search=Grid((0.04, 0.05))
    )
    most: float = option(0.9, "largest weight of the momentum", search=Grid((0.8, 0.9, 1.0)))
    beta: float = option(
        0.9, "how much of the momentum is kept from round to round", search=Grid((0.8, 0.9, 0.99))
    )
    notion: NotionCode = option("dp", NOTION_OPTION)
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "a client withholds the sums of a cell with fewer examples")

    def __post_init__(self) -> None:
        if not 0 <= self.lambda0 <= self.most <= 1:
            raise ValueError(
                f"lambda0 = {self.lambda0}, most = {self.most}: give 0 <= lambda0 <= most <= 1."
            )
        if not -1 < self.rho < 1:
            raise ValueError(f"rho = {self.rho}: give a number between -1 and 1.")
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta = {self.beta}: give a number of at least 0 and below 1.")
        check_least(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model and a momentum of 0."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Server(params, tree.zeros_like(params))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Fairness of w, training, and both sums."""
        params, momentum = server
        counts = cohort.sum(self.measure, {"params": params})["cells"]
        fairness = 1 - gap(counts, NOTIONS[self.notion])[0].abs()

        def fairer(seen: Reply) -> Tensor:
            fair, size = seen["fairness"].double(), seen["size"].double()
            return torch.where(fair >= fairness, torch.log(fair.clamp(min=1e-9) / size), NEVER)

        seen = ("fairness", "size")
        got = cohort.weigh(self.train, {"params": params}, seen=seen, tilt={"fair": fairer})
        if bool((got.seen.value["fairness"] >= fairness).any()):
            update = tree.sub(got.mean["fair"], params)
            momentum = tree.mix(update, momentum, self.beta)
        lam = min(self.lambda0 * (1 + self.rho) ** cohort.round, self.most)
        params = tree.mix(got.mean["params"], tree.add(params, momentum), lam)
        return Server(params, momentum)

    @phase("sum", cells="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and predictions by label and group, to be summed over clients."""
        at = column(task, self.attribute, self.name)
        return {"cells": cells(task, message["params"], client, at, self.least)}, client.state

    @phase(
        "weigh",
        seen=("fairness", "size"),
        params="model",
        fair=Part("model", of="params"),
        fairness="group statistic",
        size="statistic",
    )
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training, and how fair the result is on the client's own examples."""
        at = column(task, self.attribute, self.name)
        params = descend(task.loss, message["params"], client)
        sums = cells(task, params, client, at)
        value, reported = local_gap(sums, NOTIONS[self.notion], self.least)
        fairness = torch.where(reported, 1 - value.abs(), -1.0)
        reply = {"params": params, "fair": params, "fairness": fairness, "size": client.size}
        return reply, client.state
