"""PFFL: the least risk among models whose groups' losses are bounded, and a verdict at the end.

"Fair federated learning via bounded group loss" (PFFL), Algorithm 1. The saddle point of

    min_w max_{lambda >= 0, |lambda| <= B}  G(w, lambda) = beta F(w) + sum_z lambda_z r_z(w)

with F the mean of the K clients' mean losses and r_z the mean loss over cell z (a group, or a group
and a label) of all clients' examples, less its bound zeta. In every round

    lambda_z = B exp(theta_z) / (1 + sum_z' exp(theta_z'))
    w <- mean over clients of local descent on  beta f_k(w) + K sum_z lambda_z r_{z,k}(w)
    theta <- theta + (eta / B) r(w)

and the model is the mean of all w so far (`report`), lambda the mean of all lambda.

F carries 1/K and r is a sum over clients (r_{z,k} = sum of losses / m_z - zeta / K), so the mean of
the clients' descents follows G only with the factor K before r_{z,k}. `factor = 1` leaves it out,
as f_k + lambda' r_k may be read: the constraints are then K times weaker. `scale` divides the local
objective by beta + B, which is the step size 2 / ((beta + B) ...) of the paper's theorem. The paper
asks all clients in each round; with a smaller cohort, m_z and K are the cohort's. theta moves at
the beginning of the next round, when w is measured: the order of steps is the same. A client tells
nothing of a cell with fewer than `least` examples, and does not train for its sake.

`constraint = "minmax"` with beta = 0, B = 1, zeta = 0 has the objective of FedMinMax (Papadaki et
al., 2022), the worst group's loss, with multipliers on the simplex. B = 0, beta = 1 is FedAvg with
equal weights. For `verdict` see `isonomy.blocks.certificate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks import certificate, saddle
from isonomy.blocks.constraints import (
    KINDS,
    Constraints,
    cell_sums,
    constraints,
    multipliers,
    told,
    violations,
    weighted_losses,
)
from isonomy.blocks.descent import descend
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task
from isonomy.core.verdict import About, Verdict


@dataclass(frozen=True)
class PFFL(Algorithm):
    """Bounded group loss by a federated saddle point, with a certificate."""

    name: ClassVar[str] = "pffl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fair federated learning via bounded group loss"
    reveals: ClassVar[str] = (
        "sums over the cohort of models, of examples and losses in each cell, and at the end of "
        "gradients and Hessians of the risk; each client's size"
    )

    constraint: str = option("bgl", "bgl, cbgl, minmax, or the import path of your own")
    zeta: float = option(0.6, "bound on the mean loss of every cell")
    zetas: tuple[float, ...] = option((), "with cbgl, a bound for each label; inf for none")
    B: float = option(10.0, "largest sum of the multipliers: strength of the constraints")
    beta: float = option(1.0, "weight of the risk")
    eta: float = option(2.0, "step of theta, divided by B")
    attributes: tuple[str, ...] = option(
        (), 'protected attributes, "sex*race" for groups of both; all'
    )
    factor: Literal["K", 1] = option("K", "before the constraints in a client's objective")
    scale: bool = option(True, "whether local steps are divided by beta + B")
    report: Literal["average", "last"] = option(
        "average", "the model used: mean of all so far, or newest"
    )
    least: int = option(0, "examples below which a client withholds a cell's sums")
    M: float | None = option(
        None, "bound on the risk, for the verdict; log of the classes if left out"
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
        if self.least < 0:
            raise ValueError(f"least = {self.least}: give a number of examples of at least 0.")
        if self.M is not None and not 0 <= self.M < math.inf:
            raise ValueError(f"M = {self.M}: give a number of at least 0.")
        if ":" not in self.constraint and self.constraint not in KINDS:
            raise ValueError(f"constraint = {self.constraint!r}: use one of {', '.join(KINDS)}.")
        if self.constraint == "minmax" and (self.beta, self.B, self.zeta) != (0, 1, 0):
            raise ValueError("constraint = 'minmax' is beta = 0, B = 1, zeta = 0; set these too.")

    @property
    def bounded(self) -> Constraints:
        """The constraints."""
        return constraints(self.constraint, self.zeta, self.zetas, self.attributes)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, theta, the means of models and multipliers, and what the end will tell."""
        bounds = self.bounded.bounds(task)
        return {
            "params": params,
            "average": params,
            "theta": torch.zeros_like(bounds),
            "lam": torch.zeros_like(bounds),
            "bounds": bounds,
            "rounds": torch.zeros((), dtype=torch.float64),
            "measurable": torch.tensor(float(saddle.measurable(task, params))),
            "certificate": certificate.empty(len(bounds)),
        }

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Algorithm 1, from the measurement of w to the next w."""
        params, theta, done = server["params"], server["theta"], server["rounds"]
        seen = cohort.sum(self.measure, {"params": params})
        if float(done) and self.B:
            r = violations(seen["losses"], seen["count"], server["bounds"])
            theta = theta + self.eta / self.B * r
        lam = multipliers(theta, self.B, self.bounded.slack)
        price = torch.where(seen["count"] > 0, lam / seen["count"].clamp(min=1), 0.0)
        if self.factor == "K":
            price = price * len(cohort.ids)
        message = {"params": params, "price": price.float()}
        params = cohort.mean(self.local, message, weight="equal")["params"]
        newest = 1 / (done + 1)
        return server | {
            "params": params,
            "average": tree.mix(server["average"], params, newest.float()),
            "theta": theta,
            "lam": server["lam"] + (lam - server["lam"]) * newest,
            "rounds": done + 1,
        }

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """The figures of the verdict, from all clients' training and test examples."""
        used = self.deployed(server)["params"]
        seen = cohort.sum(self.audit, {"params": used})
        clients = len(cohort.ids)
        found = certificate.figures(seen, server["bounds"], clients, self.beta, self.B)
        if float(server["measurable"]) and self.bounded.asks:
            count = seen["train"]["count"]
            price = torch.where(count > 0, server["lam"] / count.clamp(min=1), 0.0)
            share = torch.tensor(self.beta / clients, dtype=torch.float64)
            given = {"price": price, "share": share}
            found |= certificate.gap(
                lambda at: cohort.sum(self.curve, {"at": at, **given}),
                lambda at, move: cohort.sum(self.floor, {"at": at, "move": move, **given}),
                saddle.matrix(used),
                found["upper"] + server["lam"] @ server["bounds"],
            )
            if len(cohort.ids) != clients:  # sums over different clients tell nothing
                found["measured"] = torch.zeros_like(found["measured"])
        return server | {"certificate": found}

    def deployed(self, server: Any) -> Any:
        """The model that clients use."""
        return {"params": server["average" if self.report == "average" else "params"]}

    def verdict(self, server: Any, about: About) -> Verdict | None:
        """Whether the constraints hold, and what that rests on."""
        risk = saddle.assumed_risk(about.task) if self.M is None else self.M
        return certificate.verdict(
            server["certificate"],
            server["bounds"],
            self.bounded.names(about),
            asks=self.bounded.asks,
            convex=saddle.linear(about.task),
            measurable=bool(server["measurable"]),
            beta=self.beta,
            B=self.B,
            M=risk,
            assumed=self.M is None,
            least=self.least,
        )

    @phase("sum", losses="group statistic", count="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Examples and losses of the received model in each cell."""
        found = cell_sums(self.bounded, task, message["params"], client, "train", self.least)
        return {"losses": found["losses"], "count": found["count"]}, client.state

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descent on the client's part of G; what is constant in w is left out."""
        inner, scale = self.bounded, self.beta + self.B if self.scale else 1.0
        price: Tensor = message["price"] * told(inner, task, client, "train", self.least).float()

        def say(batch: Batch) -> Tensor:
            return self.beta + client.size * (inner.members(task, batch) @ price)

        objective = weighted_losses(task, say, scale)
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
        """What the verdict needs of the model: sums over cells, in training and held out."""
        found = certificate.audit(self.bounded, task, message["params"], client, self.least)
        return found, client.state

    @phase("sum", value="statistic", gradient="statistic", hessian="statistic")
    def curve(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of G at some weights, with its gradient and Hessian."""

        def part(page: Batch, weight: Tensor) -> Reply:
            return saddle.curvature(task, message["at"], page, weight)

        return self._summed(task, message, client, part), client.state

    @phase("sum", value="statistic", residual="statistic")
    def floor(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of a bound of G from below."""

        def part(page: Batch, weight: Tensor) -> Reply:
            return saddle.dual(task, message["at"], message["move"], page, weight)

        return self._summed(task, message, client, part), client.state

    def _summed(self, task: Task, message: Message, client: Client, part: Any) -> Reply:
        """A sum over the client's examples, each with its weight in G."""
        inner = self.bounded
        price = message["price"] * told(inner, task, client, "train", self.least)
        share = message["share"] / client.size.double().clamp(min=1)
        total: Any = None
        for page in client.pages("train", saddle.PAGE):
            weight = (share + inner.members(task, page).double() @ price) * page.weight
            got = part(page, weight)
            total = got if total is None else tree.add(total, got)
        return total
