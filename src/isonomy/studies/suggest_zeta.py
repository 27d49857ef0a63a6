"""Suggests zeta, PFFL's bound on the losses of groups: which bounds a model can meet at all.

Two models are compared, both on the training examples of all clients:

    the fairest     least = min_w max_z loss_z(w): no model meets a smaller zeta
    the most useful the minimum of the risk F, the mean of the clients' mean losses: it meets every
                    zeta from its worst loss on, without any constraint

A zeta between the two is feasible and has an effect. For a linear model, `least` is found by
Newton's method on tau log sum_z exp(loss_z / tau), for smaller and smaller tau. Its minimum is also
that of sum_z p_z loss_z, with p the softmax of losses / tau, so a lower bound on the latter over
all w (the dual bound of `isonomy.blocks.saddle`) proves that no model has a worst loss below it.
The two ends differ by at most tau log Z, and by what is left of Newton's method. All exchanges are
sums over clients.

For other models both are found by training, PFFL with beta = 0, B = 1, zeta = 0 and FedAvg: losses
that were reached, which prove nothing about smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.blocks import saddle
from isonomy.blocks.constraints import Constraints, cell_sums, reported
from isonomy.blocks.measure import train_loss
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.phase import Part, phase
from isonomy.core.task import Params, Task
from isonomy.core.verdict import About
from isonomy.errors import ConfigError
from isonomy.runs.build import Setting
from isonomy.studies.plain_training import everyone, trained

TAUS = (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)  # the smoothing, and how it falls
NARROW = 0.01  # a range this small relative to the losses leaves little to choose


@dataclass(frozen=True)
class ZetaSuggestion:
    """What bounds are feasible, and a value between the least and the largest that has an effect.

    `least` is the worst loss of the fairest model found, and `proved` a loss below which no model's
    worst loss is; None if the model is not linear. `fair` and `free` are the losses in each cell of
    the fairest model and of the most useful one; `fair_risk` and `free_risk` their risks.
    """

    zeta: float
    least: float
    proved: float | None
    unconstrained: float
    fair: dict[str, float]
    free: dict[str, float]
    fair_risk: float
    free_risk: float
    B: float  # the least sum of multipliers that is sure to suffice for zeta
    empty: tuple[str, ...]  # cells without training examples

    def text(self) -> str:
        """The suggestion as a few lines of text."""
        end = f"{self.unconstrained:.4f}"
        lines = [f"zeta = {self.zeta:.4f}, half way between the ends of the range."]
        if self.proved is not None:
            lines.append(
                f"Below {self.proved:.4f}: infeasible (proved). No linear model has a smaller "
                "worst group loss on the training examples; a model with "
                f"{self.least:.4f} was found."
            )
        else:
            lines.append(
                f"Below {self.least:.4f}: not reached. The model is not linear or too large, so "
                "this is the worst group loss that training reached, not a proof."
            )
        lines.append(
            f"From {end} on: no effect. Without constraints, the worst group loss is already {end}."
        )
        width = max(map(len, self.fair))
        lines.append(f"{'':{width}}  fairest  unconstrained")
        lines += [f"{n:{width}}  {v:7.4f}  {self.free[n]:13.4f}" for n, v in self.fair.items()]
        lines.append(f"{'risk':{width}}  {self.fair_risk:7.4f}  {self.free_risk:13.4f}")
        if self.unconstrained - self.least <= NARROW * self.unconstrained:
            lines.append(
                "The range is narrow: with this model and these features, bounds on group losses "
                "can change little."
            )
        elif self.proved is not None:
            lines.append(f"algorithm.B = {self.B:.3g} or more is sure to suffice for this zeta.")
        if self.empty:
            lines.append(f"Without training examples, and left out: {', '.join(self.empty)}.")
        lines.append("All losses are on training examples.")
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """The values as JSON."""
        return {**self.__dict__, "empty": list(self.empty)}


def suggest_zeta(setting: Setting, pffl: PFFL) -> ZetaSuggestion:
    """Compute both models and the range between them, for the cells of `pffl`."""
    inner, task = pffl.bounded, setting.task
    cohort = everyone(setting)
    measures = Measures(inner, pffl.least)
    counts = cohort.sum(measures.sums, {"params": setting.params})["count"]
    cells = torch.nonzero(counts > 0).flatten()
    if not len(cells):
        raise ConfigError(
            "no client reported a group with training examples, so no zeta can be suggested; lower "
            "algorithm.least, or name other attributes in algorithm.attributes."
        )
    names = inner.names(About(task, setting.federation.attributes, setting.federation.labels))
    found = (
        _solved(setting, measures, cohort, counts)
        if saddle.measurable(task, setting.params)
        else _trained(setting, pffl, measures, cohort, counts)
    )
    fair, free = (
        {names[z]: float(losses[z]) for z in cells.tolist()} for losses in (found.fair, found.free)
    )
    least, most = max(fair.values()), max(free.values())
    if most < least:  # training found no fairer model than the unconstrained one
        least, fair, found = most, free, replace(found, fair_risk=found.free_risk)
    zeta = (least + most) / 2
    price = max(found.fair_risk - found.free_risk, 0.0)
    return ZetaSuggestion(
        zeta=zeta,
        least=least,
        proved=found.proved,
        unconstrained=most,
        fair=fair,
        free=free,
        fair_risk=found.fair_risk,
        free_risk=found.free_risk,
        # Slater: at the best multipliers, |lambda| (zeta - least) <= F(fairest) - F(best)
        B=pffl.beta * price / (zeta - least) if zeta > least else math.inf,
        empty=tuple(names[z] for z in torch.nonzero(counts <= 0).flatten().tolist()),
    )


@dataclass(frozen=True)
class _Found:
    """The losses of the fairest model and of the one of least risk, and the proof, if any."""

    fair: Tensor  # [Z]
    free: Tensor
    fair_risk: float
    free_risk: float
    proved: float | None = None


def _trained(
    setting: Setting, pffl: PFFL, measures: Measures, cohort: Cohort, counts: Tensor
) -> _Found:
    """Both models by training."""
    zetas = tuple(0.0 if zeta < math.inf else zeta for zeta in pffl.zetas)
    changes: dict[str, Any] = {"beta": 0.0, "B": 1.0, "zeta": 0.0, "zetas": zetas}
    methods: tuple[Algorithm, ...] = (replace(pffl, **changes), FedAvg(weight="equal"))
    out = []
    for method in methods:
        server, _ = trained(setting, method)
        got = cohort.sum(measures.sums, {"params": method.deployed(server).params})
        losses = got["losses"] / counts.clamp(min=1)
        out.append((losses, float(got["risk"]) / len(cohort.ids)))
    return _Found(out[0][0], out[1][0], out[0][1], out[1][1])


def _solved(setting: Setting, measures: Measures, cohort: Cohort, counts: Tensor) -> _Found:
    """Both models by Newton's method, and the proof."""
    known, clients = counts > 0, len(cohort.ids)
    m = counts.clamp(min=1)
    nothing = torch.zeros_like(counts)

    def curve(at: Tensor, price: Tensor, share: float) -> Reply:
        given = {"price": price, "share": torch.tensor(share, dtype=torch.float64)}
        return cohort.sum(measures.curve, {"at": at, **given})

    def losses(at: Tensor) -> Tensor:
        got = cohort.sum(measures.losses, {"at": at})["losses"] / m
        return torch.where(known, got, -math.inf)

    def smooth(tau: float) -> Callable[[Tensor], Reply]:
        def at_weights(at: Tensor) -> Reply:
            each = losses(at)
            p = (each / tau).softmax(0)
            got = curve(at, p / m, 0.0)
            slopes = got["slopes"].flatten(1) / m.unsqueeze(-1)
            mean = p @ slopes
            extra = (slopes.T * p) @ slopes - torch.outer(mean, mean)
            return {
                "value": tau * (each / tau).logsumexp(0),
                "gradient": got["gradient"],
                "hessian": got["hessian"] + extra / tau,
            }

        return at_weights

    start = saddle.matrix(setting.params)
    free = saddle.minimised(lambda at: curve(at, nothing, 1 / clients), start)
    at, best, proved = free.at, free.at, -math.inf
    for tau in TAUS:
        at = saddle.minimised(smooth(tau), at).at
        if float(losses(at).max()) < float(losses(best).max()):
            best = at
        p = (losses(at) / tau).softmax(0)
        got = curve(at, p / m, 0.0)
        move = saddle.newton_step(got["gradient"], got["hessian"])
        bound = cohort.sum(measures.floor, {"at": at, "move": move, "price": p / m})
        proved = max(proved, saddle.lower_bound(bound["value"], bound["residual"]))
    fair_risk, free_risk = (float(curve(w, nothing, 1 / clients)["value"]) for w in (best, free.at))
    return _Found(losses(best), losses(free.at), fair_risk, free_risk, proved)


