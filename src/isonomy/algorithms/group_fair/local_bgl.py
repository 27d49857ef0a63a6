"""Local BGL: every client bounds the losses of the groups in its own data; PFFL's baseline.

"Fair federated learning via bounded group loss" compares its global constraints with local ones:
client k has its own multipliers lambda_k and constrains the mean losses r_{z,k} of the groups in
its own data, independently of other clients. The paper gives no formula; ours, in every round:

    theta_k <- theta_k + (eta / B) r_k(w)     (from the client's second round on)
    lambda_k = B exp(theta_k) / (1 + sum_z exp(theta_{k,z}))
    w <- mean over clients of local descent on  beta f_k(w) + sum_z lambda_{k,z} r_{z,k}(w)

with r_{z,k} = mean loss over the client's own cell z - zeta, 0 where it has no such examples. The
model is a mean of all w so far (`report`). The step eta is chosen as in PFFL, by each client from
its own violations, unless it is set. B = 0, beta = 1 is FedAvg with equal weights; with one
client it is PFFL. theta_k never leaves the client. `constraint = "cbgl"` bounds the losses by group
and label (Local CBGL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.constraints import (
    Ascent,
    Constraints,
    ascended,
    cell_sums,
    constraints,
    mixed,
    multipliers,
    no_ascent,
    rate,
    violations,
    weighted_losses,
)
from isonomy.blocks.descent import descend
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task


class Server(NamedTuple):
    """The latest model, the mean of all models so far, and how many these are."""

    params: Params
    average: Params
    rounds: Tensor


@dataclass(frozen=True)
class LocalBGL(Algorithm[Server]):
    """Bounded group loss within each client."""

    name: ClassVar[str] = "local_bgl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fair federated learning via bounded group loss"
    reveals: ClassVar[str] = "only the sum of the clients' models"

    constraint: Literal["bgl", "cbgl"] = option("bgl", "bounds by group, or by group and label")
    zeta: float = option(0.6, "bound on the mean loss of every cell", search=Range(0.3, 0.7))
    zetas: tuple[float, ...] = option((), "with cbgl, one bound for each label; inf for no bound")
    B: float = option(
        10.0, "upper bound on the sum of a client's multipliers", search=Range(1.0, 100.0, log=True)
    )
    beta: float = option(1.0, "weight of the client's mean loss")
    eta: float | None = option(
        None,
        "the step size of theta is eta / B; by default chosen from what is measured (AdaHedge)",
    )
    attributes: tuple[str, ...] = option(
        (), 'protected attributes; "sex*race" for their intersections; all if empty'
    )
    scale: bool = option(True, "whether the local objective is divided by beta + B")
    report: Literal["late", "average", "last"] = option(
        "late",
        "the model that is used: a mean in which late rounds count more, the mean, the latest",
    )

    def __post_init__(self) -> None:
        for name in ("B", "beta", "zeta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")
        if self.eta is not None and not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0, or leave it unset.")
        if self.beta + self.B <= 0:
            raise ValueError("beta and B are both 0: there is nothing to minimise; raise one.")
        if not all(zeta >= 0 for zeta in self.zetas):
            raise ValueError(f"zetas = {list(self.zetas)}: give numbers of at least 0, or inf.")

    @property
    def bounded(self) -> Constraints:
        """The constraints."""
        return constraints(self.constraint, self.zeta, self.zetas, self.attributes)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and no rounds in the mean."""
        self.bounded.bounds(task)  # raises an error if the constraints do not fit the task
        rounds = torch.zeros((), dtype=torch.float64)
        return Server(params, params, rounds)

    def init_client(self, task: Task, params: Params) -> State:
        """What the client's multipliers follow from, and whether it has trained."""
        ascent = no_ascent(len(self.bounded.bounds(task)))
        return {"ascent": ascent, "trained": torch.zeros((), dtype=torch.float64)}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """A round of FedAvg."""
        params = cohort.mean(self.local, {"params": server.params}, weight="equal")["params"]
        average, _ = mixed(server.average, params, server.rounds, self.report)
        return Server(params, average, server.rounds + 1)

    def deployed(self, server: Server) -> Global:
        """The model that clients use."""
        return Global(server.params if self.report == "last" else server.average)

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A client that was not in training predicts with the common model, unchanged."""
        return {}, client.state

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client updates its multipliers from its own violations, then trains."""
        inner, origin, state = self.bounded, message["params"], client.state
        scale = self.beta + self.B if self.scale else 1.0
        sums = cell_sums(inner, task, origin, client, "train", 0)
        known = sums["count"] > 0
        r = torch.where(known, violations(sums["losses"], sums["count"], inner.bounds(task)), 0.0)
        old: Ascent = state["ascent"]
        new, trained = ascended(old, r, inner.slack), state["trained"] > 0
        ascent: Ascent = tree.tmap(lambda a, b: torch.where(trained, a, b), new, old)
        fixed = self.eta / self.B if self.eta is not None and self.B else 0.0
        step = rate(ascent, inner.slack) if self.eta is None else fixed
        lam = torch.where(known, multipliers(step * ascent.total, self.B, inner.slack), 0.0)
        price: Tensor = (lam / sums["count"].clamp(min=1)).float()

        def weights(batch: Batch) -> Tensor:
            return self.beta + client.size * (inner.members(task, batch) @ price)

        after = {"ascent": ascent, "trained": torch.ones_like(state["trained"])}
        return {"params": descend(weighted_losses(task, weights, scale), origin, client)}, after
