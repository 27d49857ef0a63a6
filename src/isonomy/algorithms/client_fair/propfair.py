"""PropFair: proportional fairness, which maximises the product of the clients' utilities M - loss.

Zhang, Malekmohammadi, Chen and Yu, "Proportional fairness in federated learning", TMLR 2023.
The objective is the sum of the logarithms of the utilities. A client minimises its negative term:

    w_k <- local descent on -log(M - F_k) from w,    w <- sum_k n_k w_k / sum_k n_k

so a client's gradient is multiplied by 1 / (M - F_k), which increases with its loss. Where
M - F_k < epsilon the logarithm is continued by its tangent, so the factor is at most 1 / epsilon.
F_k is the loss of a minibatch. `beyond = "flat"` uses the factor 1 / M there instead, which is the
default of the authors' code: batches with a very large loss then have little influence.

Steps are shorter than FedAvg's by a factor of about 1 / M, so the recommended local.lr is M times
the default. With M = epsilon = 1, or in the limit of large M with lr = M lr_0, it is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Batch, Params, Task
from isonomy.core.work import Work


@dataclass(frozen=True)
class PropFair(Algorithm[Global]):
    """Proportionally fair federated averaging."""

    name: ClassVar[str] = "propfair"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Zhang et al., TMLR 2023"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models, and each client's size"

    M: float = option(
        5.0, "the loss at which a client's utility is 0", search=Grid((2.0, 3.0, 5.0))
    )
    epsilon: float = option(0.2, "utility below which the logarithm is replaced by a line")
    beyond: Literal["tangent", "flat"] = option(
        "tangent", "slope of that line: 1 / epsilon (tangent), or 1 / M (flat)"
    )
    weight: Literal["size", "equal"] = option("size", "a client's weight in the mean")

    def __post_init__(self) -> None:
        if not 0 < self.M < math.inf:
            raise ValueError(f"M = {self.M}: give a number above 0.")
        if not 0 < self.epsilon <= self.M:
            raise ValueError(f"epsilon = {self.epsilon}: give a number above 0 and at most M.")

    def recommended_work(self) -> dict[str, float]:
        """A learning rate that makes up for the factor 1 / M."""
        return {"lr": self.M * Work().lr}

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """FedAvg with another local objective."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent on -log(M - F_k)."""

        def objective(params: Params, batch: Batch) -> Tensor:
            return self.surrogate(task.loss(params, batch))

        return {"params": descend(objective, message["params"], client)}, client.state

    def surrogate(self, loss: Tensor) -> Tensor:
        """-log(M - loss), continued where M - loss <= epsilon."""
        utility = self.M - loss
        inside = utility.clamp(min=self.epsilon)  # so that the unused branch stays finite
        slope = 1 / self.epsilon if self.beyond == "tangent" else 1 / self.M
        return torch.where(
            utility > self.epsilon,  # at epsilon, the slope of clamp depends on torch's version
            -inside.log(),
            slope * (self.epsilon - utility) - math.log(self.epsilon),
        )