@dataclass(frozen=True)
class Measures:
    """What clients are asked for; `least` is as in PFFL."""

    inner: Constraints
    least: int

    @phase("sum", losses="group statistic", count="group statistic", risk="statistic")
    def sums(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and sums of losses in each cell, and the client's mean loss, for a model."""
        params: Params = message["params"]
        got = cell_sums(self.inner, task, params, client, "train", self.least)
        risk = train_loss(task, params, client).double()
        return {"losses": got["losses"], "count": got["count"], "risk": risk}, client.state

    @phase("sum", losses="group statistic")
    def losses(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Sums of losses in each cell, at some weights of a linear model."""
        at, kept = message["at"], reported(self.inner, task, client, "train", self.least)
        total = torch.zeros_like(kept)
        for page in client.pages("train"):
            members = (self.inner.members(task, page) * page.weight.unsqueeze(-1)).double()
            total = total + members.T @ saddle.losses(task, at, page)
        return {"losses": total * kept}, client.state

    @phase(
        "sum",
        value="statistic",
        gradient=Part("gradient", of="at"),
        hessian="statistic",
        slopes="group statistic",
    )
    def curve(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Sums of weighted losses, gradients and Hessians, and the gradient in each cell."""
        at, kept = message["at"], reported(self.inner, task, client, "train", self.least)
        share = message["share"] / client.size.double().clamp(min=1)
        total: Reply = None
        for page in client.pages("train", saddle.PAGE):
            members = self.inner.members(task, page).double() * kept * page.weight.unsqueeze(-1)
            weight = share * page.weight + members @ message["price"]
            x = saddle.rows(page.x, at.shape[1])
            slope = saddle.derivatives(task, x @ at.T, page.y).gradient
            got = saddle.curvature(task, at, page, weight)
            got["slopes"] = torch.einsum("nz,nc,nd->zcd", members, slope, x)
            total = got if total is None else tree.add(total, got)
        return total, client.state

    @phase("sum", value="statistic", residual=Part("gradient", of="at"))
    def floor(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's part of a lower bound on the weighted sum of the cells' losses."""
        kept = reported(self.inner, task, client, "train", self.least)
        price, total = message["price"] * kept, None
        for page in client.pages("train", saddle.PAGE):
            weight = (self.inner.members(task, page).double() @ price) * page.weight
            got = saddle.dual(task, message["at"], message["move"], page, weight)
            total = got if total is None else tree.add(total, got)
        return total, client.state
