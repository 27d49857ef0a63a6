"""AFL: agnostic federated learning; the mixture of clients that is worst for the model decides.

Mohri, Sivek and Suresh, "Agnostic federated learning", ICML 2019: min_w max_lambda
sum_k lambda_k F_k(w) over the simplex, by descent in w and ascent in lambda:

    w      <- w - rate * sum_k lambda_k grad F_k(w) / sum_k lambda_k
    lambda <- projection on the simplex of (lambda + gamma F(w))

with both right-hand sides at the old w and lambda, lambda = 1 / N at first, and the mean of all
w so far as the model that is used (`report`). Every client has its lambda. The paper asks all
clients in each round; with a smaller cohort only its members' entries rise before the projection
of the whole vector, and sums in w's step run over the cohort; if its lambda are all 0, w stays.
Two public versions of this do something else: one ignores lambda when it averages, one leaves the
simplex (it tests a sum that lacks its last term).

`update = "model"` replaces the gradient step by local training, w <- the lambda-weighted mean of
the clients' models, as comparisons of fair methods do; with gamma = 0 that is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import gradient, train_loss
from isonomy.blocks.simplex import project
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class AFL(Algorithm):
    """Agnostic federated learning."""

    name: ClassVar[str] = "afl"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Mohri et al., ICML 2019"
    reveals: ClassVar[str] = "each client's loss; of models only the weighted sum"

    gamma: float = option(0.1, "step size of lambda")
    update: Literal["gradient", "model"] = option(
        "gradient", "one full gradient, or local training"
    )
    report: Literal["average", "last"] = option(
        "average", "the model used: mean of all so far, or newest"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise ValueError(f"gamma = {self.gamma}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, the mixture, and the mean of all models so far."""
        return {
            "params": params,
            "lam": torch.full((clients,), 1 / clients, dtype=torch.float64),
            "average": params,
            "rounds": torch.zeros((), dtype=torch.float64),
        }

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Both steps from the same point."""
        params, lam = server["params"], server["lam"]
        say = lam[cohort.ids] / lam.max()
        if self.update == "gradient":
            got = cohort.weigh(self.step, {"params": params}, seen=("loss",), weight=say)
        else:
            got = cohort.weigh(self.train, {"params": params}, seen=("loss",), weight=say)
        if got.total > 0:
            params = got.mean["params"]
        rise = self.gamma * got.seen.value["loss"].to(torch.float64)
        count = server["rounds"] + 1
        newest = (1 / count).to(torch.float32)
        return {
            "params": params,
            "lam": project(lam.index_add(0, got.seen.ids, rise)),
            "average": tree.mix(server["average"], params, newest),
            "rounds": count,
        }

    def deployed(self, server: Any) -> Any:
        """The model that clients use."""
        return {"params": server["average" if self.report == "average" else "params"]}

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def step(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, and one step along its gradient on all examples."""
        origin = message["params"]
        g = gradient(task, origin, client, "full")
        params = tree.tmap(lambda p, d: p - client.rate * d, origin, g)
        return {"params": params, "loss": train_loss(task, origin, client)}, client.state

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, then training."""
        origin = message["params"]
        loss = train_loss(task, origin, client)
        return {"params": descend(task.loss, origin, client), "loss": loss}, client.state
