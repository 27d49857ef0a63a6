"""PFFL: minimises the risk under bounds on the groups' losses, and gives a verdict at the end.

"Fair federated learning via bounded group loss" (PFFL), Algorithm 1. The saddle point of

    min_w max_{lambda >= 0, |lambda| <= B}  G(w, lambda) = beta F(w) + sum_z lambda_z r_z(w)

with F the mean of the K clients' mean losses and r_z the mean loss over cell z (a group, or a group
and a label) of all clients' examples, minus its bound zeta. In every round

    lambda_z = B exp(theta_z) / (1 + sum_z' exp(theta_z'))
    w <- mean over clients of local descent on  beta f_k(w) + K sum_z lambda_z r_{z,k}(w)
    theta <- theta + (eta / B) r(w)

The model is the mean of all w so far (`report`), and lambda_bar the mean of all lambda.

F carries 1/K and r is a sum over clients (r_{z,k} = sum of losses / m_z - zeta / K), so the mean of
the clients' descents follows G only with the factor K before r_{z,k}. `factor = 1` omits it, which
is another reading of f_k + lambda' r_k; the constraints are then K times weaker. `scale` divides
the local objective by beta + B, which is the step size 2 / ((beta + B) ...) of the paper's theorem.
In the paper all clients take part in each round; with a smaller cohort, m_z and K are those of the
cohort. theta is updated at the beginning of the next round, when w is measured; the order of steps
is the same. A client withholds the sums of a cell with fewer than `least` examples, and its local
objective does not include that cell.

`constraint = "minmax"` with beta = 0, B = 1, zeta = 0 has the objective of FedMinMax (Papadaki et
al., 2022): the worst group's loss, with multipliers on the simplex. B = 0, beta = 1 is FedAvg with
equal weights. The verdict is explained in `isonomy.blocks.certificate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import certificate, saddle
from isonomy.blocks.constraints import (
    KINDS,
    Constraints,
    cell_sums,
    constraints,
    multipliers,
    reported,
    violations,
    weighted_losses,
)
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import check_least
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.task import Batch, Params, Task
from isonomy.core.verdict import About, Verdict

PartOfSum = Callable[[Batch, Tensor], Reply]
"""A sum over one page of examples, each with a weight."""


class Server(NamedTuple):
    """What the server keeps: models, multipliers, and the figures of the verdict."""

    params: Params  # the latest model
    average: Params  # the mean of all models so far
    theta: Tensor  # [cells]
    lam: Tensor  # [cells]: the mean of all multipliers so far
    bounds: Tensor  # [cells]
    rounds: Tensor  # how many so far
    measurable: Tensor  # 1 if the duality gap can be measured, else 0
    certificate: dict[str, Tensor]  # 0 until `finish`


@dataclass(frozen=True)
class PFFL(Algorithm[Server]):
    """Bounded group loss by a federated saddle point, with a certificate."""

    name: ClassVar[str] = "pffl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fair federated learning via bounded group loss"
    reveals: ClassVar[str] = (
        "sums over the cohort of models and of counts and losses in each cell, and at the end sums "
        "of gradients and Hessians of the risk; each client's size"
    )

    constraint: str = option(
        "bgl", "the constraints: bgl, cbgl, minmax, or the import path of your own class"
    )
    zeta: float = option(0.6, "bound on the mean loss of every cell")
    zetas: tuple[float, ...] = option((), "with cbgl, one bound for each label; inf for no bound")
    B: float = option(
        10.0, "upper bound on the sum of the multipliers: the strength of the constraints"
    )
    beta: float = option(1.0, "weight of the risk")
    eta: float = option(2.0, "the step size of theta is eta / B")
    attributes: tuple[str, ...] = option(
        (), 'protected attributes; "sex*race" for their intersections; all if empty'
    )
    factor: Literal["K", 1] = option("K", "factor of the constraints in a client's objective")
    scale: bool = option(True, "whether the local objective is divided by beta + B")
    report: Literal["average", "last"] = option(
        "average", "the model that is used: the mean of all so far, or the latest"
    )
    least: int = option(0, "a client withholds the sums of a cell with fewer examples")
    M: float | None = option(
        None, "bound on the risk, for the verdict; by default the log of the number of classes"
    )

    def __post_init__(self) -> None:
        for name in ("B", "beta", "zeta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0.")
        if self.beta + self.B <= 0:
            raise ValueError("beta and B are both 0: there is nothing to minimise; raise one.")
        if not all(zeta >= 0 for zeta in self.zetas):
            raise ValueError(f"zetas = {list(self.zetas)}: give numbers of at least 0, or inf.")
        check_least(self.least)
        if self.M is not None and not 0 <= self.M < math.inf:
            raise ValueError(f"M = {self.M}: give a number of at least 0.")
        if ":" not in self.constraint and self.constraint not in KINDS:
            raise ValueError(f"constraint = {self.constraint!r}: use one of {', '.join(KINDS)}.")
        if self.constraint == "minmax" and (self.beta, self.B, self.zeta) != (0, 1, 0):
            raise ValueError("constraint = 'minmax' needs beta = 0, B = 1 and zeta = 0; set these.")

    @property
    def bounded(self) -> Constraints:
        """The constraints."""
        return constraints(self.constraint, self.zeta, self.zetas, self.attributes)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and zeros for everything that will be computed."""
        bounds = self.bounded.bounds(task)
        return Server(
            params=params,
            average=params,
            theta=torch.zeros_like(bounds),
            lam=torch.zeros_like(bounds),
            bounds=bounds,
            rounds=torch.zeros((), dtype=torch.float64),
            measurable=torch.tensor(float(saddle.measurable(task, params))),
            certificate=certificate.empty(len(bounds)),
        )

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Algorithm 1, from the measurement of w to the next w."""
        theta, done = server.theta, server.rounds
        sums = cohort.sum(self.measure, {"params": server.params})
        if float(done) and self.B:
            r = violations(sums["losses"], sums["count"], server.bounds)
            theta = theta + self.eta / self.B * r
        lam = multipliers(theta, self.B, self.bounded.slack)
        price = torch.where(sums["count"] > 0, lam / sums["count"].clamp(min=1), 0.0)
        if self.factor == "K":
            price = price * len(cohort.ids)
        message = {"params": server.params, "price": price.float()}
        params = cohort.mean(self.local, message, weight="equal")["params"]
        latest = 1 / (done + 1)
        return server._replace(
            params=params,
            average=tree.mix(server.average, params, latest.float()),
            theta=theta,
            lam=server.lam + (lam - server.lam) * latest,
            rounds=done + 1,
        )

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """The figures of the verdict, from all clients' training and test examples."""
        used = self.deployed(server).params
        sums = cohort.sum(self.audit, {"params": used})
        clients = len(cohort.ids)
        found = certificate.figures(sums, server.bounds, clients, self.beta, self.B)
        if float(server.measurable) and self.bounded.certifies:
            count = sums["train"]["count"]
            price = torch.where(count > 0, server.lam / count.clamp(min=1), 0.0)
            share = torch.tensor(self.beta / clients, dtype=torch.float64)
            given = {"price": price, "share": share}
            found |= certificate.gap(
                lambda at: cohort.sum(self.curve, {"at": at, **given}),
                lambda at, move: cohort.sum(self.floor, {"at": at, "move": move, **given}),
                saddle.matrix(used),
                found["upper"] + server.lam @ server.bounds,
            )
            if len(cohort.ids) != clients:  # sums over different clients cannot be compared
                found["measured"] = torch.zeros_like(found["measured"])
        return server._replace(certificate=found)

    def deployed(self, server: Server) -> Global:
        """The model that clients use."""
        return Global(server.average if self.report == "average" else server.params)

    def verdict(self, server: Server, about: About) -> Verdict | None:
        """Whether the constraints hold, and the evidence for it."""
        risk = saddle.assumed_risk(about.task) if self.M is None else self.M
        return certificate.verdict(
            server.certificate,
            server.bounds,
            self.bounded.names(about),
            certifies=self.bounded.certifies,
            convex=saddle.linear(about.task),
            measurable=bool(server.measurable),
            beta=self.beta,
            B=self.B,
            M=risk,
            assumed=self.M is None,
            least=self.least,
        )

    @phase("sum", losses="group statistic", count="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Count of examples and sum of losses in each cell, for the received model."""
        sums = cell_sums(self.bounded, task, message["params"], client, "train", self.least)
        return {"losses": sums["losses"], "count": sums["count"]}, client.state

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descent on the client's part of G, without the terms that do not depend on w."""
        inner, scale = self.bounded, self.beta + self.B if self.scale else 1.0
        price: Tensor = (
            message["price"] * reported(inner, task, client, "train", self.least).float()
        )

        def weights(batch: Batch) -> Tensor:
            return self.beta + client.size * (inner.members(task, batch) @ price)

        objective = weighted_losses(task, weights, scale)
        return {"params": descend(objective, message["params"], client)}, client.state

    @phase(
        "sum",
        train="group statistic",
        held="group statistic",
        risk="statistic",
        norms="group statistic",
        size="statistic",
    )
    def audit(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Sums over cells for the verdict, on training and on test examples."""
        found = certificate.audit(self.bounded, task, message["params"], client, self.least)
        return found, client.state

    @phase(
        "sum",
        times=100,
        value="statistic",
        gradient=Part("gradient", of="at"),
        hessian="statistic",
    )
    def curve(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of G at some weights, with its gradient and Hessian."""

        def part(page: Batch, weight: Tensor) -> Reply:
            return saddle.curvature(task, message["at"], page, weight)

        return self._summed(task, message, client, part), client.state

    @phase("sum", value="statistic", residual=Part("gradient", of="at"))
    def floor(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of a lower bound on G."""

        def part(page: Batch, weight: Tensor) -> Reply:
            return saddle.dual(task, message["at"], message["move"], page, weight)

        return self._summed(task, message, client, part), client.state

    def _summed(self, task: Task, message: Message, client: Client, part: PartOfSum) -> Reply:
        """A sum over the client's examples, each with its weight in G."""
        inner = self.bounded
        price = message["price"] * reported(inner, task, client, "train", self.least)
        share = message["share"] / client.size.double().clamp(min=1)
        total: Reply = None
        for page in client.pages("train", saddle.PAGE):
            weight = (share + inner.members(task, page).double() @ price) * page.weight
            got = part(page, weight)
            total = got if total is None else tree.add(total, got)
        return total
