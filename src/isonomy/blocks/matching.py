"""Matching the neurons of several networks: which neurons correspond to each other.

The model is that of PFNM (Yurochkin et al., ICML 2019). There is an unknown number of global
neurons, vectors theta_i ~ N(mu0, 1 / p0). Each client j has some of them, chosen by an Indian
buffet process of mass gamma, and its neuron l, if it is global neuron i, is v_jl ~ N(theta_i,
1 / p_j). Precisions may differ by client and coordinate; 0 is an unobserved coordinate. With

    W_i = p0 mu0 + sum of p_j v_jl,    S_i = p0 + sum of p_j    over the neurons matched to i

the best theta_i is W_i / S_i, and twice the log posterior is sum_i W_i^2 / S_i plus twice the
log probability of the buffet process. So, with the other clients fixed, matching neuron l of
client j to i adds

    (p_j v_jl + W_i)^2 / (p_j + S_i) - W_i^2 / S_i + 2 log(c_i / (J - c_i))

where W, S and the number c_i of clients matched to i are taken over the other clients. The r-th
new neuron adds the same with W = p0 mu0, S = p0 and 2 log(gamma / J) - 2 log r. Clients are matched
one after the other, each by the optimal assignment: first to the neurons of the first client, then
in sweeps, which may add neurons, until nothing changes. (If the first pass could add neurons,
while no neuron has many clients yet, clients would end up with neurons that no other client uses.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.core.client import Client
from isonomy.core.task import Task

MIN_SIZE = 1e-6  # of a class of which a client has no example


class Prior(NamedTuple):
    """The prior mean and precision of a global neuron, [dimensions] each."""

    mean: Tensor
    precision: Tensor


class GlobalNeurons(NamedTuple):
    """Global neurons: W and S [width, dimensions], and how many clients have each [width]."""

    sums: Tensor
    precision: Tensor
    counts: Tensor


def check_options(sigma: float, sigma0: float, gamma: float, grow: float, sweeps: int) -> None:
    """Raise a ValueError for options outside their range."""
    for name, value in {"sigma": sigma, "gamma": gamma}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value}: give a number above 0.")
    if not sigma0 > 0:
        raise ValueError(f"sigma0 = {sigma0}: give a number above 0, or inf.")
    if not grow >= 1:
        raise ValueError(f"grow = {grow}: give 1 or more.")
    if sweeps < 0:
        raise ValueError(f"sweeps = {sweeps}: give 0 or more.")


def match(
    neurons: Tensor,
    precision: Tensor,
    prior: Prior,
    sizes: Tensor,
    *,
    gamma: float,
    grow: float,
    sweeps: int,
) -> Tensor:
    """The global neuron of each client's neuron, [clients, units].

    `neurons` is [clients, units, dimensions], `precision` [clients, dimensions]. There are at
    most `grow` times as many global neurons as units, and without sweeps exactly as many. The
    neurons of the first client come first, if they are kept, then the others in the order in which
    they were added. Clients are matched in order of size, the largest first.
    """
    clients, units, dimensions = neurons.shape
    most = math.floor(min(grow, clients) * units)
    assigned = torch.full((clients, units), -1)
    has = torch.zeros(0, clients, dtype=torch.float64)
    sums = torch.zeros(0, dimensions, dtype=torch.float64)
    order = _order(neurons, sizes)
    for sweep in range(sweeps + 1):
        before = assigned.clone()
        for j in order:
            seen = neurons[j].double() * precision[j]
            if sweep:  # remove j, and the neurons that only j had
                sums.index_add_(0, assigned[j], -seen)
                has[:, j] = 0
                kept = has.any(1)
                assigned = (torch.cumsum(kept, 0) - 1)[assigned]
                sums, has = sums[kept], has[kept]
            width = len(has)
            room = (most if sweep else units) - width
            start = prior.mean * prior.precision
            others = GlobalNeurons(start + sums, prior.precision + has @ precision, has.sum(1))
            gain = gains(
                neurons[j],
                precision[j],
                others,
                prior,
                clients=clients,
                gamma=gamma,
                new=min(units, room),
            )
            at = assigned[j] = _numbered(best_assignment(gain), width)
            more = max(int(at.max()) + 1 - width, 0)
            sums = torch.cat([sums, sums.new_zeros(more, dimensions)]).index_add_(0, at, seen)
            has = torch.cat([has, has.new_zeros(more, clients)])
            has[at, j] = 1
        if clients == 1 or (sweep and torch.equal(assigned, before)):
            break
    return assigned


def gains(
    neurons: Tensor,
    precision: Tensor,
    pool: GlobalNeurons,
    prior: Prior,
    *,
    clients: int,
    gamma: float,
    new: int,
) -> Tensor:
    """What each neuron of a client adds to twice the log posterior, [units, width + new]."""
    x, p = neurons.double() * precision, precision
    both = _inverse(p + pool.precision)
    alone = (pool.sums.square() * (both - _inverse(pool.precision))).sum(1)
    fit = x.square() @ both.T + 2 * x @ (pool.sums * both).T + alone
    fit = fit + 2 * torch.log(pool.counts / (clients - pool.counts))
    start = prior.mean * prior.precision
    fresh = ((x + start).square() * _inverse(p + prior.precision)).sum(1)
    fresh = fresh - (start * prior.mean).sum() + 2 * math.log(gamma / clients)
    rank = torch.arange(1, new + 1, dtype=torch.float64)
    return torch.cat([fit, fresh.unsqueeze(1) - 2 * rank.log()], 1)


def best_assignment(gain: Tensor) -> Tensor:
    """A different column for each row, with the largest total gain (the Hungarian method)."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only needed here

    finite = gain.nan_to_num(0.0, 0.0, 0.0)  # diverged weights; the run reports them
    return torch.from_numpy(linear_sum_assignment(finite.numpy(), maximize=True)[1])


