"""Matching the neurons of several networks: which neuron of one is which of the others.

The model is that of PFNM (Yurochkin et al., ICML 2019). There is an unknown number of global
neurons, vectors theta_i ~ N(mu0, 1 / p0). Each client j has some of them, chosen by an Indian
buffet process of mass gamma, and its neuron l, if it is global neuron i, is v_jl ~ N(theta_i,
1 / p_j). Precisions may differ by client and coordinate; 0 is a coordinate not seen. With

    W_i = p0 mu0 + sum of p_j v_jl,    S_i = p0 + sum of p_j    over the neurons matched to i

the best theta_i is W_i / S_i, and twice the log posterior is sum_i W_i^2 / S_i plus twice the
logarithm of the buffet's probability. So, the others being fixed, what client j adds when its
neuron l is put to i is

    (p_j v_jl + W_i)^2 / (p_j + S_i) - W_i^2 / S_i + 2 log(c_i / (J - c_i))

with W, S and the number c_i of clients matched to i taken over the others, and, for the r-th new
neuron, the same with W = p0 mu0, S = p0 and 2 log(gamma / J) - 2 log r. Clients are matched one
after the other, each by the best assignment there is: first to the first client's neurons, then
again, in sweeps, in which new ones may come, until nothing moves. (With new neurons from the first
pass on, when no neuron has many clients yet, clients end up with ones that nobody else will join.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.core.client import Client
from isonomy.core.task import Task

LITTLE = 1e-6  # the say of a client in a class of which it has no example


class Prior(NamedTuple):
    """What is known of a global neuron before any client's is seen: [dimensions] each."""

    mean: Tensor
    precision: Tensor


class Pool(NamedTuple):
    """Global neurons: W and S [width, dimensions], and how many clients have each [width]."""

    sums: Tensor
    precision: Tensor
    counts: Tensor


def check_options(sigma: float, sigma0: float, gamma: float, grow: float, sweeps: int) -> None:
    """Refuse what cannot be matched with."""
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
    most `grow` times as many global neurons as units, and without sweeps just as many. They are
    numbered as the first client's are, as far as these stay, then as they were added. Clients go
    by size, the largest first.
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
            if sweep:  # without j, and without what only j had
                sums.index_add_(0, assigned[j], -seen)
                has[:, j] = 0
                kept = has.any(1)
                assigned = (torch.cumsum(kept, 0) - 1)[assigned]
                sums, has = sums[kept], has[kept]
            width = len(has)
            room = (most if sweep else units) - width
            start = prior.mean * prior.precision
            others = Pool(start + sums, prior.precision + has @ precision, has.sum(1))
            gain = gains(
                neurons[j],
                precision[j],
                others,
                prior,
                clients=clients,
                gamma=gamma,
                new=min(units, room),
            )
            at = assigned[j] = _numbered(best(gain), width)
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
    pool: Pool,
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


def best(gain: Tensor) -> Tensor:
    """The column of each row, no column twice, with the largest sum (the Hungarian method)."""
    from scipy.optimize import linear_sum_assignment  # half a second that other methods are spared

    finite = gain.nan_to_num(0.0, 0.0, 0.0)  # of weights that diverged: the run will say so
    return torch.from_numpy(linear_sum_assignment(finite.numpy(), maximize=True)[1])


def posterior(neurons: Tensor, precision: Tensor, prior: Prior, assigned: Tensor) -> Tensor:
    """The global neurons W / S, [width, dimensions]; 0 where nothing at all is known."""
    width = int(assigned.max()) + 1
    sums = (prior.mean * prior.precision).repeat(width, 1)
    has = torch.zeros(width, len(neurons), dtype=torch.float64)
    for j, at in enumerate(assigned):
        sums.index_add_(0, at, neurons[j].double() * precision[j])
        has[at, j] = 1
    return (sums * _inverse(prior.precision + has @ precision)).to(neurons.dtype)


def class_sizes(task: Task, client: Client) -> Tensor:
    """How many examples the client has for each output of the network.

    With an output for each class, the class's examples; else all. Never quite 0, so that a class
    that no client has is averaged with equal weights.
    """
    if task.loss_name != "cross_entropy":
        return client.size.reshape(1)
    total = torch.zeros(task.classes)
    for page in client.pages("train"):
        own = (page.y.unsqueeze(-1) == torch.arange(task.classes)).to(page.weight.dtype)
        total = total + (own * page.weight.unsqueeze(-1)).sum(0)
    return total.clamp(min=LITTLE)


def _order(neurons: Tensor, sizes: Tensor) -> list[int]:
    """Largest first; of equal clients the one with smaller weights, whatever their numbers are."""
    norms = neurons.double().square().sum((1, 2)).tolist()
    return sorted(range(len(norms)), key=lambda j: (-float(sizes[j]), norms[j]))


def _numbered(columns: Tensor, width: int) -> Tensor:
    """New neurons numbered in the order of the client's own, as any other order is as good."""
    new = columns >= width
    return torch.where(new, width + torch.cumsum(new, 0) - 1, columns)


def _inverse(t: Tensor) -> Tensor:
    """1 / t, and 0 for 0."""
    return torch.where(t > 0, 1 / t, 0.0)
