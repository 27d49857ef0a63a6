"""AgnosticFair (FAFL): fair and accurate under the reweighting of examples that is worst.

Du, Xu, Wu and Tong, "Fairness-aware agnostic federated learning", SDM 2021. Examples have weights
theta(x) = sum_m a_m K_m(x) that an adversary chooses, and the model's positive probability h(x)
may not go along with the group under any of them:

    min_w max_a  (1/n) sum_i theta(x_i) loss_i(w)    such that |C(w)| <= tau,
    C_z = (1/n) sum_i theta(x_i) (1[z_i = z] - share of z) h(x_i)

Each round clients send sums for each K_m. The server solves the linear program for a (all theta
sum to n, 0 <= a_m <= most), goes `pace` of the way there, and the clients descend on theta's loss
plus (penalty / 2) sum_z max(|C_z| - tau, 0)^2, whose slope at w is the same multiple of each
client's own part of C. C_z is for each group but the first, so any number of groups will do.

The K_m here add up to 1 at every x, so that a = 1 is the plain mean: Gaussian kernels around
common random centres over their sum (`kernels`), or the cells of label and group (`cells`). The
paper bounds C as a constraint and leaves centres open; a later comparison has no reweighting at
all, which is most = 1. With penalty = 0 as well it is FedAvg. A group (and, with `cells`, a cell)
of fewer than `least` examples is at that client as if nobody had told who belongs to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks import programs
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import binary, column, least_cell, margin, member, share
from isonomy.core import random
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class AgnosticFair(Algorithm):
    """A covariance bound and a loss, both under the worst reweighting of examples."""

    name: ClassVar[str] = "agnosticfair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Du et al., SDM 2021"
    reveals: ClassVar[str] = (
        "sums over all clients of models, group counts, and losses and predictions by kernel"
    )

    penalty: float = option(20.0, "strength of the covariance penalty")
    tau: float = option(0.0, "covariance of prediction and group that is allowed")
    most: float = option(2.0, "largest weight of a kernel; 1 is no reweighting")
    pace: float = option(0.2, "how far a round goes to the worst reweighting")
    basis: Literal["kernels", "cells"] = option(
        "kernels", "what is reweighted: regions of x, or (y, z)"
    )
    kernels: int = option(8, "how many kernels")
    width: float = option(0.5, "their width, in units of the square root of the number of features")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "examples below which a client withholds a group's or a cell's sums")

    def __post_init__(self) -> None:
        for name, value in {"penalty": self.penalty, "tau": self.tau}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} = {value}: give a number of at least 0.")
        if not 1 <= self.most < math.inf:
            raise ValueError(f"most = {self.most}: give a number of at least 1.")
        if not 0 < self.pace <= 1:
            raise ValueError(f"pace = {self.pace}: give a number above 0 and at most 1.")
        if self.kernels < 2:
            raise ValueError(f"kernels = {self.kernels}: give 2 or more.")
        if not 0 < self.width < math.inf:
            raise ValueError(f"width = {self.width}: give a number above 0.")
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model and the weights a, all 1."""
        binary(task, self.name)
        at = column(task, self.attribute, self.name)
        count = self.kernels if self.basis == "kernels" else 2 * task.levels[at]
        return {"params": params, "weights": torch.ones(count, dtype=torch.float64)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """The adversary's program, then a round of descent."""
        params, weights = server["params"], server["weights"]
        got = cohort.sum(self.measure, {"params": params})
        if self.most > 1:
            worst = programs.worst(got["loss"], got["mass"], self.most)
            if worst is not None:
                weights = weights + self.pace * (worst - weights)
                weights = weights * share(got["mass"].sum(), (weights * got["mass"]).sum())
        mean = share(got["groups"], got["size"])
        together = weights @ (got["hit"] - got["positive"].unsqueeze(1) * mean)
        covariance = share(together, got["size"])[1:]
        over = (covariance.abs() - self.tau).clamp(min=0) * covariance.sign()
        message = {
            "params": params,
            "weights": weights,
            "mean": mean[1:],
            "pull": self.penalty * over,
        }
        return {"params": cohort.mean(self.train, message)["params"], "weights": weights}

    @phase(
        "sum",
        mass="group statistic",
        loss="group statistic",
        positive="group statistic",
        hit="group statistic",
        groups="group statistic",
        size="statistic",
    )
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """For each kernel: its mass, loss, positive predictions, and these by group."""
        at = column(task, self.attribute, self.name)
        count = self.kernels if self.basis == "kernels" else 2 * task.levels[at]
        zero = torch.zeros(count, dtype=torch.float64)
        mass, loss, positive = zero, zero, zero
        hit = torch.zeros(count, task.levels[at], dtype=torch.float64)
        groups = torch.zeros(task.levels[at], dtype=torch.float64)
        enough, known = self.told(task, client, at)
        for page in client.pages("train"):
            outputs = task.outputs(message["params"], page.x)
            lies = self.lies(task, page, at, enough).to(torch.float64) * page.weight.unsqueeze(-1)
            inside = (member(task, page, at, by_label=False)[:, 0] * known).to(torch.float64)
            likely = torch.sigmoid(margin(task, outputs)).to(torch.float64)
            losses = torch.where(page.weight > 0, task.each_loss(outputs, page.y), 0.0)
            mass, loss = mass + lies.sum(0), loss + losses.to(torch.float64) @ lies
            positive = positive + likely @ lies
            hit = hit + (lies * likely.unsqueeze(-1)).T @ inside
            groups = groups + inside.sum(0)
        sums = {"mass": mass, "loss": loss, "positive": positive, "hit": hit, "groups": groups}
        return {**sums, "size": client.size.to(torch.float64)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on theta's loss and on the client's part of the covariances."""
        at = column(task, self.attribute, self.name)
        weights, mean, pull = (message[k].to(torch.float32) for k in ("weights", "mean", "pull"))
        enough, known = self.told(task, client, at)

        def objective(params: Params, batch: Batch) -> Tensor:
            outputs = task.outputs(params, batch.x)
            theta = 1 + self.lies(task, batch, at, enough) @ (weights - 1)
            inside = member(task, batch, at, by_label=False)[:, 0, 1:] * known[1:]
            lean = (inside - mean) @ pull * torch.sigmoid(margin(task, outputs))
            each: Tensor = theta * (task.each_loss(outputs, batch.y) + lean) * batch.weight
            return each.sum() / batch.weight.sum().clamp(min=1)

        return {"params": descend(objective, message["params"], client)}, client.state

    def told(self, task: Task, client: Client, at: int) -> tuple[Tensor, Tensor]:
        """Of which cells [2, groups] and groups the client has enough examples, as 0 or 1."""
        if not self.least:
            return torch.ones(2, task.levels[at]), torch.ones(task.levels[at])
        pages = client.pages("train")
        count = torch.stack([member(task, page, at).sum(0) for page in pages]).sum(0)
        return (count >= self.least).float(), (count.sum(0) >= self.least).float()

    def lies(self, task: Task, batch: Batch, at: int, enough: Tensor) -> Tensor:
        """How much each example belongs to each kernel, [n, kernels], rows of sum 1.

        With `cells`, an example of a withheld cell belongs to none.
        """
        if self.basis == "cells":
            return (member(task, batch, at) * enough).flatten(1)
        x = batch.x.flatten(1)
        size = x.shape[1]
        centres = random.normal(random.key(size), "centres", (self.kernels, size))
        far = x.square().sum(1, keepdim=True) - 2 * x @ centres.T + centres.square().sum(1)
        lies: Tensor = torch.softmax(-far / (2 * self.width**2 * size), 1)
        return lies
