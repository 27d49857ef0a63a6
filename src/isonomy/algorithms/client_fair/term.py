"""TERM: tilted empirical risk; clients with a larger loss pull exponentially more.

Li, Beirami, Sanjabi and Smith, "Tilted empirical risk minimization", ICLR 2021. The objective
tilts clients by t and, inside of each client, examples by tau (its hierarchical form):

    J(w) = (1/t) log sum_k q_k exp(t R_k(w)),    R_k(w) = (1/tau) log mean_i exp(tau f_i(w))

Its gradient weighs clients by p_k = q_k exp(t R_k) / sum_j q_j exp(t R_j), so a round is

    w_k <- local descent on R_k from w,    w <- sum_k p_k w_k,   p from the losses at w

with q_k the client's share of examples or equal. t = 0 is FedAvg, t -> inf minimises the worst
client's loss, t < 0 turns from the worst off and is robust to outliers; tau = 0 is the plain
mean over examples. The weights are of the cohort's losses; the authors' code divides by a
running estimate of their mean instead, of numbers from which each round's own largest loss was
taken, so that rounds do not compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class TERM(Algorithm):
    """Tilted empirical risk minimisation over clients, and over examples."""

    name: ClassVar[str] = "term"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
    reveals: ClassVar[str] = "each client's loss and size; of models only the weighted sum"

    t: float = option(1.0, "tilt of clients: 0 is FedAvg, large the worst client, negative robust")
    tau: float = option(0.0, "tilt of a client's examples; 0 is their mean")
    weight: Literal["size", "equal"] = option("size", "a client's say before the tilt")

    def __post_init__(self) -> None:
        for name, value in (("t", self.t), ("tau", self.tau)):
            if not math.isfinite(value):
                raise ValueError(f"{name} = {value}: give a finite number.")

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Tilted averaging."""
        got = cohort.weigh(
            self.local,
            {"params": server["params"]},
            seen=("loss",),
            tilt={"params": lambda seen: self.t * seen["loss"].to(torch.float64)},
            weight=self.weight,
        )
        return got.mean

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The risk of the received model, and training on it."""
        origin = message["params"]
        objective = partial(self._risk, task) if self.tau else task.loss
        params = descend(objective, origin, client)
        return {"params": params, "loss": self._whole(task, origin, client)}, client.state

    def _whole(self, task: Task, params: Params, client: Client) -> Tensor:
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
        """Tau f_i of each example, nothing (exp = 0) for padding."""
        return torch.where(batch.weight > 0, self.tau * task.losses(params, batch), -torch.inf)
