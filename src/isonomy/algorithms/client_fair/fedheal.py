"""FedHEAL: only consistent changes of parameters, and more weight for clients that change much.

Chen, Huang and Ye, "Fair federated learning under domain skew with local consistency and domain
diversity", CVPR 2024. With D_i = w - w_i after local training:

    m_i = 1[consistency > tau]: the share of the client's earlier rounds in which the coordinate
          changed in the same direction as now (all ones in its first round)
    d_i = sum over tensors of |m_i D_i|
    q_i <- (1 - beta) q_i + beta d_i / (sum of d),  P_i <- P_i + q_i,  p = P / (sum of P)
    w   <- w - sum p_i m_i D_i / sum p_i m_i, coordinate by coordinate (0 where all are masked)

P begins at 1/K, q at 0. In the public code the sum of d runs over all clients ever seen, and the
history of a client counts all rounds; here the sum is over the cohort, and a client's history is
that of its own rounds, as the formulas say. A client first sends d_i, then its masked change, of
which the server gets only sums. tau < 0 with beta = 0 is FedAvg with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree


class Server(NamedTuple):
    """The model, the clients' running shares of distances, and their sums."""

    params: Params
    q: Tensor  # [clients]
    P: Tensor  # [clients]


class Own(NamedTuple):
    """What a client keeps: how often each coordinate did not rise, its rounds, its last change."""

    history: Tree  # the share of rounds with D >= 0
    rounds: Tensor
    change: Tree  # m D of this round
    mask: Tree


@dataclass(frozen=True)
class FedHEAL(Algorithm[Server]):
    """Consistent parameters, and weights by the length of changes."""

    name: ClassVar[str] = "fedheal"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Chen et al., CVPR 2024"
    reveals: ClassVar[str] = (
        "the length of each client's change, and weighted sums of the changes and of which "
        "parameters they concern"
    )

    tau: float = option(
        0.3,
        "least share of earlier rounds in which a parameter changed in the same direction",
        search=Grid((0.1, 0.3, 0.5)),
    )
    beta: float = option(
        0.4, "weight of the newest round in a client's share", search=Grid((0.2, 0.4, 0.8))
    )

    def __post_init__(self) -> None:
        if not self.tau < 1:
            raise ValueError(f"tau = {self.tau}: give a number below 1; below 0: no mask.")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta = {self.beta}: give a number from 0 to 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model, and equal weights."""
        zero = torch.zeros(clients, dtype=torch.float64)
        return Server(params, zero, zero + 1 / clients)

    def init_client(self, task: Task, params: Params) -> State:
        """No history."""
        zero = tree.zeros_like(params)
        return Own(zero, torch.zeros(()), zero, zero)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Train and weigh; then the masked mean."""
        params, beta = server.params, self.beta
        got = cohort.gather(self.train, {"params": params})
        d = got.value["distance"].to(torch.float64)
        share = d / d.sum() if float(d.sum()) > 0 else torch.full_like(d, 1 / len(d))
        q = server.q.index_copy(0, got.ids, (1 - beta) * server.q[got.ids] + beta * share)
        P = server.P.index_add(0, got.ids, q[got.ids])
        weight = P[cohort.ids]
        cohort.record(weights=weight / weight.sum())
        mean = cohort.mean(self.send, {"params": params}, weight=weight / weight.max())

        def moved(w: Tensor, change: Tensor, mask: Tensor) -> Tensor:
            return w - torch.where(mask > 0, change / mask.clamp(min=1e-12), 0.0)

        return Server(tree.tmap(moved, params, mean["change"], mean["mask"]), q, P)

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    @phase("gather", distance="statistic")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train, and keep the consistent part of the change; send only its length."""
        origin, own = message["params"], client.state
        new = descend(task.loss, origin, client)
        change = tree.sub(origin, new)
        down = tree.tmap(lambda t: (t >= 0).to(torch.float32), change)
        first = own.rounds == 0

        def consistent(down: Tensor, history: Tensor) -> Tensor:
            agrees = torch.where(down > 0, history, 1 - history)
            kept: Tensor = (agrees > self.tau) | first
            return kept.to(torch.float32)

        mask = tree.tmap(consistent, down, own.history)
        masked = tree.tmap(lambda m, t: m * t, mask, change)
        distance = torch.stack([t.square().sum().sqrt() for t in tree.leaves(masked)]).sum()
        history = tree.tmap(
            lambda share, now: (share * own.rounds + now) / (own.rounds + 1), own.history, down
        )
        return {"distance": distance}, Own(history, own.rounds + 1, masked, mask)

    @phase("mean", change=Part("update", of="params"), mask=Part("update", of="params"))
    def send(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The consistent part of the change, and which parameters it concerns."""
        own = client.state
        return {"change": own.change, "mask": own.mask}, own
