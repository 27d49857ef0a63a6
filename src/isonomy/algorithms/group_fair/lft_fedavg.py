"""LFT+FedAvg: every client makes its own training fair, and the models are averaged.

The baseline of Zeng, Chen and Lee, "Improving fairness via federated learning", 2021: FairBatch
at each client with its own counts, then FedAvg,

    w_k <- local descent on  sum over (y, z) of lambda_k(y, z) / m_kz * (its losses),  from w
    lambda_k <- FairBatch's step of size alpha / sqrt(t) by w_k's losses on the own examples
    w <- mean of the w_k

with t the client's own number of rounds and lambda_k(y, z) = m_kz / m_k at first, where this is
FedAvg; so it is with alpha = 0. lambda_k moves once a round; the authors' code moves it after
each epoch, and there once for each cell. Fair at every client does not make fair overall: that is
what this baseline shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks import fairbatch
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import binary, cells, column, weighted
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class LFTFedAvg(Algorithm):
    """Local fair training, then federated averaging."""

    name: ClassVar[str] = "lft_fedavg"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Zeng et al., 2021 (baseline)"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models, and each client's size"

    alpha: float = option(0.3, "step size of a client's weights; 0 is FedAvg")
    notion: Literal["dp", "eo"] = option(
        "dp", "fair in what: demographic parity or equal opportunity"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model."""
        binary(task, self.name)
        column(task, self.attribute, self.name)
        return {"params": params}

    def init_client(self, task: Task, params: Params) -> State:
        """A client's weights, as ratios to the plain mean's, and its rounds so far."""
        groups = task.levels[column(task, self.attribute, self.name)]
        return {"ratio": fairbatch.start(groups), "rounds": torch.zeros((), dtype=torch.float64)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """FedAvg's."""
        return cohort.mean(self.train, {"params": server["params"]})

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """FairBatch on the client's own examples."""
        at = column(task, self.attribute, self.name)
        ratio, rounds = client.state["ratio"], client.state["rounds"] + 1
        params = descend(weighted(task, ratio, at), message["params"], client)
        got = cells(task, params, client, at)
        ratio = fairbatch.moved(ratio, got, self.alpha / rounds.sqrt(), self.notion)
        return {"params": params}, {"ratio": ratio, "rounds": rounds}