def posterior(neurons: Tensor, precision: Tensor, prior: Prior, assigned: Tensor) -> Tensor:
    """The global neurons W / S, [width, dimensions]; 0 where the precision is 0."""
    width = int(assigned.max()) + 1
    sums = (prior.mean * prior.precision).repeat(width, 1)
    has = torch.zeros(width, len(neurons), dtype=torch.float64)
    for j, at in enumerate(assigned):
        sums.index_add_(0, at, neurons[j].double() * precision[j])
        has[at, j] = 1
    return (sums * _inverse(prior.precision + has @ precision)).to(neurons.dtype)


def class_sizes(task: Task, client: Client) -> Tensor:
    """How many examples the client has for each output of the network.

    If there is one output per class, these are the class's examples, otherwise all examples. The
    result is at least MIN_SIZE, so a class that no client has is averaged with equal weights.
    """
    if task.loss_name != "cross_entropy":
        return client.size.reshape(1)
    total = torch.zeros(task.classes)
    for page in client.pages("train"):
        own = (page.y.unsqueeze(-1) == torch.arange(task.classes)).to(page.weight.dtype)
        total = total + (own * page.weight.unsqueeze(-1)).sum(0)
    return total.clamp(min=MIN_SIZE)


def _order(neurons: Tensor, sizes: Tensor) -> list[int]:
    """Largest client first, then smaller weights first, so that ids do not matter."""
    norms = neurons.double().square().sum((1, 2)).tolist()
    return sorted(range(len(norms)), key=lambda j: (-float(sizes[j]), norms[j]))


def _numbered(columns: Tensor, width: int) -> Tensor:
    """Number the new neurons in the order of the client's own; their order is arbitrary."""
    new = columns >= width
    return torch.where(new, width + torch.cumsum(new, 0) - 1, columns)


def _inverse(t: Tensor) -> Tensor:
    """1 / t, or 0 where t is 0."""
    return torch.where(t > 0, 1 / t, 0.0)
