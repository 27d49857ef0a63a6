"""TERM: tilted empirical risk minimisation, which weights clients exponentially in their loss.

Li, Beirami, Sanjabi and Smith, "Tilted empirical risk minimization", ICLR 2021. The objective
tilts clients by t and, within each client, examples by tau (the hierarchical form):

    J(w) = (1/t) log sum_k q_k exp(t R_k(w)),    R_k(w) = (1/tau) log mean_i exp(tau f_i(w))

Its gradient weights clients by p_k = q_k exp(t R_k) / sum_j q_j exp(t R_j), so a round is

    w_k <- local descent on R_k from w,    w <- sum_k p_k w_k,   p from the losses at w

where q_k is the client's share of the examples, or equal. t = 0 is FedAvg, t -> inf minimises the
worst client's loss, and t < 0 reduces the weight of large losses, which is robust to outliers.
tau = 0 is the plain mean over examples. The weights are normalised over the cohort. The authors'
code divides by a running estimate of the normaliser instead, but subtracts each round's own
largest loss from the exponents, so the estimates of different rounds are not comparable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class TERM(Algorithm[Global]):
    """Tilted empirical risk minimisation over clients, and over examples."""

    name: ClassVar[str] = "term"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
    reveals: ClassVar[str] = (
        "each client's loss and size, and only the weighted sum of the clients' models"
    )

    t: float = option(
        1.0,
        "tilt of clients: 0 is FedAvg, large values favour large losses, negative ones small",
        search=Grid((0.1, 1.0, 10.0)),
    )
    tau: float = option(0.0, "tilt of the examples within a client; 0 is the plain mean")
    weight: Literal["size", "equal"] = option("size", "a client's weight before the tilt")

    def __post_init__(self) -> None:
        for name, value in (("t", self.t), ("tau", self.tau)):
            if not math.isfinite(value):
                raise ValueError(f"{name} = {value}: give a finite number.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Tilted averaging."""
        got = cohort.weigh(
            self.local,
            {"params": server.params},
            seen=("loss",),
            tilt={"params": lambda seen: self.t * seen["loss"].to(torch.float64)},
            weight=self.weight,
        )
        return Global(got.mean["params"])

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The risk R_k of the received model, and local descent on R_k."""
        origin = message["params"]
        objective = partial(self._risk, task) if self.tau else task.loss
        params = descend(objective, origin, client)
        return {"params": params, "loss": self._total_risk(task, origin, client)}, client.state

    def _total_risk(self, task: Task, params: Params, client: Client) -> Tensor:
        """R_k: the tilted mean over all training examples."""
        if not self.tau:
            return train_loss(task, params, client)
        pages = [self._exponents(task, params, page) for page in client.pages("train")]
        total = torch.logsumexp(torch.cat(pages), 0)
        return (total - client.size.clamp(min=1).log()) / self.tau

    def _risk(self, task: Task, params: Params, batch: Batch) -> Tensor:
        """The tilted mean over a batch."""
        total = torch.logsumexp(self._exponents(task, params, batch), 0)
        return (total - batch.weight.sum().clamp(min=1).log()) / self.tau

    def _exponents(self, task: Task, params: Params, batch: Batch) -> Tensor:
        """Tau f_i of each example; -inf for padding, so that it adds 0 to the sum."""
        return torch.where(batch.weight > 0, self.tau * task.losses(params, batch), -torch.inf)
