"""FedFV: updates that conflict are made orthogonal before they are averaged.

Wang, Fan, Qi, Wen, Wang and Yu, "Federated learning with fair averaging", IJCAI 2021. With
g_k = w - w_k and F_k the loss of the received w, m clients in the cohort:

1. Within the cohort: for each client k but the alpha m with the largest losses, and for each
   other client i in rising order of loss: if g'_k g_i < 0, take g_i's direction out of g'_k.
2. g is the mean of the g'_k. Towards clients outside: for the rounds t - tau, ..., t - 1, let c
   be the sum of the last updates of clients last seen in that round with which g conflicts; if
   g c < 0, take c's direction out of g.
3. g is given the length of the mean of the g_k, and w <- w - g.

Losses are of all training examples. Step 2 begins in round tau, as in the paper. The authors'
code looks at the rounds t - tau + 1, ..., t, where the last is the cohort itself; here it is the
paper's rounds. alpha = 1 with tau = 0 is FedAvg with equal weights. The server keeps every
client's last update: as many numbers as clients times parameters (none for tau = 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.blocks.vectors import gram, rows
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FedFV(Algorithm):
    """Federated fair averaging."""

    name: ClassVar[str] = "fedfv"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Wang et al., IJCAI 2021"
    reveals: ClassVar[str] = "each client's model and loss"

    alpha: float = option(
        0.1, "share of clients, those with the largest losses, whose updates stay"
    )
    tau: int = option(1, "rounds back in which clients outside the cohort are remembered; 0: none")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha = {self.alpha}: give a number from 0 to 1.")
        if self.tau < 0:
            raise ValueError(f"tau = {self.tau}: give a whole number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model; with tau, also every client's last update and when that was."""
        if not self.tau:
            return {"params": params}
        none = tree.tmap(lambda p: torch.zeros(clients, *p.shape), params)
        return {"params": params, "last": none, "seen": torch.full((clients,), -1)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """The paper's three steps."""
        params = server["params"]
        replies = cohort.gather(self.local, {"params": params})
        updates = tree.tmap(lambda new, old: old - new, replies.value["params"], params)
        own = rows(updates)
        products = gram(own)
        kept = within(products, replies.value["loss"], self.alpha)
        share = kept.mean(0)  # of each update in the mean
        g = share.to(own.dtype) @ own
        out = {}
        if self.tau:
            if cohort.round >= self.tau:
                g = self._towards_others(g, server, cohort.round)
            place = replies.ids
            out["last"] = tree.tmap(lambda a, b: a.index_copy(0, place, b), server["last"], updates)
            out["seen"] = server["seen"].index_fill(0, place, cohort.round)
        g = g * lengthened(g, products)
        return {"params": tree.sub(params, shaped(g, params)), **out}

    def deployed(self, server: Any) -> Any:
        """The model alone."""
        return {"params": server["params"]}

    def _towards_others(self, g: Tensor, server: Any, round: int) -> Tensor:
        """Take out of g what conflicts with clients seen in earlier rounds, the oldest first."""
        for back in range(self.tau, 0, -1):
            ids = (server["seen"] == round - back).nonzero().squeeze(-1)
            last = rows(tree.take(server["last"], ids))
            against = last[(last.double() @ g.double()) < 0].double().sum(0)
            product = against @ g.double()
            if product < 0:
                g = (g.double() - product / against.square().sum() * against).to(g.dtype)
        return g

    @phase("gather", params="model", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, then training."""
        origin = message["params"]
        loss = train_loss(task, origin, client)
        return {"params": descend(task.loss, origin, client), "loss": loss}, client.state


def within(products: Tensor, losses: Tensor, alpha: float) -> Tensor:
    """Each client's update after the first step, as coefficients of all updates [m, m].

    `products` are the updates' inner products; a projection only combines updates, so it is
    arithmetic on coefficients.
    """
    m, products = len(losses), products.to(torch.float64)
    order = losses.argsort(stable=True).tolist()
    keep = set(order[m - math.ceil(round(alpha * m, 9)) :]) if alpha > 0 else set()
    out = torch.eye(m, dtype=torch.float64)
    for k in range(m):
        for i in order if k not in keep else ():
            product = out[k] @ products[:, i]
            if i != k and product < 0:
                out[k, i] -= product / products[i, i]
    return out


def lengthened(g: Tensor, products: Tensor) -> Tensor:
    """The factor that gives g the length of the updates' mean; 0 if g is nothing but rounding."""
    own = g.double().square().sum()
    nothing = own <= 1e-12 * products.diagonal().mean()
    factor = (products.mean().clamp(min=0) / own).sqrt()
    return torch.where(nothing, 0.0, factor).to(g.dtype)


def shaped(flat: Tensor, like: Params) -> Params:
    """A vector in the form of the parameters."""
    parts = torch.split(flat, [p.numel() for p in tree.leaves(like)])
    made = iter(parts)
    return tree.tmap(lambda p: next(made).reshape(p.shape), like)
