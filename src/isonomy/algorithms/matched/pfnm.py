"""PFNM: the clients' neurons are matched before they are averaged, and the network may grow.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang and Khazaeni, "Bayesian nonparametric federated
learning of neural networks", ICML 2019. In a round every client descends from its own part of the
server's network. A hidden neuron l of client j is the vector v_jl of its bias, its outgoing
weights and, in the first layer, its incoming ones, observed with precision 1 / sigma (for weights
to the output layer, multiplied by the client's share of each class). The neurons of all clients
are matched (`isonomy.blocks.matching`), the last hidden layer first, and

    theta_i <- (mu0 / sigma0 + sum_jl v_jl / sigma) / (1 / sigma0 + sum_jl 1 / sigma)

over the neurons matched to i. A neuron that fits no other becomes a new neuron of the server, whose
network has from 1 to `grow` times the clients' width and predicts as it is. In the next round a
client gets the neurons that its own were matched to, in their order (the authors' iterative
variant), so the clients' networks keep their width. A client that was not in the last round gets
the neurons that most clients have; in the paper all clients take part in every round.

Differences from the authors' code: the popularity term of a neuron is 2 log(c / (J - c)), as in
the posterior, not the log of a count capped at 10; weights to a neuron that a client does not have
are unobserved, not observed as 0; every sweep matches clients in order of size, not in random
order; `grow` replaces a fixed limit of 700 neurons.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.chain import all_units, check_chain, layers, random_like, reassigned, subnetwork
from isonomy.blocks.descent import descend
from isonomy.blocks.matching import Prior, check_options, class_sizes, match, posterior
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """The network, each client's units in it [clients, units] by layer, and the rounds so far."""

    params: Params
    assigned: dict[str, Tensor]
    rounds: Tensor


@dataclass(frozen=True)
class PFNM(Algorithm[Server]):
    """Averaging of matched neurons, with a network that may grow."""

    name: ClassVar[str] = "pfnm"
    family: ClassVar[str] = "matched"
    paper: ClassVar[str] = "Yurochkin et al., ICML 2019"
    reveals: ClassVar[str] = "each client's model, and how many examples of each class it has"

    sigma: float = option(
        1.0, "variance of a client's neuron around the server's", search=Grid((0.1, 0.5, 1.0))
    )
    sigma0: float = option(
        10.0,
        "variance of the server's neurons around mu0; inf: no pull to mu0",
        search=Grid((1.0, 10.0)),
    )
    gamma: float = option(
        1.0,
        "mass of the buffet process; larger values add more neurons",
        search=Grid((0.001, 1.0, 50.0)),
    )
    bias: float = option(0.1, "mu0 of biases; mu0 of weights is 0")
    grow: float = option(
        7.0, "largest width of the server's layers, in multiples of the clients' width"
    )
    sweeps: int = option(5, "largest number of sweeps, in which every client is matched again")
    output: Literal["classes", "equal"] = option(
        "classes", "a client's weight in the last layer: by class sizes, or equal"
    )
    start: Literal["common", "own"] = option(
        "common", "initial models: the server's, or drawn by each client"
    )

    def __post_init__(self) -> None:
        check_options(self.sigma, self.sigma0, self.gamma, self.grow, self.sweeps)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial network, all of which every client has."""
        check_chain(task, self.name, convolutions=False)
        return Server(params, all_units(params, clients), torch.zeros((), dtype=torch.int64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Local training, then matching from the last hidden layer to the first."""
        mine = {name: at[cohort.ids] for name, at in server.assigned.items()}
        own = {"params": vmap(partial(subnetwork, server.params))(mine)}
        if self.start == "own" and not int(server.rounds):
            got = cohort.gather(self.alone, {}, each=own)
        else:
            got = cohort.gather(self.local, {}, each=own)
        params, at = self._matched(got.value["params"], got.value["sizes"], got.sizes)
        return Server(params, reassigned(server.assigned, got.ids, at), server.rounds + 1)

    def _matched(
        self, nets: Params, classes: Tensor, sizes: Tensor
    ) -> tuple[Params, dict[str, Tensor]]:
        """The server's network, and the neuron in it of each client's neuron, by layer."""
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
        """The prior of this many weights, then this many biases."""
        mean = torch.tensor([0.0] * weights + [self.bias] * biases, dtype=torch.float64)
        return Prior(mean, torch.full_like(mean, 1 / self.sigma0))

    @phase("gather", params="model", sizes="group statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent from the client's part of the server's network."""
        params = descend(task.loss, message["params"], client)
        return {"params": params, "sizes": class_sizes(task, client)}, client.state

    @phase("gather", params="model", sizes="group statistic")
    def alone(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent from weights that the client draws."""
        return self.local(task, {"params": random_like(message["params"], client)}, client)

    def deployed(self, server: Server) -> Global:
        """The network; the assignment of neurons is only used in training."""
        return Global(server.params)


def _spread(weight: Tensor, at: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Weights to a client's units as weights to the server's units, and which of these it has."""
    clients, _, inputs = weight.shape
    wide = weight.new_zeros(clients, width, inputs)
    wide = wide.scatter(1, at.unsqueeze(-1).expand_as(weight), weight)
    has = torch.zeros(clients, width, dtype=torch.float64).scatter(1, at, 1.0)
    return wide, has
