"""AgnosticFair (FAFL): fair and accurate under the worst reweighting of the examples.

Du, Xu, Wu and Tong, "Fairness-aware agnostic federated learning", SDM 2021. Examples have weights
theta(x) = sum_m a_m K_m(x) that an adversary chooses. The covariance between the model's positive
probability h(x) and the group is bounded under these weights:

    min_w max_a  (1/n) sum_i theta(x_i) loss_i(w)    such that |C(w)| <= tau,
    C_z = (1/n) sum_i theta(x_i) (1[z_i = z] - share of z) h(x_i)

In each round clients send sums for each K_m. The server solves the linear program for a (the theta
sum to n, 0 <= a_m <= most) and moves a by the fraction `pace` towards the solution. The clients
then descend on theta's loss plus (penalty / 2) sum_z max(|C_z| - tau, 0)^2, whose gradient at w is
the same multiple of each client's part of C. C_z is computed for each group except the first, so
any number of groups is allowed.

Here the K_m add up to 1 at every x, so that a = 1 is the plain mean. They are Gaussian kernels
around common random centres, divided by their sum (`kernels`), or the cells of label and group
(`cells`). The paper bounds C as a constraint and does not specify the centres. A later comparison
has no reweighting, which is most = 1; with penalty = 0 as well it is FedAvg. If a client has fewer
than `least` examples of a group (with `cells`, also of a cell), it treats their group as unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import programs
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import check_least, column, margin, member, require_binary, share
from isonomy.core import random
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.disclosure import told
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Batch, Params, Task


class Server(NamedTuple):
    """The model, and the weight a_m of each kernel."""

    params: Params
    weights: Tensor


@dataclass(frozen=True)
class AgnosticFair(Algorithm[Server]):
    """A bound on the covariance and the loss, both under the worst reweighting of examples."""

    name: ClassVar[str] = "agnosticfair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Du et al., SDM 2021"
    reveals: ClassVar[str] = (
        "sums over all clients of models, group counts, and losses and predictions by kernel"
    )

    penalty: float = option(
        20.0, "strength of the covariance penalty", search=Range(1.0, 200.0, log=True)
    )
    tau: float = option(0.0, "largest covariance of prediction and group without a penalty")
    most: float = option(
        2.0, "largest weight of a kernel; 1 means no reweighting", search=Grid((1.0, 2.0, 4.0))
    )
    pace: float = option(0.2, "fraction of the way to the worst reweighting moved in one round")
    basis: Literal["kernels", "cells"] = option(
        "kernels", "what is reweighted: regions of x, or cells of label and group"
    )
    kernels: int = option(8, "number of kernels")
    width: float = option(
        0.5, "width of a kernel, in units of the square root of the number of features"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "a client withholds the sums of a group or cell with fewer examples")

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
        check_least(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model and the weights a, all 1."""
        require_binary(task, self.name)
        at = column(task, self.attribute, self.name)
        count = self.kernels if self.basis == "kernels" else 2 * task.levels[at]
        return Server(params, torch.ones(count, dtype=torch.float64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """The adversary's linear program, then a round of descent."""
        params, weights = server
        sums = cohort.sum(self.measure, {"params": params})
        if self.most > 1:
            worst = programs.worst(sums["loss"], sums["mass"], self.most)
            if worst is not None:
                weights = weights + self.pace * (worst - weights)
                weights = weights * share(sums["mass"].sum(), (weights * sums["mass"]).sum())
        mean = share(sums["groups"], sums["size"])
        together = weights @ (sums["hit"] - sums["positive"].unsqueeze(1) * mean)
        covariance = share(together, sums["size"])[1:]
        over = (covariance.abs() - self.tau).clamp(min=0) * covariance.sign()
        message = {
            "params": params,
            "weights": weights,
            "mean": mean[1:],
            "pull": self.penalty * over,
        }
        return Server(cohort.mean(self.train, message)["params"], weights)

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
        """For each kernel: its mass, loss and positive predictions, the latter also by group."""
        at = column(task, self.attribute, self.name)
        count = self.kernels if self.basis == "kernels" else 2 * task.levels[at]
        zero = torch.zeros(count, dtype=torch.float64)
        mass, loss, positive = zero, zero, zero
        hit = torch.zeros(count, task.levels[at], dtype=torch.float64)
        groups = torch.zeros(task.levels[at], dtype=torch.float64)
        enough, known = self.large_enough(task, client, at)
        for page in client.pages("train"):
            outputs = task.outputs(message["params"], page.x)
            kernel = self.kernel_weights(task, page, at, enough).to(torch.float64)
            kernel = kernel * page.weight.unsqueeze(-1)
            inside = (member(task, page, at, by_label=False)[:, 0] * known).to(torch.float64)
            likely = torch.sigmoid(margin(task, outputs)).to(torch.float64)
            losses = torch.where(page.weight > 0, task.each_loss(outputs, page.y), 0.0)
            mass, loss = mass + kernel.sum(0), loss + losses.to(torch.float64) @ kernel
            positive = positive + likely @ kernel
            hit = hit + (kernel * likely.unsqueeze(-1)).T @ inside
            groups = groups + inside.sum(0)
        sums = {"mass": mass, "loss": loss, "positive": positive, "hit": hit, "groups": groups}
        return {**sums, "size": client.size.to(torch.float64)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on theta's loss and on the client's part of the covariances."""
        at = column(task, self.attribute, self.name)
        weights, mean, pull = (message[k].to(torch.float32) for k in ("weights", "mean", "pull"))
        enough, known = self.large_enough(task, client, at)

        def objective(params: Params, batch: Batch) -> Tensor:
            outputs = task.outputs(params, batch.x)
            theta = 1 + self.kernel_weights(task, batch, at, enough) @ (weights - 1)
            inside = member(task, batch, at, by_label=False)[:, 0, 1:] * known[1:]
            covariance = (inside - mean) @ pull * torch.sigmoid(margin(task, outputs))
            each: Tensor = theta * (task.each_loss(outputs, batch.y) + covariance) * batch.weight
            return each.sum() / batch.weight.sum().clamp(min=1)

        return {"params": descend(objective, message["params"], client)}, client.state

    def large_enough(self, task: Task, client: Client, at: int) -> tuple[Tensor, Tensor]:
        """Which cells [2, groups] and which groups are told with `least`, as 0 or 1."""
        if not self.least:
            return torch.ones(2, task.levels[at]), torch.ones(task.levels[at])
        pages = client.pages("train")
        count = torch.stack([member(task, page, at).sum(0) for page in pages]).sum(0)
        shown = told(count, self.least)
        hidden = torch.where(shown, 0.0, count).sum(0)  # of each group; its number must not follow
        known = told(count.sum(0), self.least) & ((hidden == 0) | (hidden >= self.least))
        return shown.float(), known.float()

    def kernel_weights(self, task: Task, batch: Batch, at: int, enough: Tensor) -> Tensor:
        """How much each example belongs to each kernel, [n, kernels]; each row sums to 1.

        With `cells`, an example of a withheld cell belongs to none.
        """
        if self.basis == "cells":
            return (member(task, batch, at) * enough).flatten(1)
        x = batch.x.flatten(1)
        size = x.shape[1]
        centres = random.normal(random.key(size), "centres", (self.kernels, size))
        squared = x.square().sum(1, keepdim=True) - 2 * x @ centres.T + centres.square().sum(1)
        weights: Tensor = torch.softmax(-squared / (2 * self.width**2 * size), 1)
        return weights
