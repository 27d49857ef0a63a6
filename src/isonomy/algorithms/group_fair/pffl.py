"""PFFL: minimises the risk under bounds on the groups' losses, and gives a verdict at the end.

"Fair federated learning via bounded group loss" (PFFL), Algorithm 1. The saddle point of

    min_w max_{lambda >= 0, |lambda| <= B}  G(w, lambda) = beta F(w) + sum_z lambda_z r_z(w)

with F the mean of the K clients' mean losses and r_z the mean loss over cell z (a group, or a group
and a label) of all clients' examples, minus its bound zeta. In every round

    lambda_z = B exp(theta_z) / (1 + sum_z' exp(theta_z'))
    w <- mean over clients of local descent on  beta f_k(w) + K sum_z lambda_z r_{z,k}(w)
    theta <- theta + (eta / B) r(w)

The model is a mean of all w so far (`report`), and lambda_bar the same mean of all lambda. The
paper's mean gives every round the same weight; by default round t has a weight that grows as t^3,
so that the model does not carry the first rounds along.

Corollary 2 takes eta / B = nu / (2 rho^2 B), with rho a bound on all |r|, so it needs to know rho
and the rounds that nu takes. Unless `eta` is set, the step is that of AdaHedge
(`isonomy.blocks.constraints.ascended`), whose regret, the term of the multipliers in Theorem 1, is
bounded without knowing either. theta is then the sum of all r, times a rate that falls with what
was measured.

Where a bound binds, r of the solution is exactly 0, and training ends on either side of it. So the
multipliers follow r + margin * bound, which aims slightly below; `margin = 0` is the paper's rule.
Everything that is reported refers to the bounds themselves.

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
equal weights. Neither requires anything, so there is no verdict; else see
`isonomy.blocks.certificate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import certificate, saddle
from isonomy.blocks.constraints import (
    KINDS,
    Ascent,
    Constraints,
    ascended,
    cell_sums,
    constraints,
    mixed,
    multipliers,
    no_ascent,
    rate,
    reported,
    violations,
    weighted_losses,
)
from isonomy.blocks.descent import descend
from isonomy.blocks.feasibility import QUERIES, least_violation
from isonomy.blocks.groups import check_least
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task
from isonomy.core.verdict import About, Verdict
from isonomy.errors import ConfigError

SEARCHED = 20  # largest number of sums for one minimum of the search for feasibility

PartOfSum = Callable[[Batch, Tensor], Reply]
"""A sum over one page of examples, each with a weight."""


class Server(NamedTuple):
    """What the server keeps: models, multipliers, and the figures of the verdict."""

    params: Params  # the latest model
    average: Params  # the mean of all models so far
    ascent: Ascent  # what theta follows from
    lam: Tensor  # [cells]: the mean of all multipliers so far
    bounds: Tensor  # [cells]
    rounds: Tensor  # how many so far
    measurable: Tensor  # 1 if the duality gap can be measured, else 0
    ended: Tensor  # 1 if nu is small enough to end training, else 0
    certificate: dict[str, Tensor]  # 0 until `examine`


@dataclass(frozen=True)
class PFFL(Algorithm[Server]):
    """Bounded group loss by a federated saddle point, with a certificate."""

    name: ClassVar[str] = "pffl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fair federated learning via bounded group loss"
    reveals: ClassVar[str] = (
        "sums over the cohort of models and of counts and losses in each cell; at the end, and "
        "with track before, sums of gradients and Hessians of the risk; each client's size"
    )

    constraint: str = option(
        "bgl", "the constraints: bgl, cbgl, minmax, or the import path of your own class"
    )
    zeta: float = option(0.6, "bound on the mean loss of every cell", search=Range(0.3, 0.7))
    zetas: tuple[float, ...] = option((), "with cbgl, one bound for each label; inf for no bound")
    B: float = option(
        10.0,
        "upper bound on the sum of the multipliers: the strength of the constraints",
        search=Range(1.0, 100.0, log=True),
    )
    beta: float = option(1.0, "weight of the risk")
    eta: float | None = option(
        None,
        "the step size of theta is eta / B; by default chosen from what is measured (AdaHedge)",
    )
    margin: float = option(
        0.002, "training aims below the bounds by this share, so that a bound that binds can be met"
    )
    attributes: tuple[str, ...] = option(
        (), 'protected attributes; "sex*race" for their intersections; all if empty'
    )
    factor: Literal["K", 1] = option("K", "factor of the constraints in a client's objective")
    scale: bool = option(True, "whether the local objective is divided by beta + B")
    report: Literal["late", "average", "last"] = option(
        "late",
        "the model that is used: a mean in which late rounds count more, the mean, the latest",
    )
    track: int = option(0, "measure the duality gap nu every so many rounds; 0 for only at the end")
    stop: float = option(0.0, "end training when nu is at most this share of the risk; needs track")
    least: int = option(0, "a client withholds the sums of a cell with fewer examples")
    M: float | None = option(
        None, "the risk that Lemma 1 refers to; by default the log of the number of classes"
    )

    def __post_init__(self) -> None:
        for name in ("B", "beta", "zeta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")
        if self.eta is not None and not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0, or leave it unset.")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin = {self.margin}: give a number of at least 0 and below 1.")
        for name in ("track", "stop"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")
        if self.stop and not self.track:
            raise ValueError(
                f"stop = {self.stop} needs the duality gap: set track, the rounds between two "
                "measurements."
            )
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
    def gaps(self) -> int:
        """How often the duality gap is measured in a round at most."""
        return int(self.track > 0)

    @property
    def curves(self) -> int:
        """How many sums a round needs for that."""
        return self.gaps * saddle.CURVES

    @property
    def minima(self) -> int:
        """How many minima are searched for at the end: one for the gap, others for feasibility."""
        return 1 + QUERIES * (self.bounded.certifies and self.B > 0)

    @property
    def final_curves(self) -> int:
        """How many sums the end needs for them."""
        return saddle.CURVES + (self.minima - 1) * SEARCHED

    @property
    def bounded(self) -> Constraints:
        """The constraints."""
        return constraints(self.constraint, self.zeta, self.zetas, self.attributes)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and zeros for everything that will be computed."""
        bounds = self.bounded.bounds(task)
        measurable = saddle.measurable(task, params)
        if self.track and not measurable:
            raise ConfigError(
                "algorithm.track: the duality gap can be measured only for a linear model with at "
                f"most {saddle.WIDEST} weights and a smooth loss; remove track."
            )
        return Server(
            params=params,
            average=params,
            ascent=no_ascent(len(bounds)),
            lam=torch.zeros_like(bounds),
            bounds=bounds,
            rounds=torch.zeros((), dtype=torch.float64),
            measurable=torch.tensor(float(measurable)),
            ended=torch.zeros((), dtype=torch.float64),
            certificate=certificate.empty(len(bounds)),
        )

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Algorithm 1, from the measurement of w to the next w."""
        if self.track and len(cohort.ids) < cohort.clients:
            raise ConfigError(
                "algorithm.track: the duality gap needs all clients in every round; set "
                "cohort.size = 0, or remove track."
            )
        ascent, done, slack = server.ascent, server.rounds, self.bounded.slack
        sums = cohort.sum(self.measure, {"params": server.params})
        if float(done) and self.B:
            r = violations(sums["losses"], sums["count"], server.bounds)
            ascent = ascended(ascent, r + self.margin * server.bounds, slack)
            cohort.record(eta=self._step(ascent) * self.B, violation=r.max())
        lam = multipliers(self._step(ascent) * ascent.total, self.B, slack)
        price = torch.where(sums["count"] > 0, lam / sums["count"].clamp(min=1), 0.0)
        if self.factor == "K":
            price = price * len(cohort.ids)
        message = {"params": server.params, "price": price.float()}
        params = cohort.mean(self.local, message, weight="equal")["params"]
        average, weight = mixed(server.average, params, done, self.report)
        server = server._replace(
            params=params,
            average=average,
            ascent=ascent,
            lam=server.lam + (lam - server.lam) * weight,
            rounds=done + 1,
        )
        return self._tracked(server, cohort) if self.track else server

    def _step(self, ascent: Ascent) -> Tensor:
        """The step size of theta."""
        if self.eta is None:
            return rate(ascent, self.bounded.slack)
        return torch.tensor(self.eta / self.B if self.B else 0.0, dtype=torch.float64)

    def _tracked(self, server: Server, cohort: Cohort) -> Server:
        """Measure nu, if it is due, and decide whether training ends."""
        if int(server.rounds) % self.track:
            return server
        found = self._measured(server, cohort)
        if not bool(found["measured"]):
            return server
        nu, risk = found["gap_high"], found["risk"]
        cohort.record(nu=nu, risk=risk)
        small = bool(self.stop) and bool(nu <= self.stop * (self.beta or self.B) * risk)
        return server._replace(ended=torch.tensor(float(small), dtype=torch.float64))

    @property
    def may_end(self) -> bool:
        """Whether training can end before the last round."""
        return self.stop > 0

    def ended(self, server: Server) -> bool:
        """Whether nu is small enough."""
        return bool(server.ended)

    def examine(self, server: Server, cohort: Cohort) -> Server:
        """The figures of the verdict, from the clients' training and test examples."""
        found = self._measured(server, cohort)
        required = self.bounded.certifies and self.B > 0
        if required and bool(found["measured"]):
            over = found["violation"][found["count"] > 0]
            if len(over) and float(over.max()) > certificate.ROUNDING:
                found |= self._attainable(server, cohort, found)
        return server._replace(certificate=found)

    def _measured(self, server: Server, cohort: Cohort) -> dict[str, Tensor]:
        """Violations and risk of the model, and nu if it can be measured."""
        used = self.deployed(server).params
        sums = cohort.sum(self.audit, {"params": used})
        clients = len(cohort.ids)
        found = certificate.figures(sums, server.bounds, clients, self.beta, self.B)
        if not float(server.measurable):
            return found
        share = self.beta / clients
        curve, floor = self._asked(cohort, server.lam, sums["train"]["count"], share)
        upper = found["upper"] + server.lam @ server.bounds
        found |= certificate.gap(curve, floor, saddle.matrix(used), upper)
        if len(cohort.ids) != clients:  # sums over different clients cannot be compared
            found["measured"] = torch.zeros_like(found["measured"])
        return found

    def _attainable(
        self, server: Server, cohort: Cohort, found: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The least violation of any model, over the cells that were measured."""
        clients, count, bounds = len(cohort.ids), found["count"], server.bounds
        known = count > 0
        start = saddle.matrix(self.deployed(server).params)

        def lowest(inner: Tensor) -> tuple[Tensor, float]:
            nonlocal start
            lam = torch.zeros_like(bounds).masked_scatter(known, inner)
            curve, floor = self._asked(cohort, lam, count, 0.0)
            reached = saddle.minimised(curve, start, SEARCHED)
            got, start = floor(reached.at, reached.move), reached.at
            least = saddle.lower_bound(got["value"], got["residual"]) - float(lam @ bounds)
            return violations(got["losses"], count, bounds)[known], least

        bracket = least_violation(lowest, found["violation"][known], server.lam[known])
        figures = certificate.attainable(bracket)
        if len(cohort.ids) != clients:
            figures["searched"] = torch.zeros_like(figures["searched"])
        return figures

    def _asked(
        self, cohort: Cohort, lam: Tensor, count: Tensor, share: float
    ) -> tuple[Callable[[Tensor], Reply], Callable[[Tensor, Tensor], Reply]]:
        """The questions `curve` and `floor`, for the multipliers and a client's weight in F."""
        price = torch.where(count > 0, lam / count.clamp(min=1), 0.0)
        given = {"price": price, "share": torch.tensor(share, dtype=torch.float64)}
        return (
            lambda at: cohort.sum(self.curve, {"at": at, **given}),
            lambda at, move: cohort.sum(self.floor, {"at": at, "move": move, **given}),
        )

    def deployed(self, server: Server) -> Global:
        """The model that clients use."""
        return Global(server.params if self.report == "last" else server.average)

    def verdict(self, server: Server, about: About) -> Verdict | None:
        """Whether the constraints hold, and the evidence for it; None if there is none."""
        if not self.bounded.certifies or not self.B:
            return None
        found = certificate.verdict(
            server.certificate,
            certificate.Given(
                names=self.bounded.names(about),
                bounds=server.bounds,
                multipliers=server.lam,
                clients=about.clients,
                convex=saddle.linear(about.task),
                beta=self.beta,
                B=self.B,
                M=saddle.assumed_risk(about.task) if self.M is None else self.M,
                least=self.least,
            ),
        )
        moved = int(server.rounds) > 1  # the first round has no step
        eta = float(self._step(server.ascent) * self.B) if moved else None
        said = ""
        if self.eta is None and eta is not None:
            said = f" The multipliers' step was chosen from what was measured: eta = {eta:.3g}."
        return replace(found, text=found.text + said, facts={**found.facts, "eta": eta})

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
        times="gaps",
        at_end=1,
        train="group statistic",
        held="group statistic",
        risk="statistic",
    )
    def audit(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Sums over cells for the verdict, on training and on test examples."""
        found = certificate.audit(self.bounded, task, message["params"], client, self.least)
        return found, client.state

    @phase(
        "sum",
        times="curves",
        at_end="final_curves",
        value="statistic",
        gradient=Part("gradient", of="at"),
        hessian="statistic",
    )
    def curve(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of G at some weights, with its gradient and Hessian."""

        def part(page: Batch, weight: Tensor) -> Reply:
            return saddle.curvature(task, message["at"], page, weight)

        return self._summed(task, message, client, part), client.state

    @phase(
        "sum",
        times="gaps",
        at_end="minima",
        value="statistic",
        residual=Part("gradient", of="at"),
        losses="group statistic",
    )
    def floor(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of a lower bound on G, and its losses in each cell at `at`."""
        kept = reported(self.bounded, task, client, "train", self.least)

        def part(page: Batch, weight: Tensor) -> Reply:
            inside = (self.bounded.members(task, page) * page.weight.unsqueeze(-1)).double()
            losses = saddle.losses(task, message["at"], page)
            bound = saddle.dual(task, message["at"], message["move"], page, weight)
            return {**bound, "losses": kept * (inside.T @ losses)}

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
