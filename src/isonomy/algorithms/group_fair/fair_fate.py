"""FAIR-FATE: momentum of the updates that come from clients whose models are fairer.

Salazar, Fernandes, Araujo and Abreu, "FAIR-FATE: fair federated learning with momentum", ICCS
2023. With A_k = w_k - w, F the fairness of w over the federation and F_k that of w_k:

    v <- beta v + (1 - beta) sum over k with F_k >= F of F_k A_k / (sum of their F_k)
    w <- w + lambda v + (1 - lambda) sum_k n_k / n A_k,    lambda = min(lambda0 (1 + rho)^t, most)

Fairness is 1 less the gap between groups' positive rates. If nobody is fairer, v stays. The paper
measures F_k on the server's own data; a server here has none, so each client measures its model
on its own training examples, and F is that of the summed counts. One without both groups does not
count as fairer. The update is from memory of the paper: its three schedules are this one growing
with rho > 0, still with 0 and falling with rho < 0. lambda0 = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import binary, cells, column, gap, least_cell, own_gap
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.task import Params, Task

NEVER = -1e4  # as the logarithm of a weight: none


@dataclass(frozen=True)
class FairFate(Algorithm):
    """Momentum towards fairer clients."""

    name: ClassVar[str] = "fair_fate"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Salazar et al., ICCS 2023"
    reveals: ClassVar[str] = (
        "each client's fairness and size; of counts by label and group, and of models, only sums"
    )

    lambda0: float = option(0.5, "say of the momentum in the first round; 0 is FedAvg")
    rho: float = option(0.05, "growth of that say from round to round")
    most: float = option(0.9, "the largest say of the momentum")
    beta: float = option(0.9, "how much of the momentum stays")
    notion: Literal["dp", "eo"] = option("dp", "whose rates: all examples, or those with label 1")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "examples below which a client withholds a cell's sums")

    def __post_init__(self) -> None:
        if not 0 <= self.lambda0 <= self.most <= 1:
            raise ValueError(
                f"lambda0 = {self.lambda0}, most = {self.most}: give 0 <= lambda0 <= most <= 1."
            )
        if not -1 < self.rho < 1:
            raise ValueError(f"rho = {self.rho}: give a number between -1 and 1.")
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta = {self.beta}: give a number of at least 0 and below 1.")
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model and the momentum."""
        binary(task, self.name)
        column(task, self.attribute, self.name)
        return {"params": params, "momentum": tree.zeros_like(params)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Fairness of w, training, and both sums."""
        params, momentum = server["params"], server["momentum"]
        value, _ = gap(cohort.sum(self.measure, {"params": params})["cells"], self.notion)
        bar = 1 - value.abs()

        def fairer(seen: Any) -> torch.Tensor:
            fair, size = seen["fairness"].double(), seen["size"].double()
            return torch.where(fair >= bar, torch.log(fair.clamp(min=1e-9) / size), NEVER)

        seen = ("fairness", "size")
        got = cohort.weigh(self.train, {"params": params}, seen=seen, tilt={"fair": fairer})
        if bool((got.seen.value["fairness"] >= bar).any()):
            away = tree.sub(got.mean["fair"], params)
            momentum = tree.mix(away, momentum, self.beta)
        say = min(self.lambda0 * (1 + self.rho) ** cohort.round, self.most)
        params = tree.mix(got.mean["params"], tree.add(params, momentum), say)
        return {"params": params, "momentum": momentum}

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
        value, told = own_gap(cells(task, params, client, at), self.notion, self.least)
        fairness = torch.where(told, 1 - value.abs(), -1.0)
        reply = {"params": params, "fair": params, "fairness": fairness, "size": client.size}
        return reply, client.state
