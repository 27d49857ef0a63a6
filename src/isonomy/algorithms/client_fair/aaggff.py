"""AAggFF: the clients' weights as an online decision that remembers all past losses.

Hahn, Kim and Lee, "Pursuing overall welfare in federated learning through sequential decision
making", ICML 2024. With F_i client i's loss of the received model, F_bar the cohort's mean loss and
K clients, the response of a client is bounded,

    r_i = C_2 CDF(F_i / F_bar)

the loss of a decision p is -log(1 + <p, r>), and its gradient g = -r / (1 + <p, r>). The new p is
used in the same round: w <- w - eta sum_i p_i (w - w_i) / sum_i p_i over the cohort.

`setting = "silo"` (AAggFF-S, all clients in each round), by the online Newton step with C_2 = 1/K,
A = 4 and B = K/4:

    p <- argmin over the simplex of sum <g_t, p> + A/2 |p|^2 + B/2 sum <g_t, p - p_t>^2

`setting = "device"` (AAggFF-D, a share C of the clients in each round), with C_2 = C and the doubly
robust response r_bar + (r_i - r_bar) / C for clients of the cohort and r_bar for others (r_bar is
the cohort's mean), linearised at r_bar, in round t = 1, 2, ...:

    p proportional to exp(-sqrt(log K) / ((2 + C) sqrt(t + 1)) sum g_t)

Differences from the public code, which departs from these formulas: its Newton step omits
<g_t, p_t> and adds A twice, so its weights move several times more slowly; its normal CDF falls as
the loss grows. In the setting "silo", clients that do not answer get the response r_bar, as in the
other setting. Clients with equal losses have equal weights, whatever their sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.blocks.simplex import min_norm
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree

Distribution = Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"]
A = 4.0  # of the online Newton step


class Server(NamedTuple):
    """The model, the decision, and sums over all rounds."""

    params: Params
    p: Tensor  # [clients]
    linear: Tensor  # [clients]
    square: Tree = ()  # [clients, clients], in the setting "silo"


@dataclass(frozen=True)
class AAggFF(Algorithm[Server]):
    """Adaptive aggregation: weights by follow the regularised leader."""

    name: ClassVar[str] = "aaggff"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Hahn et al., ICML 2024"
    reveals: ClassVar[str] = "each client's loss, and only the weighted sum of the clients' models"

    setting: Literal["silo", "device"] = option(
        "silo", "silo: few clients, all in each round; device: a part of many clients"
    )
    cdf: Distribution = option(
        "weibull",
        "distribution that bounds a client's loss relative to the mean loss",
        search=Grid(("weibull", "exponential", "frechet", "normal", "gumbel", "logistic")),
    )
    eta: float = option(1.0, "the server's step size")

    def __post_init__(self) -> None:
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model and equal weights."""
        p = torch.full((clients,), 1 / clients, dtype=torch.float64)
        zero = torch.zeros(clients, dtype=torch.float64)
        if self.setting == "device":
            return Server(params, p, zero)
        return Server(params, p, zero, torch.zeros(clients, clients, dtype=torch.float64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Decide from the losses, then train."""
        share = len(cohort.ids) / len(server.p)
        got = cohort.gather(self.loss, {"params": server.params})
        r = bounded(got.value["loss"].to(torch.float64), self.cdf)
        server = (
            newton_step(server, got.ids, r)
            if self.setting == "silo"
            else entropic_step(server, got.ids, r, share, cohort.round + 1)
        )
        weight = server.p[cohort.ids]
        cohort.record(weights=weight / weight.sum())
        sent = {"params": server.params}
        mean = cohort.mean(self.train, sent, weight=weight / weight.max())["params"]
        if self.eta != 1:
            mean = tree.mix(server.params, mean, torch.tensor(self.eta))
        return server._replace(params=mean)

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    @phase("gather", loss="statistic")
    def loss(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model."""
        return {"loss": train_loss(task, message["params"], client)}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training."""
        return {"params": descend(task.loss, message["params"], client)}, client.state


def bounded(losses: Tensor, cdf: Distribution) -> Tensor:
    """CDF(F_i / F_bar), between 0 and 1; equal losses give equal responses.

    >>> bounded(torch.tensor([1.0, 1.0]), "exponential").tolist() == [1 - math.exp(-1)] * 2
    True
    """
    mean = losses.to(torch.float64).mean()
    x = torch.where(mean > 0, losses / mean, 1.0).to(torch.float64).clamp(min=0)
    if cdf == "weibull":
        return 1 - torch.exp(-x.square())
    if cdf == "exponential":
        return 1 - torch.exp(-x)
    if cdf == "frechet":
        return torch.exp(-1 / x)
    if cdf == "normal":
        below: Tensor = torch.special.ndtr(x - 1)
        return below
    if cdf == "gumbel":
        return torch.exp(-torch.exp(1 - x))
    return torch.sigmoid(x - 1)


def newton_step(server: Server, ids: Tensor, response: Tensor) -> Server:
    """AAggFF-S: one more gradient, and the minimum of the quadratic program."""
    p, K = server.p, len(server.p)
    r = torch.full_like(p, float(response.mean())).index_copy(0, ids, response) / K
    g = -r / (1 + p @ r)
    B = K / 4
    linear = server.linear + g * (1 - B * (g @ p))
    square = server.square + B * torch.outer(g, g)
    # on the simplex, <c, p> is p'((c 1' + 1 c') / 2)p, and adding a constant to c changes nothing
    c = linear - linear.min()
    gram = (A * torch.eye(K, dtype=p.dtype) + square + c.unsqueeze(0) + c.unsqueeze(1)) / 2
    return server._replace(p=min_norm(gram, p, 1.0), linear=linear, square=square)


def entropic_step(server: Server, ids: Tensor, response: Tensor, C: float, t: int) -> Server:
    """AAggFF-D: one more gradient, and exponential weights."""
    p, K, r = server.p, len(server.p), response * C
    mean = r.mean()
    robust = torch.full_like(p, float(mean)).index_copy(0, ids, mean + (r - mean) / C)
    D = 1 + mean
    g = -robust / D + mean * (p @ (robust - mean)) / D**2
    linear = server.linear + g
    rate = math.sqrt(math.log(max(K, 2))) / ((2 + C) * math.sqrt(t + 1))
    return server._replace(p=torch.softmax(-rate * linear, 0), linear=linear)
