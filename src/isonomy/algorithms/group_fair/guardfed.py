"""GuardFed: clients count if their update agrees with a fair reference and their model is fair.

Li, Zhou, Guo, Yang, Zhang, Chen, Yuan, Ding and Pedrycz, "GuardFed" (2025), Algorithm 1. The
server holds some examples of its own (`server_data`). In a round it trains a reference theta_s on
them from the model theta, with the weights P(a) P(y) / P(a, y) of Kamiran and Calders, and judges
each client's model theta_i on them:

    Fair_i  = |TPR of group 0 - TPR of group 1|
    Dev_i   = max(0, cos(theta_i - theta, theta_s - theta))
    Trust_i = Dev_i exp(-tau Fair_i)
    theta   <- theta + eta mean over {i: Trust_i > gamma} of (theta_i - theta)

The paper does not say what happens if no client is trusted; here the model stays as it is. In its
experiments all methods train with such weights, those of all examples; with `local = "reweigh"`,
clients train with the server's. The public code takes the cosine of the models theta_i and
theta_s themselves, which is near 1 for all but reversed ones: `compare = "models"`. tau = 0 leaves
a filter by direction; gamma < 0 is FedAvg with equal weights.

The paper's tau = 20 and gamma = 0.2 trust nobody whose gap is above 0.08, so that with cosines of
updates training nearly stops; the defaults here are lower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import (
    cells,
    column,
    counted,
    debiasing_weights,
    gap,
    require_binary,
    weighted_loss,
)
from isonomy.blocks.vectors import rows, unflattened
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class GuardFed(Algorithm[Global]):
    """Only clients that a fair reference model of the server's own trusts."""

    name: ClassVar[str] = "guardfed"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Li et al., 2025"
    reveals: ClassVar[str] = "each client's model"
    needs_server_data: ClassVar[bool] = True

    tau: float = option(
        5.0, "how strongly a gap between groups lowers trust", search=Range(1.0, 50.0, log=True)
    )
    gamma: float = option(
        0.05, "trust above which a client counts; below 0: all", search=Range(0.01, 0.5)
    )
    eta: float = option(1.0, "the server's learning rate", gt=0, lt=math.inf)
    compare: Literal["updates", "models"] = option(
        "updates", "whose cosine is taken: the paper's updates, or the public code's models"
    )
    local: Literal["plain", "reweigh"] = option(
        "plain", "local training: plain, or with the server's debiasing weights"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        if not 0 <= self.tau < math.inf:
            raise ValueError(f"tau = {self.tau}: give a number of at least 0.")
        if not self.gamma < 1:
            raise ValueError(f"gamma = {self.gamma}: give a number below 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Reference, trust, average of the trusted."""
        task, params, own = cohort.task, server.params, cohort.server_client()
        at = column(task, self.attribute, self.name)
        table = debiasing_weights(counted(task, own, at))
        reference = descend(weighted_loss(task, table, at), params, own)
        got = cohort.gather(self.train, {"params": params, "table": table})
        models = got.value["params"]
        trust = self._trust(task, params, reference, models, own)
        chosen = trust > self.gamma
        cohort.record(trust=trust, trusted=float(chosen.sum()), chosen=chosen.float())
        if not bool(chosen.any()):
            return server
        origin = rows(tree.stack([params]))[0]
        moved = (rows(models) - origin)[chosen].to(torch.float64).mean(0)
        step = unflattened((self.eta * moved).to(origin.dtype), params)
        return Global(tree.tmap(torch.add, params, step))

    @phase("gather", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local training, by default with debiasing weights."""
        at = column(task, self.attribute, self.name)
        debiased = weighted_loss(task, message["table"], at)
        objective = task.loss if self.local == "plain" else debiased
        return {"params": descend(objective, message["params"], client)}, client.state

    def _trust(
        self, task: Task, params: Params, reference: Params, models: Params, own: Client
    ) -> Tensor:
        """The trust in each of the stacked models."""
        at = column(task, self.attribute, self.name)

        def unfair(model: Params) -> Tensor:
            return gap(cells(task, model, own, at), NOTIONS["eo"])[0].abs()

        theirs, ours = rows(models), rows(tree.stack([reference]))[0]
        if self.compare == "updates":
            origin = rows(tree.stack([params]))[0]
            theirs, ours = theirs - origin, ours - origin
        dev = torch.cosine_similarity(theirs.double(), ours.double().unsqueeze(0)).clamp(min=0)
        return dev * torch.exp(-self.tau * vmap(unfair)(models))
