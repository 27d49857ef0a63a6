"""FedFV: conflicting updates are projected on each other's normal planes, then averaged.

Wang, Fan, Qi, Wen, Wang and Yu, "Federated learning with fair averaging", IJCAI 2021. With
g_k = w - w_k and F_k the loss of the received w, m clients in the cohort:

1. Within the cohort: for each client k except the alpha m with the largest losses, and for each
   other client i in increasing order of loss: if g'_k g_i < 0, remove the component of g'_k along
   g_i.
2. g is the mean of the g'_k. For clients outside the cohort: for each of the rounds t - tau, ...,
   t - 1, let c be the sum of the last updates that conflict with g, over the clients last seen in
   that round; if g c < 0, remove the component of g along c. A client of the cohort is last seen
   in round t, so it is not among them.
3. g is rescaled to the length of the mean of the g_k, and w <- w - g.

Losses are over all training examples. Step 2 begins in round tau. Both are as in the paper and in
the authors' first published code; a later version of that code uses the rounds t - tau + 1, ..., t
instead, the last of which is the cohort itself. If all clients take part, step 2 has no effect.
alpha = 1 with tau = 0 is FedAvg with equal weights. The server keeps the last update of every
client: clients times parameters numbers (none if tau = 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.conflicts import check_alpha, length_factor, resolved
from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.blocks.vectors import gram, rows, unflattened
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree


class Server(NamedTuple):
    """The model and, unless tau = 0, every client's last update and its round (-1: none)."""

    params: Params
    last: Tree = ()  # parameters [clients, ...]
    seen: Tree = ()  # [clients]


@dataclass(frozen=True)
class FedFV(Algorithm[Server]):
    """Federated fair averaging."""

    name: ClassVar[str] = "fedfv"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Wang et al., IJCAI 2021"
    reveals: ClassVar[str] = "each client's model and loss"

    alpha: float = option(
        0.1,
        "share of clients, those with the largest losses, whose updates are not changed",
        search=Grid((0.0, 0.1, 0.2, 0.5)),
    )
    tau: int = option(
        1, "past rounds whose clients are taken into account; 0: none", search=Grid((0, 1, 3, 10))
    )

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.tau < 0:
            raise ValueError(f"tau = {self.tau}: give 0 or more rounds.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model; no client has sent an update yet."""
        if not self.tau:
            return Server(params)
        none = tree.tmap(lambda p: torch.zeros(clients, *p.shape), params)
        return Server(params, none, torch.full((clients,), -1))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """The paper's three steps."""
        params = server.params
        replies = cohort.gather(self.local, {"params": params})
        updates = tree.tmap(lambda new, old: old - new, replies.value["params"], params)
        own = rows(updates)
        products = gram(own)
        share = resolved(products, replies.value["loss"], self.alpha).mean(0)  # of each update
        g = share.to(own.dtype) @ own
        if self.tau:
            ids = replies.ids
            server = server._replace(
                last=tree.tmap(lambda a, b: a.index_copy(0, ids, b), server.last, updates),
                seen=server.seen.index_fill(0, ids, cohort.round),
            )
            if cohort.round >= self.tau:
                g = self._without_past_conflicts(g, server, cohort.round)
        g = g * length_factor(g, products)
        return server._replace(params=tree.sub(params, unflattened(g, params)))

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    def _without_past_conflicts(self, g: Tensor, server: Server, round: int) -> Tensor:
        """Remove from g its conflicts with clients last seen in past rounds, the oldest first.

        `server` already holds this round's updates.
        """
        for back in range(self.tau, 0, -1):
            ids = (server.seen == round - back).nonzero().squeeze(-1)
            last = rows(tree.take(server.last, ids))
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
