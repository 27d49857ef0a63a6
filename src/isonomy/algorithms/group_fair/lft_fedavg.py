"""LFT+FedAvg: every client trains fairly on its own data, and the models are averaged.

The baseline of Zeng, Chen and Lee, "Improving fairness via federated learning", 2021: FairBatch
at each client with its own counts, then FedAvg,

    w_k <- local descent on  sum over (y, z) of lambda_k(y, z) / m_kz * (its losses),  from w
    lambda_k <- FairBatch's step of size alpha / sqrt(t), from w_k's losses on k's own examples
    w <- mean of the w_k

with t the number of rounds that client k took part in. Initially lambda_k(y, z) = m_kz / m_k, which
is FedAvg, and it stays there with alpha = 0. lambda_k is updated once per round; the authors' code
updates it after each epoch, once for each cell. The baseline shows that fairness at every client
does not imply fairness over the federation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from isonomy.blocks import fairbatch
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import NOTION_OPTION, cells, column, require_binary, weighted_loss
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class LFTFedAvg(Algorithm[Global]):
    """Local fair training, then federated averaging."""

    name: ClassVar[str] = "lft_fedavg"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Zeng et al., 2021 (baseline)"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models, and each client's size"

    alpha: float = option(
        0.3, "step size of a client's weights; 0 is FedAvg", search=Range(0.001, 1.0, log=True)
    )
    notion: NotionCode = option("dp", NOTION_OPTION)
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The model."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """The client's weights as ratios to the plain mean's, and its rounds so far."""
        groups = task.levels[column(task, self.attribute, self.name)]
        return {"ratio": fairbatch.start(groups), "rounds": torch.zeros((), dtype=torch.float64)}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """FedAvg's round."""
        return Global(cohort.mean(self.train, {"params": server.params})["params"])

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """FairBatch on the client's own examples."""
        at = column(task, self.attribute, self.name)
        ratio, rounds = client.state["ratio"], client.state["rounds"] + 1
        params = descend(weighted_loss(task, ratio, at), message["params"], client)
        sums = cells(task, params, client, at)
        step = self.alpha / rounds.sqrt()
        ratio = fairbatch.update(ratio, sums, step, NOTIONS[self.notion])
        return {"params": params}, {"ratio": ratio, "rounds": rounds}
