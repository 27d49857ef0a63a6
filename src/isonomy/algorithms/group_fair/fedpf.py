"""FedPF: protected attributes with local differential privacy, and fair training by reductions.

Sun, Wu, Guo, Li and Huang, arXiv 2510.26841, 2025. A client first replaces the attribute of every
example by randomised response: it keeps the true value with probability

    e^epsilon / (1 + e^epsilon)

and otherwise takes the other one. (The paper's attribute has two groups. With k groups, the true
one is kept with probability e^epsilon / (k - 1 + e^epsilon), and the others are equally likely,
which has the same epsilon.) It draws once, and uses the same response in every round, so that
epsilon does not grow with the rounds. Then it solves the reduction of Agarwal, Beygelzimer, Dudik,
Langford and Wallach, "A reductions approach to fair classification", ICML 2018, for equalised odds
with these responses: for group z and label y, both signs of

    r_zy = P(h = 1 | z, y) - P(h = 1 | y) <= slack

have multipliers lambda = B exp(theta) / (1 + sum exp(theta)), theta begins at 0, and each iteration

    h     <- training on sum_i |c_i| loss(h, x_i, 1[c_i > 0]), where
             c_i = 2 y_i - 1 - L_zy / P(z, y) + (sum over z of L_zy) / P(y),  L = lambda+ - lambda-
    theta <- theta + eta (+-r(h) - slack)

The learner is the client's local training, from where the last iteration ended, and the client
sends the mean of the iterations' models; the server averages by size. In the authors' code every
client reads the same part of the whole data set in a round, and the mean is over the predictors
that the reduction keeps, without their weights in it; here each client has its own examples, and
all iterations have the same weight, as in the reduction itself. A mean of models is not the
randomised classifier of the reduction.

With one iteration the multipliers have had no effect: FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import Objective, descend
from isonomy.blocks.groups import Cells, cells, column, require_binary, share
from isonomy.core import random, tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Pool, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class FedPF(Algorithm[Global]):
    """Randomised response on the protected attribute, and reductions at the clients."""

    name: ClassVar[str] = "fedpf"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Sun et al., 2025"
    reveals: ClassVar[str] = (
        "the sum of the clients' models, which depend on protected attributes through randomised "
        "responses only"
    )

    epsilon: float = option(
        2.0,
        "of local differential privacy of one example's attribute; inf: attributes as they are",
    )
    slack: float = option(
        0.02, "the difference of rates that is allowed", search=Range(0.005, 0.2, log=True)
    )
    bound: float = option(10.0, "B: upper bound on the sum of the multipliers")
    eta: float = option(2.0, "step size of theta", search=Range(0.2, 20.0, log=True))
    iterations: int = option(5, "iterations of a client's reduction in a round, each with its work")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        for name in ("epsilon", "slack"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")
        for name in ("bound", "eta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")
        if self.iterations < 1:
            raise ValueError(f"iterations = {self.iterations}: give at least 1.")

    def keep(self, groups: int = 2) -> float:
        """The probability that a response is the true value."""
        return 1 / (1 + (groups - 1) * math.exp(-self.epsilon))

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """The key of the client's responses; 0: not drawn yet."""
        return torch.zeros((), dtype=torch.int64)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Averaging."""
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A reduction on the client's responses; the mean of its models."""
        at = column(task, self.attribute, self.name)
        one, two = ((client.uniform(n) * 2.0**23).to(torch.int64) for n in ("response", "more"))
        key = torch.where(client.state == 0, random.mix64(one * 2**24 + two), client.state)
        k = task.levels[at]
        pool = ResponsePool(client.pool, key, client.starts[0], at, self.keep(k), k)
        asked = replace(client, pool=pool)  # type: ignore[arg-type]  # a pool by its interface
        params = message["params"]
        theta = torch.zeros(2, 2, k, dtype=torch.float64)  # sign, label, group
        costs = _plain_costs().expand(2, k)
        total = tree.zeros_like(params)
        for i in range(self.iterations):
            params = descend(cost_sensitive(task, costs, at), params, asked)
            total = tree.add(total, params)
            if i < self.iterations - 1:
                theta, costs = self._audited(theta, cells(task, params, asked, at))
        mean = tree.tmap(lambda t: t / self.iterations, total)
        return {"params": mean if self.iterations > 1 else params}, key

    def _audited(self, theta: Tensor, sums: Cells) -> tuple[Tensor, Tensor]:
        """The auditor's step, and the costs [label, group] that follow from its multipliers."""
        everyone = share(sums.positive.sum(1, keepdim=True), sums.count.sum(1, keepdim=True))
        r = torch.where(sums.count > 0, share(sums.positive, sums.count) - everyone, 0.0)
        theta = theta + self.eta * (torch.stack([r, -r]) - self.slack)
        flat = torch.cat([theta.new_zeros(1), theta.flatten()])
        lam = self.bound * flat.softmax(0)[1:].reshape(theta.shape)
        net = lam[0] - lam[1]
        n = sums.count.sum()
        cell = share(net * n, sums.count)
        label = share(net.sum(1, keepdim=True) * n, sums.count.sum(1, keepdim=True))
        plain = _plain_costs()
        return theta, plain - cell + label


class ResponsePool(NamedTuple):
    """A client's examples, with randomised responses in place of one attribute.

    A response follows from the client's key and the example's position, so it is always the same.
    Unknown groups (below 0) stay unknown.
    """

    pool: Pool
    key: Tensor
    start: Tensor
    at: int
    keep: float
    groups: int = 2

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """The examples at `rows`."""
        made = self.pool.batch(rows, weight)
        u = random.uniform(random.mix64(self.key ^ random.mix64(rows - self.start)), "response")
        true = made.groups[:, self.at]
        # beyond keep, u is uniform over the other groups
        other = ((u - self.keep) / (1 - self.keep + 1e-9) * (self.groups - 1)).to(true.dtype)
        other = (true + 1 + other.clamp(0, self.groups - 2)) % self.groups
        response = torch.where((u < self.keep) | (true < 0), true, other)
        column = torch.arange(made.groups.shape[1]) == self.at
        return made._replace(groups=torch.where(column, response.unsqueeze(-1), made.groups))


def _plain_costs() -> Tensor:
    """The costs of accuracy alone: -1 for label 0 and +1 for label 1."""
    return torch.arange(2, dtype=torch.float64).unsqueeze(1) * 2 - 1


def cost_sensitive(task: Task, costs: Tensor, at: int) -> Objective:
    """The mean of |c| loss(1[c > 0]) with c = costs[label, group]; +-1 for unknown groups."""

    def objective(params: Params, batch: Batch) -> Tensor:
        z = batch.groups[:, at]
        c = costs.flatten()[batch.y * costs.shape[1] + z.clamp(min=0)].to(batch.weight.dtype)
        c = torch.where(z < 0, (2 * batch.y - 1).to(c.dtype), c)
        losses = task.each_loss(task.outputs(params, batch.x), (c > 0).to(batch.y.dtype))
        return (losses * c.abs() * batch.weight).sum() / batch.weight.sum().clamp(min=1)

    return objective
