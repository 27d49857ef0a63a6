"""PFNM: clients' neurons are matched before they are averaged, and the network may grow.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang and Khazaeni, "Bayesian nonparametric federated
learning of neural networks", ICML 2019. In a round every client descends from its own part of the
server's network. A hidden neuron l of client j is the vector v_jl of its bias, its outgoing
weights and, in the first layer, its incoming ones, seen with precision 1 / sigma (the outgoing
weights of the last layer: times the client's share of each class). The neurons of all clients are
matched (`isonomy.blocks.matching`), the last hidden layer first, and

    theta_i <- (mu0 / sigma0 + sum_jl v_jl / sigma) / (1 / sigma0 + sum_jl 1 / sigma)

over the neurons matched to i. A neuron that fits none of the others is one of the server's own:
the server's network has from 1 to `grow` times the width of the clients', and predicts as it is.
In the next round a client gets the neurons that its own were matched to, in their order (the
authors' iterative variant), so clients keep the model's width. A client that was not in the last
round gets those that most clients have; the paper has all clients in every round.

Departures from the authors' code: the term of a neuron's popularity is 2 log(c / (J - c)), as the
posterior has it, not log of a count capped at 10; weights to a neuron that a client does not have
are unseen, not seen as 0; clients are matched by size and in that order in every sweep, not at
random; `grow` stands for a fixed limit of 700 neurons.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.chain import check_chain, everyone, layers, part, redrawn, renewed
from isonomy.blocks.descent import descend
from isonomy.blocks.matching import Prior, check_options, class_sizes, match, posterior
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class PFNM(Algorithm):
    """Averaging of matched neurons, with a network that may grow."""

    name: ClassVar[str] = "pfnm"
    family: ClassVar[str] = "matched"
    paper: ClassVar[str] = "Yurochkin et al., ICML 2019"
    reveals: ClassVar[str] = "each client's model, and how many examples of each class it has"

    sigma: float = option(1.0, "variance of a client's neuron about the server's")
    sigma0: float = option(10.0, "variance of the server's neurons about mu0; inf: no pull to it")
    gamma: float = option(1.0, "mass of the buffet process: the larger, the more new neurons")
    bias: float = option(0.1, "mu0 of biases; that of weights is 0")
    grow: float = option(
        7.0, "most neurons of the server's layers, in widths of the clients'; 1: as many"
    )
    sweeps: int = option(5, "times that every client is matched again, at most")
    output: Literal["classes", "equal"] = option("classes", "a client's say in the last layer")
    start: Literal["common", "own"] = option(
        "common", "first models: the server's, or drawn by clients"
    )

    def __post_init__(self) -> None:
        check_options(self.sigma, self.sigma0, self.gamma, self.grow, self.sweeps)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The network, each client's neurons in it, and the rounds so far."""
        check_chain(task, self.name, convolutions=False)
        return {
            "params": params,
            "assigned": everyone(params, clients),
            "rounds": torch.zeros((), dtype=torch.int64),
        }

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Local training, then matching from the last hidden layer to the first."""
        mine = {name: at[cohort.ids] for name, at in server["assigned"].items()}
        own = {"params": vmap(partial(part, server["params"]))(mine)}
        if self.start == "own" and not int(server["rounds"]):
            got = cohort.gather(self.alone, {}, each=own)
        else:
            got = cohort.gather(self.local, {}, each=own)
        params, at = self._matched(got.value["params"], got.value["sizes"], got.sizes)
        return {
            "params": params,
            "assigned": renewed(server["assigned"], got.ids, at),
            "rounds": server["rounds"] + 1,
        }

    def _matched(self, nets: Params, classes: Tensor, sizes: Tensor) -> tuple[Params, Any]:
        """The server's network, and which of its neurons each client's are."""
        names = layers(nets)
        weights = {name: nets[f"{name}.weight"] for name in names}
        biases = {name: nets[f"{name}.bias"] for name in names}
        share = classes.double() / classes.double().sum(0)
        seen = (torch.ones_like(share) if self.output == "equal" else share) / self.sigma
        above = torch.zeros(len(sizes), 1, dtype=torch.int64)
        out = biases[names[-1]].unsqueeze(1)
        last = posterior(out, seen, self._prior(0, seen.shape[1]), above)
        params = {f"{names[-1]}.bias": last[0]}
        wide, assigned = weights[names[-1]], {}
        for c in reversed(range(len(names) - 1)):
            name, after = names[c], names[c + 1]
            inputs = 0 if c else weights[name].shape[-1]
            incoming = weights[name][..., :inputs]
            neurons = torch.cat([incoming, wide.mT, biases[name].unsqueeze(-1)], -1)
            own = torch.full((len(sizes), 1), 1 / self.sigma, dtype=torch.float64)
            precision = torch.cat([own.expand(-1, inputs), seen, own], -1)
            prior = self._prior(neurons.shape[-1] - 1, 1)
            at = match(
                neurons,
                precision,
                prior,
                sizes,
                gamma=self.gamma,
                grow=self.grow,
                sweeps=self.sweeps,
            )
            theta = posterior(neurons, precision, prior, at)
            params[f"{name}.bias"] = theta[:, -1]
            params[f"{after}.weight"] = theta[:, inputs:-1].T
            assigned[name] = at
            if c == 0:
                params[f"{name}.weight"] = theta[:, :inputs]
            else:
                wide, has = _spread(weights[name], at, len(theta))
                seen = has / self.sigma
        return {key: params[key].contiguous() for key in nets}, {n: assigned[n] for n in names[:-1]}

    def _prior(self, weights: int, biases: int) -> Prior:
        mean = torch.tensor([0.0] * weights + [self.bias] * biases, dtype=torch.float64)
        return Prior(mean, torch.full_like(mean, 1 / self.sigma0))

    @phase("gather", params="model", sizes="group statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend from one's own part of the server's network."""
        params = descend(task.loss, message["params"], client)
        return {"params": params, "sizes": class_sizes(task, client)}, client.state

    @phase("gather", params="model", sizes="group statistic")
    def alone(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend from weights of one's own."""
        return self.local(task, {"params": redrawn(message["params"], client)}, client)

    def deployed(self, server: Any) -> Any:
        """The network; who has which neurons is for training only."""
        return {"params": server["params"]}


def _spread(weight: Tensor, at: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Weights to the units of a layer, as weights to the server's; and which of these one has."""
    clients, _, inputs = weight.shape
    wide = weight.new_zeros(clients, width, inputs)
    wide = wide.scatter(1, at.unsqueeze(-1).expand_as(weight), weight)
    has = torch.zeros(clients, width, dtype=torch.float64).scatter(1, at, 1.0)
    return wide, has
