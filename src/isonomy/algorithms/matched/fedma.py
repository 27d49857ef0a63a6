"""FedMA: matched averaging, layer by layer: match, average and freeze a layer, retrain the rest.

Wang, Yurochkin, Sun, Papailiopoulos and Khazaeni, "Federated learning with matched averaging",
ICLR 2020, with communication. A round is one pass over the N layers, with one exchange per layer.
For n = 1, ..., N - 1:

    every client descends on layers n, ..., N with the server's layers 1, ..., n - 1 frozen below,
        and sends layer n: a neuron or channel is its incoming weights and bias
    Pi_j <- the matching of all clients' neurons (`isonomy.blocks.matching`)
    W_n <- mean over clients of W_jn Pi_j,    W_j(n+1) <- Pi_j W_j(n+1)

Finally the clients train only layer N, whose row k is averaged with weights n_jk, the number of
client j's examples of class k. In the next round a client begins with the neurons that its own were
matched to, in their order, at the original width. The server's network has 1 to `grow` times that
width and predicts as it is. A client that was not in the last round begins with the neurons that
most clients have; in the paper all clients take part in every round.

All layers are matched within one round, not one layer per round, because a client that misses the
matching of a layer cannot take part in that of the next one. So a round has N times the local work
and exchanges of FedAvg. Neurons are averaged over the clients that have them; the authors' code
uses the posterior mean (`average = "posterior"`). Matching differs from their code as in PFNM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.chain import (
    all_units,
    check_chain,
    layers,
    random_like,
    reassigned,
    subnetwork,
    widened,
)
from isonomy.blocks.descent import descend
from isonomy.blocks.matching import Prior, check_options, class_sizes, match, posterior
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort, Replies
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Batch, Params, Task


class Server(NamedTuple):
    """The network, each client's units in it [clients, units] by layer, and the rounds so far."""

    params: Params
    assigned: dict[str, Tensor]
    rounds: Tensor


