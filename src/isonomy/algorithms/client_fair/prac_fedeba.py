"""Prac-FedEBA+: entropy weights and gradient alignment in one exchange a round.

A cheap variant of FedEBA+ (see `fedeba`) that keeps FedAvg's pattern of messages. The paper has
one, but how it approximates the fair gradient we could not read: this approximation is ours.

    x_i   <- local descent with h = (1 - a) grad F_i(x_i) + a g,    a = alpha if unfair, else 0
    Delta <- sum_i p_i (x_i - x),    p_i = q_i exp(F_i / tau) / sum_j q_j exp(F_j / tau)
    g     <- -Delta / (K rate),      x <- x + eta Delta

g, the last round's mean step, stands for the fair gradient, K being the p-weighted mean of the
clients' numbers of steps. Whether a round is unfair is judged by the last round's cohort: by the
angle of its losses F_i(x) before training. There is no model alignment, which would send a second
vector back, and the first round is not aligned. g is a gradient for plain SGD only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import leaning, train_loss
from isonomy.blocks.weights import entropy_score, fair_angle
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class PracFedEBA(Algorithm):
    """Entropy-based aggregation aligned to the last round's step."""

    name: ClassVar[str] = "prac_fedeba"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "after FedEBA+, arXiv 2301.12407; the approximation is ours"
    reveals: ClassVar[str] = "each client's losses and size; of models only the weighted sum"

    tau: float = option(
        0.1, "temperature of the weights: small favours the worst off, inf is the prior"
    )
    alpha: float = option(0.5, "strength of the alignment, 0 (none) to below 1")
    theta: float = option(30.0, "degrees beyond which the next round is unfair; 0 always, 90 never")
    prior: Literal["equal", "size"] = option("equal", "a client's say where losses are equal")
    weight_loss: Literal["local_after", "global_before"] = option(
        "local_after", "whose loss weighs"
    )
    eta: float = option(1.0, "the server's step")

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau = {self.tau}: give a number above 0, or inf.")
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha = {self.alpha}: give a number from 0 to below 1.")
        if not 0 <= self.theta <= 90:
            raise ValueError(f"theta = {self.theta}: give degrees from 0 to 90.")
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, the last round's mean step, and whether it was unfair."""
        return {
            "params": params,
            "step": tree.zeros_like(params),
            "angle": torch.zeros((), dtype=torch.float64),
        }

    def round(self, server: Any, cohort: Cohort) -> Any:
        """One exchange: what the last round left stands in for what would have to be asked."""
        params = server["params"]
        share = torch.tensor(self.alpha if server["angle"] > self.theta else 0.0)
        tilt = {
            name: lambda seen: entropy_score(seen["loss"], self.tau) for name in ("params", "steps")
        }
        got = cohort.weigh(
            self.local,
            {"params": params, "step": server["step"], "share": share},
            seen=("loss", "before"),
            tilt=tilt,
            weight=self.prior,
        )
        each = -1 / (got.mean["steps"] * cohort.rate)
        return {
            "params": tree.mix(params, got.mean["params"], self.eta),
            "step": tree.tmap(lambda new, old: (new - old) * each, got.mean["params"], params),
            "angle": torch.tensor(fair_angle(got.seen.value["before"]), dtype=torch.float64),
        }

    def deployed(self, server: Any) -> Any:
        """The model alone."""
        return {"params": server["params"]}

    @phase(
        "weigh",
        seen=("loss", "before"),
        params="model",
        steps="statistic",
        loss="statistic",
        before="statistic",
    )
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training that leans to the last round's step as far as `share` says."""
        origin = message["params"]
        params = descend(leaning(task.loss, message["step"], message["share"]), origin, client)
        before = train_loss(task, origin, client)
        loss = before if self.weight_loss == "global_before" else train_loss(task, params, client)
        steps = client.plan.count.to(torch.float32)
        return {"params": params, "steps": steps, "loss": loss, "before": before}, client.state
