"""AFL: agnostic federated learning, which minimises the loss of the worst mixture of clients.

Mohri, Sivek and Suresh, "Agnostic federated learning", ICML 2019: min_w max_lambda
sum_k lambda_k F_k(w) over the simplex, by descent in w and ascent in lambda:

    w      <- w - rate * sum_k lambda_k grad F_k(w) / sum_k lambda_k
    lambda <- projection on the simplex of (lambda + gamma F(w))

Both right-hand sides use the old w and lambda. All lambda_k start at 1 / N, and the model that is
used is the mean of all w so far (`report`). The paper asks all clients in each round. With a
smaller cohort, only the entries of its clients rise before the whole vector is projected, and the
sums in the step of w run over the cohort; if all its lambda_k are 0, w does not change.
Two public implementations differ: one ignores lambda when it averages, and one leaves the simplex
(it tests a sum that lacks its last term).

`update = "model"` replaces the gradient step by local training: w <- the lambda-weighted mean of
the clients' models, as in comparisons of fair methods. With gamma = 0 that is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import loss_and_gradient, train_loss
from isonomy.blocks.simplex import project
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """The model, the mixture of clients, the mean of all models so far, and their number."""

    params: Params
    lam: Tensor  # [clients]
    average: Params
    rounds: Tensor


@dataclass(frozen=True)
class AFL(Algorithm[Server]):
    """Agnostic federated learning."""

    name: ClassVar[str] = "afl"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Mohri et al., ICML 2019"
    reveals: ClassVar[str] = "each client's loss, and only the weighted sum of the clients' models"

    gamma: float = option(0.1, "step size of lambda", search=Grid((0.01, 0.1, 1.0)))
    update: Literal["gradient", "model"] = option(
        "gradient", "a client's work: one step on the full gradient, or local training"
    )
    report: Literal["average", "last"] = option(
        "average", "the model that is used: the mean of all models so far, or the last one"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise ValueError(f"gamma = {self.gamma}: give a number of at least 0.")

    def recommended_work(self) -> dict[str, float]:
        """With one gradient step per round, a larger learning rate than that of local training."""
        return {"lr": 1.0} if self.update == "gradient" else {}

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model and equal lambda."""
        lam = torch.full((clients,), 1 / clients, dtype=torch.float64)
        return Server(params, lam, params, torch.zeros((), dtype=torch.float64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Descent in w and ascent in lambda, both from the same point."""
        params, lam = server.params, server.lam
        weight = lam[cohort.ids] / lam.max()
        if self.update == "gradient":
            got = cohort.weigh(self.step, {"params": params}, seen=("loss",), weight=weight)
        else:
            got = cohort.weigh(self.train, {"params": params}, seen=("loss",), weight=weight)
        if got.total > 0:
            params = got.mean["params"]
        rise = self.gamma * got.seen.value["loss"].to(torch.float64)
        count = server.rounds + 1
        newest = (1 / count).to(torch.float32)
        return Server(
            params=params,
            lam=project(lam.index_add(0, got.seen.ids, rise)),
            average=tree.mix(server.average, params, newest),
            rounds=count,
        )

    def deployed(self, server: Server) -> Global:
        """The model that clients use."""
        return Global(server.average if self.report == "average" else server.params)

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def step(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, and one step along its gradient on all examples."""
        origin = message["params"]
        loss, g = loss_and_gradient(task, origin, client)
        params = tree.tmap(lambda p, d: p - client.rate * d, origin, g)
        return {"params": params, "loss": loss}, client.state

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, then training."""
        origin = message["params"]
        loss = train_loss(task, origin, client)
        return {"params": descend(task.loss, origin, client), "loss": loss}, client.state
