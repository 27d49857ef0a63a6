"""Prac-FedEBA+: entropy weights and gradient alignment in one exchange per round.

A cheap variant of FedEBA+ (see `fedeba`) that exchanges the same messages as FedAvg. The paper has
such a variant, but it was not clear to us how it approximates the fair gradient. The approximation
here is ours.

    x_i   <- local descent with h = (1 - a) grad F_i(x_i) + a g,    a = alpha if unfair, else 0
    Delta <- sum_i p_i (x_i - x),    p_i = q_i exp(F_i / tau) / sum_j q_j exp(F_j / tau)
    g     <- -Delta / (K rate),      x <- x + eta Delta

g, the last round's mean step, replaces the fair gradient; K is the p-weighted mean of the clients'
numbers of steps. Whether a round is unfair is judged by the cohort of the last round, from the
angle of its losses F_i(x) before training. There is no model alignment, because it would send a
second vector back, and the first round is not aligned. g is a gradient only under plain SGD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss, with_gradient
from isonomy.blocks.weights import entropy_score, entropy_weights, fair_angle
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """The model, and what the last round left: its mean step and the angle of its losses."""

    params: Params
    step: Params
    angle: Tensor  # in degrees


@dataclass(frozen=True)
class PracFedEBA(Algorithm[Server]):
    """Entropy-based aggregation aligned to the last round's step."""

    name: ClassVar[str] = "prac_fedeba"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "after FedEBA+, arXiv 2301.12407; the approximation is ours"
    reveals: ClassVar[str] = (
        "each client's losses and size, and only the weighted sum of the clients' models"
    )

    tau: float = option(
        1.0,
        "temperature of the weights: small values favour large losses, inf gives the prior",
        search=Range(0.05, 20.0, log=True),
    )
    alpha: float = option(
        0.5, "strength of the alignment, from 0 (none) to below 1", search=Grid((0.0, 0.5, 0.9))
    )
    theta: float = option(
        30.0,
        "angle in degrees above which the next round is unfair; 0: always, 90: never",
        search=Grid((0.0, 15.0, 30.0, 45.0, 90.0)),
    )
    prior: Literal["equal", "size"] = option("equal", "a client's weight if all losses are equal")
    weight_loss: Literal["local_after", "global_before"] = option(
        "local_after", "loss that weights a client: of its own model, or of the received one"
    )
    eta: float = option(1.0, "the server's step size")

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau = {self.tau}: give a number above 0, or inf.")
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha = {self.alpha}: give a number from 0 to below 1.")
        if not 0 <= self.theta <= 90:
            raise ValueError(f"theta = {self.theta}: give degrees from 0 to 90.")
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model, no step and no angle."""
        return Server(params, tree.zeros_like(params), torch.zeros((), dtype=torch.float64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """One exchange; the step and the angle are those of the last round."""
        params = server.params
        share = torch.tensor(self.alpha if server.angle > self.theta else 0.0)
        tilt = {
            name: lambda seen: entropy_score(seen["loss"], self.tau) for name in ("params", "steps")
        }
        got = cohort.weigh(
            self.local,
            {"params": params, "step": server.step, "share": share},
            seen=("loss", "before"),
            tilt=tilt,
            weight=self.prior,
        )
        angle = fair_angle(got.seen.value["before"])
        prior = cohort.sizes if self.prior == "size" else None
        cohort.record(
            angle=angle,
            alignment="gradient" if share > 0 else "none",
            weights=entropy_weights(got.seen.value["loss"], self.tau, prior),
        )
        each = -1 / (got.mean["steps"] * cohort.rate)
        return Server(
            params=tree.mix(params, got.mean["params"], self.eta),
            step=tree.tmap(lambda new, old: (new - old) * each, got.mean["params"], params),
            angle=torch.tensor(angle, dtype=torch.float64),
        )

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    @phase(
        "weigh",
        seen=("loss", "before"),
        params="model",
        steps="statistic",
        loss="statistic",
        before="statistic",
    )
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training in which `share` of every step is the last round's mean step."""
        origin = message["params"]
        objective = with_gradient(task.loss, message["step"], message["share"])
        params = descend(objective, origin, client)
        before = train_loss(task, origin, client)
        loss = before if self.weight_loss == "global_before" else train_loss(task, params, client)
        steps = client.plan.count.to(torch.float32)
        return {"params": params, "steps": steps, "loss": loss, "before": before}, client.state
