"""q-FedSGD: q-fair federated learning with one gradient per round.

Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning", ICLR 2020,
Algorithm 1. With g_k a gradient of client k at the received w and F_k its loss there:

    Delta_k = F_k^q g_k,    h_k = q F_k^(q-1) |g_k|^2 + L F_k^q,    w <- w - sum Delta_k / sum h_k

An equivalent form: with G and B the means of g_k and of |g_k|^2 / F_k with weights F_k^q,

    w <- w - (s / L) G,    s = 1 / (1 + q B / L)

F_k is the mean loss over all training examples; g_k is taken on the round's first minibatch, as in
the authors' code, or on all examples, as in the paper. L is 1 / learning rate unless given.
`step = "static"` sets every h_k to 1 / learning rate: a plain gradient step on the objective.
q = 0 is one step of FedAvg with equal weights. Epochs, steps and optimiser of the local work are
not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.measure import gradient, loss_and_gradient, train_loss
from isonomy.blocks.weights import LEAST, log_power
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class QFedSGD(Algorithm[Global]):
    """q-fair federated gradient descent."""

    name: ClassVar[str] = "q_fedsgd"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Li et al., ICLR 2020"
    reveals: ClassVar[str] = (
        "each client's loss, and only the weighted sum of the clients' gradients"
    )

    q: float = option(
        1.0,
        "exponent of the loss: 0 is one step of FedAvg, large values favour large losses",
        search=Grid((0.01, 0.1, 1.0, 5.0)),
    )
    lipschitz: float | None = option(
        None, "Lipschitz constant L of the gradients; 1 / learning rate if unset"
    )
    gradient: Literal["first", "full"] = option(
        "first", "examples of the gradient: the first minibatch, or all"
    )
    step: Literal["lipschitz", "static"] = option(
        "lipschitz", "step size: from the h_k above, or the learning rate (static)"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.q < math.inf:
            raise ValueError(f"q = {self.q}: give a number of at least 0.")
        if self.lipschitz is not None and not 0 < self.lipschitz < math.inf:
            raise ValueError(f"lipschitz = {self.lipschitz}: give a number above 0.")

    def recommended_work(self) -> dict[str, float]:
        """With one gradient step per round, a larger learning rate than that of local training."""
        return {"lr": 1.0}

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1, as a share of the way to the weighted mean of the one-step models."""
        params = server.params
        got = cohort.weigh(
            self.local,
            {"params": params},
            seen=("loss",),
            tilt={"params": self._power, "bend": self._power},
            weight="equal",
        )
        if self.step == "static":
            share = self._power(got.seen.value).exp().mean()
        else:
            times = 1.0 if self.lipschitz is None else 1 / (self.lipschitz * cohort.rate)
            share = times / (1 + self.q * times * cohort.rate * got.mean["bend"])
        return Global(tree.mix(params, got.mean["params"], share.to(torch.float32)))

    def _power(self, seen: Reply) -> Tensor:
        """The logarithm of F^q."""
        return log_power(seen["loss"], self.q)

    @phase("weigh", seen=("loss",), params="model", bend="statistic", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, and one gradient step from it."""
        origin = message["params"]
        if self.gradient == "full":
            loss, g = loss_and_gradient(task, origin, client)
        else:
            loss = train_loss(task, origin, client)
            g = gradient(task, origin, client, self.gradient)
        params = tree.tmap(lambda p, d: p - client.rate * d, origin, g)
        return {
            "params": params,
            "bend": tree.sq_norm(g) / (loss + LEAST),
            "loss": loss,
        }, client.state