@dataclass(frozen=True)
class FedMA(Algorithm[Server]):
    """Matched averaging layer by layer, for dense and convolutional networks."""

    name: ClassVar[str] = "fedma"
    family: ClassVar[str] = "matched"
    paper: ClassVar[str] = "Wang et al., ICLR 2020"
    reveals: ClassVar[str] = (
        "each client's hidden layers, only the class-weighted sum of the clients' last layers, and "
        "the total number of examples of each class"
    )

    sigma: float = option(
        1.0, "variance of a client's neuron around the server's", search=Grid((0.1, 0.5, 1.0))
    )
    sigma0: float = option(
        1.0,
        "variance of the server's neurons around mu0; inf: no pull to mu0",
        search=Grid((1.0, 10.0)),
    )
    gamma: float = option(
        7.0,
        "mass of the buffet process; larger values add more neurons",
        search=Range(1.0, 50.0, log=True),
    )
    later: float = option(5.0, "gamma of all rounds after the first")
    bias: float = option(0.1, "mu0 of biases; mu0 of weights is 0")
    grow: float = option(
        7.0, "largest width of the server's layers, in multiples of the clients' width"
    )
    sweeps: int = option(5, "largest number of sweeps, in which every client is matched again")
    average: Literal["mean", "posterior"] = option("mean", "average of matched neurons")
    output: Literal["classes", "equal"] = option(
        "classes", "a client's weight in the last layer: by class sizes, or equal"
    )
    start: Literal["common", "own"] = option(
        "common", "initial models: the server's, or drawn by each client"
    )

    def __post_init__(self) -> None:
        for gamma in (self.gamma, self.later):
            check_options(self.sigma, self.sigma0, gamma, self.grow, self.sweeps)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial network, all of which every client has."""
        check_chain(task, self.name, convolutions=True)
        return Server(params, all_units(params, clients), torch.zeros((), dtype=torch.int64))

    def init_client(self, task: Task, params: Params) -> State:
        """The layers that are not matched yet, kept between the exchanges of a round."""
        return {"params": _layers(params, layers(params)[1:])}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Layer by layer: train, match, freeze."""
        names = layers(server.params)
        mine = {name: at[cohort.ids] for name, at in server.assigned.items()}
        own = {"params": vmap(partial(subnetwork, server.params))(mine)}
        first = not int(server.rounds)
        frozen: Params = {}
        matched: dict[str, tuple[Tensor, Tensor]] = {}
        if first and self.start == "own":
            got = cohort.gather(self.alone, {}, each=own)
        else:
            got = cohort.gather(self.begin, {}, each=own)
        for name, after in pairwise(names):
            layer, at = self._matched(name, got, self.gamma if first else self.later)
            frozen = {**frozen, **layer}
            matched[name] = (got.ids, at)
            if after != names[-1]:
                got = cohort.gather(self.retrain, {"frozen": frozen}, each={"at": at})
        sums = cohort.sum(self.last, {"frozen": frozen}, each={"at": at})
        head = {key: (t / _like(sums["sizes"], t)).float() for key, t in sums["layer"].items()}
        new = {name: at[torch.isin(ids, cohort.ids)] for name, (ids, at) in matched.items()}
        return Server(
            params={**frozen, **head},
            assigned=reassigned(server.assigned, cohort.ids, new),
            rounds=server.rounds + 1,
        )

    def _matched(self, name: str, got: Replies, gamma: float) -> tuple[Params, Tensor]:
        """The server's layer, and the neuron in it of each client's neuron."""
        layer = got.value["layer"]
        weight, bias = layer[f"{name}.weight"], layer[f"{name}.bias"]
        neurons = torch.cat([weight.flatten(2), bias.unsqueeze(-1)], -1)
        mean = torch.zeros(neurons.shape[-1], dtype=torch.float64)
        mean[-1] = self.bias
        prior = Prior(mean, torch.full_like(mean, 1 / self.sigma0))
        precision = torch.full((len(bias), len(mean)), 1 / self.sigma, dtype=torch.float64)
        at = match(
            neurons,
            precision,
            prior,
            got.sizes,
            gamma=gamma,
            grow=self.grow,
            sweeps=self.sweeps,
        )
        if self.average == "mean":
            prior = Prior(mean, torch.zeros_like(mean))
        theta = posterior(neurons, precision, prior, at)
        made = theta[:, :-1].reshape(-1, *weight.shape[2:])
        return {f"{name}.weight": made, f"{name}.bias": theta[:, -1].contiguous()}, at

    @phase("gather", layer=Part("model"))
    def begin(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent from the client's part of the server's network; sends the first layer."""
        params = descend(task.loss, message["params"], client)
        names = layers(params)
        return {"layer": _layers(params, names[:1])}, {"params": _layers(params, names[1:])}

    @phase("gather", layer=Part("model"))
    def alone(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent from weights that the client draws; sends the first layer."""
        return self.begin(task, {"params": random_like(message["params"], client)}, client)

    @phase("gather", times=16, layer=Part("model"))
    def retrain(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent on the layers above the frozen ones; sends the lowest of them."""
        frozen, kept = message["frozen"], client.state["params"]
        names = layers(frozen)
        name = layers(kept)[len(names) - 1]
        width = frozen[f"{names[-1]}.bias"].shape[0]
        weight = widened(kept[f"{name}.weight"], message["at"], width)
        above = _layers(kept, layers(kept)[len(names) - 1 :])

        def loss(params: Params, batch: Batch) -> Tensor:
            return task.loss({**frozen, **params}, batch)

        trained = descend(loss, {**above, f"{name}.weight": weight}, client)
        rest = _layers(trained, layers(trained)[1:])
        return {"layer": _layers(trained, (name,))}, {"params": {**kept, **rest}}

    @phase("sum", layer=Part("model"), sizes="group statistic")
    def last(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training of the last layer only; sends it weighted by the client's class sizes."""
        got, state = self.retrain(task, message, client)
        sizes = class_sizes(task, client)
        if self.output == "equal":
            sizes = torch.ones_like(sizes)
        weighted = {key: t * _like(sizes, t) for key, t in got["layer"].items()}
        return {"layer": weighted, "sizes": sizes}, state

    def deployed(self, server: Server) -> Global:
        """The network; the assignment of neurons is only used in training."""
        return Global(server.params)


def _layers(params: Params, names: tuple[str, ...]) -> Params:
    """The weights and biases of these layers."""
    return {
        f"{name}.{kind}": params[f"{name}.{kind}"] for name in names for kind in ("weight", "bias")
    }


def _like(rows: Tensor, t: Tensor) -> Tensor:
    """One number per row, in a shape that broadcasts against `t`."""
    return rows.reshape(-1, *[1] * (t.dim() - 1))
