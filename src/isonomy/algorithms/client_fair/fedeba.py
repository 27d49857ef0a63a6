"""FedEBA+: maximum-entropy weights by loss, with aligned local training or aligned averaging.

"Entropy-driven fair and effective federated learning" (FedEBA+; arXiv 2301.12407 and later). Each
client of the cohort is weighted by its loss, with a prior q (equal, or by size):

    p_i = q_i exp(F_i / tau) / sum_j q_j exp(F_j / tau),        x <- x + eta Delta

If the angle between the losses F_i(x) of the received model and a vector of equal losses is more
than theta degrees, the round is unfair, and every local step is mixed with the fair gradient at x:

    h = (1 - alpha) grad F_i(x_i) + alpha sum_j p~_j grad F_j(x),    p~ from the losses F_j(x)
    Delta = sum_i p_i (x_i - x)

Otherwise the mean of the clients' first steps, which have not drifted yet, corrects the update:

    Delta = (1 - alpha) sum_i p_i (x_i - x) + alpha sum_i q_i (x_i1 - x)

F_i is the mean loss over all training examples of client i. p uses F_i(x_i), the loss of the
client's own model after training (`local_after`); the paper's text can also be read as F_i(x),
which is `global_before`. The first step is used as it is or, with `ideal_scale = "K"`, multiplied
by the client's number of local steps. The paper does not say on which examples the fair gradient
is computed: see `gradient`. tau = inf with alpha = 0 is FedAvg with the prior's weights.

Every round records the alignment that was used, the clients' weights p and, if the losses F_i(x)
were collected (alpha above 0 and `align` auto or gradient), their angle in degrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import extrapolated, first_step, gradient, train_loss, with_gradient
from isonomy.blocks.weights import entropy_score, entropy_weights, fair_angle
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FedEBA(Algorithm[Global]):
    """Entropy-based aggregation with model and gradient alignment."""

    name: ClassVar[str] = "fedeba"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "FedEBA+, arXiv 2301.12407"
    reveals: ClassVar[str] = (
        "each client's losses and size, and only weighted sums of the clients' models and gradients"
    )

    tau: float = option(
        1.0,
        "temperature of the weights: small values favour large losses, inf gives the prior",
        search=Range(0.05, 20.0, log=True),
    )
    alpha: float = option(
        0.0, "strength of the alignment, 0 (none) to 1", search=Grid((0.0, 0.5, 0.9))
    )
    theta: float = option(
        30.0,
        "angle in degrees above which a round is unfair; 0: always, 90: never",
        search=Grid((0.0, 15.0, 30.0, 45.0, 90.0)),
    )
    align: Literal["auto", "model", "gradient", "none"] = option(
        "auto", "kind of alignment; auto: chosen in each round by the angle"
    )
    prior: Literal["equal", "size"] = option("equal", "a client's weight if all losses are equal")
    weight_loss: Literal["local_after", "global_before"] = option(
        "local_after", "loss that weights a client: of its own model, or of the received one"
    )
    ideal_scale: Literal[1, "K"] = option(
        1, "factor of the first step: 1, or the client's number of steps (K)"
    )
    gradient: Literal["first", "full"] = option(
        "first", "examples of the fair gradient: the first minibatch, or all"
    )
    eta: float = option(1.0, "the server's step size")

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau = {self.tau}: give a number above 0, or inf.")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha = {self.alpha}: give a number from 0 to 1.")
        if not 0 <= self.theta <= 90:
            raise ValueError(f"theta = {self.theta}: give degrees from 0 to 90.")
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """The losses decide which alignment is used, then weighted averaging."""
        params = server.params
        align = self.align if self.alpha > 0 else "none"
        if align in ("auto", "gradient"):
            losses = cohort.gather(self.measure, {"params": params}).value["loss"]
            angle = fair_angle(losses)
            cohort.record(angle=angle)
            if align == "auto":
                align = "gradient" if angle > self.theta else "model"
        weighted = partial(
            cohort.weigh,
            seen=("loss",),
            tilt={"params": lambda seen: entropy_score(seen["loss"], self.tau)},
            weight=self.prior,
        )
        if align == "gradient":
            weight = self._weights(losses, cohort)
            fair = cohort.mean(self.slope, {"params": params}, weight=weight)["gradient"]
            got = weighted(self.lean, {"params": params, "fair": fair})
        elif align == "model":
            got = weighted(self.stepped, {"params": params})
        else:
            got = weighted(self.local, {"params": params})
        cohort.record(alignment=align, weights=self._weights(got.seen.value["loss"], cohort))
        target = got.mean["params"]
        if "first" in got.mean:
            target = tree.mix(target, got.mean["first"], self.alpha)
        return Global(tree.mix(params, target, self.eta))

    def _weights(self, losses: Tensor, cohort: Cohort) -> Tensor:
        """The weights of the cohort's clients, given their losses."""
        return entropy_weights(losses, self.tau, cohort.sizes if self.prior == "size" else None)

    @phase("gather", loss="statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model."""
        return {"loss": train_loss(task, message["params"], client)}, client.state

    @phase("mean", gradient=Part("gradient", of="params"))
    def slope(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The gradient at the received model."""
        return {"gradient": gradient(task, message["params"], client, self.gradient)}, client.state

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training, and the loss that weights the result."""
        params = descend(task.loss, message["params"], client)
        return {"params": params, "loss": self._loss(task, message, params, client)}, client.state

    @phase(
        "weigh", seen=("loss",), params="model", first=Part("model", of="params"), loss="statistic"
    )
    def stepped(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training, and the model after its first step."""
        origin = message["params"]
        params = descend(task.loss, origin, client)
        first = first_step(task.loss, origin, client)
        if self.ideal_scale == "K":
            first = extrapolated(origin, first, client.plan.count.to(torch.float32))
        loss = self._loss(task, message, params, client)
        return {"params": params, "first": first, "loss": loss}, client.state

    @phase("weigh", seen=("loss",), params="model", loss="statistic")
    def lean(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training in which every step is mixed with the fair gradient."""
        objective = with_gradient(task.loss, message["fair"], self.alpha)
        params = descend(objective, message["params"], client)
        return {"params": params, "loss": self._loss(task, message, params, client)}, client.state

    def _loss(self, task: Task, message: Message, params: Params, client: Client) -> Tensor:
        """The loss that weights a client."""
        at = message["params"] if self.weight_loss == "global_before" else params
        return train_loss(task, at, client)
