"""FedLF: in every layer, a direction that lowers all clients' losses and makes them equal.

Pan, Li, Yu, Wang, Wang, Tang and Zhao, "FedLF: layer-wise fair federated learning", AAAI 2024. With
F_i client i's loss of the received model w and g_i its gradient, the objectives are all F_i and

    P = -cos(F, ones),   g_P = sum_i h_i g_i,   h the derivative of P with respect to F

For each layer l, d_l is the shortest convex combination of the g_i,l, of g_P,l, and of the last
gradients of clients outside the cohort that were seen in the last tau rounds, where tau is the
number of clients seen so far divided by the cohort's size, rounded down. A layer with d_l = 0 is
merged with the next one (the last with the one before) and solved again; if all are 0, w stays.
Then d is scaled to the norm of the mean of the g_i, and

    w <- w - rate d

The gradients are (w - w_i) / rate after local training, as in the paper; with `gradient = "full"`
they are those of the mean loss on all examples, as in the public code. That code also scales all
rows of a layer to their mean norm, and merges no layers; both are not in the paper and not here. A
layer is a module: its weight and bias together. If all losses are equal, P has no gradient and is
left out. One client, with gradients by training: FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import measure
from isonomy.blocks.descent import descend
from isonomy.blocks.equality import towards_equal
from isonomy.blocks.simplex import min_norm
from isonomy.blocks.vectors import combination, gram, rows, unflattened
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree

ZERO = 1e-10  # the squared length of d_l, relative to that of the rows, that counts as 0


class Server(NamedTuple):
    """The model and, with history, every client's last gradient and its round (-1: none)."""

    params: Params
    last: Tree = ()  # parameters [clients, ...]
    seen: Tree = ()  # [clients]


@dataclass(frozen=True)
class FedLF(Algorithm[Server]):
    """Layer-wise fair federated learning."""

    name: ClassVar[str] = "fedlf"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Pan et al., AAAI 2024"
    reveals: ClassVar[str] = "each client's update and loss"

    gradient: Literal["training", "full"] = option(
        "training", "a client's gradient: from local training, or of its loss on all examples"
    )
    layers: bool = option(
        True,
        "whether each layer has its own direction, or the whole model",
        search=Grid((True, False)),
    )
    fair: bool = option(True, "whether equality of losses, P, is an objective")
    history: bool = option(True, "whether last gradients of clients outside the cohort are used")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model; no client has sent a gradient yet."""
        if not self.history:
            return Server(params)
        none = tree.tmap(lambda p: torch.zeros(clients, *p.shape), params)
        return Server(params, none, torch.full((clients,), -1))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Gradients, a direction for each layer, one step."""
        params = server.params
        message = {"params": params}
        phase = self.trained if self.gradient == "training" else self.full
        got = cohort.gather(phase, message)
        found = got.value["gradient"]
        own = rows(found)
        parts = [own]
        h = towards_equal(got.value["loss"])
        if self.fair and bool(h.any()):
            parts.append(combination(h, own).to(own.dtype).unsqueeze(0))
        if self.history:
            server, absent = self._absent(server, got.ids, found, cohort.round)
            parts.append(absent)
        d = directions(torch.cat(parts), self._widths(params))
        length = d.norm()
        if not length > 0:
            return server
        d = d * (own.mean(0).norm() / length * float(cohort.rate))
        return server._replace(params=tree.sub(params, unflattened(d.to(torch.float32), params)))

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    def _absent(
        self, server: Server, ids: Tensor, found: Tree, round: int
    ) -> tuple[Server, Tensor]:
        """The server with this round's gradients, and those of absent clients that are used."""
        server = server._replace(
            last=tree.tmap(lambda a, b: a.index_copy(0, ids, b), server.last, found),
            seen=server.seen.index_fill(0, ids, round),
        )
        tau = int((server.seen >= 0).sum()) // len(ids)
        used = (server.seen >= max(round - tau, 0)) & (server.seen < round)
        return server, rows(tree.take(server.last, used.nonzero().squeeze(-1)))

    def _widths(self, params: Params) -> list[int]:
        """The number of parameters of each layer, in order."""
        if not self.layers:
            return [sum(p.numel() for p in tree.leaves(params))]
        widths: dict[str, int] = {}
        for name, value in params.items():
            module = name.rpartition(".")[0]
            widths[module] = widths.get(module, 0) + value.numel()
        return list(widths.values())

    @phase("gather", loss="statistic", gradient=Part("gradient", of="params"))
    def trained(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, and the change by training, divided by the rate."""
        origin = message["params"]
        new = descend(task.loss, origin, client)
        g = tree.tmap(lambda a, b: (a - b) / client.rate, origin, new)
        return {"loss": measure.train_loss(task, origin, client), "gradient": g}, client.state

    @phase("gather", loss="statistic", gradient=Part("gradient", of="params"))
    def full(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model and its gradient, on all examples."""
        origin = message["params"]
        loss, g = measure.loss_and_gradient(task, origin, client)
        return {"loss": loss, "gradient": g}, client.state


def directions(vectors: Tensor, widths: list[int]) -> Tensor:
    """The shortest convex combination of the rows in each layer, with layers of 0 merged."""
    layers = list(torch.split(vectors, widths, 1))
    at = 0
    done: list[Tensor] = []
    while at < len(layers):
        part = layers[at]
        centre = torch.full((len(part),), 1 / len(part), dtype=torch.float64)
        products = gram(part)
        d = combination(min_norm(products, centre, 1.0), part)
        if float(d.square().sum()) > ZERO * float(products.diagonal().mean()):
            done.append(d)
            at += 1
        elif len(layers) == 1:  # nothing lowers all objectives
            return torch.zeros_like(d)
        elif at + 1 < len(layers):
            layers[at : at + 2] = [torch.cat(layers[at : at + 2], 1)]
        else:
            layers[at - 1 :] = [torch.cat(layers[at - 1 :], 1)]
            done.pop()
            at -= 1
    return torch.cat(done)
