"""FedMA: layer by layer, neurons or channels are matched, averaged, frozen, and the rest retrained.

Wang, Yurochkin, Sun, Papailiopoulos and Khazaeni, "Federated learning with matched averaging",
ICLR 2020, with communication. A round is one pass over the N layers, with one exchange for each.
For n = 1, ..., N - 1:

    every client descends on layers n, ..., N with the server's layers 1, ..., n - 1 frozen below,
        and sends layer n: a neuron or channel is its incoming weights and bias
    Pi_j <- the matching of all clients' neurons (`isonomy.blocks.matching`)
    W_n <- mean over clients of W_jn Pi_j,    W_j(n+1) <- Pi_j W_j(n+1)

and last they train layer N alone, of which row k is averaged with weights n_jk, the number of
client j's examples of class k. In the next round a client begins with the neurons that its own were
matched to, in their order, at the model's own width; the server's network, of 1 to `grow` times
that width, predicts as it is. A client that was not in the last round begins with the neurons that
most clients have; the paper has all clients in every round.

A pass within one round, and not a layer a round, because a client that was away when a layer was
matched has no place for its next one: so a round has N times FedAvg's local work and exchanges.
Neurons are averaged over the clients that have them; the authors' code has the posterior mean
(`average = "posterior"`). Matching departs from their code as PFNM does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.chain import check_chain, everyone, layers, part, redrawn, renewed, widened
from isonomy.blocks.descent import descend
from isonomy.blocks.matching import Prior, check_options, class_sizes, match, posterior
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort, Replies
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class FedMA(Algorithm):
    """Matched averaging layer by layer, for dense and convolutional networks."""

    name: ClassVar[str] = "fedma"
    family: ClassVar[str] = "matched"
    paper: ClassVar[str] = "Wang et al., ICLR 2020"
    reveals: ClassVar[str] = (
        "each client's hidden layers; of the last layer only sums weighted by class, and how many "
        "examples of each class all clients have together"
    )

    sigma: float = option(1.0, "variance of a client's neuron about the server's")
    sigma0: float = option(1.0, "variance of the server's neurons about mu0; inf: no pull to it")
    gamma: float = option(7.0, "mass of the buffet process: the larger, the more new neurons")
    later: float = option(5.0, "gamma of all rounds but the first")
    bias: float = option(0.1, "mu0 of biases; that of weights is 0")
    grow: float = option(
        7.0, "most neurons of the server's layers, in widths of the clients'; 1: as many"
    )
    sweeps: int = option(5, "times that every client is matched again, at most")
    average: Literal["mean", "posterior"] = option("mean", "of matched neurons")
    output: Literal["classes", "equal"] = option("classes", "a client's say in the last layer")
    start: Literal["common", "own"] = option(
        "common", "first models: the server's, or drawn by clients"
    )

    def __post_init__(self) -> None:
        for gamma in (self.gamma, self.later):
            check_options(self.sigma, self.sigma0, gamma, self.grow, self.sweeps)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The network, each client's neurons in it, and the rounds so far."""
        check_chain(task, self.name, convolutions=True)
        return {
            "params": params,
            "assigned": everyone(params, clients),
            "rounds": torch.zeros((), dtype=torch.int64),
        }

    def init_client(self, task: Task, params: Params) -> State:
        """The layers that are not matched yet, between the exchanges of a round."""
        return {"params": _layers(params, layers(params)[1:])}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """One layer after the other: train, match, freeze."""
        names = layers(server["params"])
        mine = {name: at[cohort.ids] for name, at in server["assigned"].items()}
        own = {"params": vmap(partial(part, server["params"]))(mine)}
        first = not int(server["rounds"])
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
        return {
            "params": {**frozen, **head},
            "assigned": renewed(server["assigned"], cohort.ids, new),
            "rounds": server["rounds"] + 1,
        }

    def _matched(self, name: str, got: Replies, gamma: float) -> tuple[Params, Tensor]:
        """The server's layer, and which of its neurons each client's are."""
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
        """Descend from one's own part of the server's network; send the first layer."""
        params = descend(task.loss, message["params"], client)
        names = layers(params)
        return {"layer": _layers(params, names[:1])}, {"params": _layers(params, names[1:])}

    @phase("gather", layer=Part("model"))
    def alone(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend from weights of one's own; send the first layer."""
        return self.begin(task, {"params": redrawn(message["params"], client)}, client)

    @phase("gather", layer=Part("model"))
    def retrain(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on the layers above the frozen ones; send the lowest of them."""
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
        """Train the last layer alone; send it weighted by what one knows of each class."""
        got, state = self.retrain(task, message, client)
        sizes = class_sizes(task, client)
        if self.output == "equal":
            sizes = torch.ones_like(sizes)
        weighted = {key: t * _like(sizes, t) for key, t in got["layer"].items()}
        return {"layer": weighted, "sizes": sizes}, state

    def deployed(self, server: Any) -> Any:
        """The network; who has which neurons is for training only."""
        return {"params": server["params"]}


def _layers(params: Params, names: tuple[str, ...]) -> Params:
    """Some layers' weights and biases."""
    return {
        f"{name}.{kind}": params[f"{name}.{kind}"] for name in names for kind in ("weight", "bias")
    }


def _like(rows: Tensor, t: Tensor) -> Tensor:
    """A number for each row of `t`."""
    return rows.reshape(-1, *[1] * (t.dim() - 1))
