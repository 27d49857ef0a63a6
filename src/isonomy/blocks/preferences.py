"""Preferences: points of the simplex, grids of them, and a distribution that can be learnt.

The distribution is a mixture of Dirichlet distributions; HetPFL's has one component. A sample is
computed from given normal and uniform numbers (Marsaglia and Tsang, 2000), so that it can be drawn
inside a local loop while the distribution changes from step to step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.core.client import Client
from isonomy.core.tree import Tree

TRIES = 5  # attempts of the rejection sampler; each succeeds with probability 0.95 or more


class Draws(NamedTuple):
    """Random numbers for samples; the leading axes are those of the samples."""

    normal: Tensor  # [..., m, TRIES]
    uniform: Tensor  # [..., m, TRIES]
    part: Tensor  # [...]: selects the component


def draws(client: Client, name: str, shape: tuple[int, ...], objectives: int) -> Draws:
    """Random numbers for samples of this shape, determined by the client, round and name."""
    inner = (*shape, objectives, TRIES)
    return Draws(
        client.normal(f"{name} normal", inner),
        client.uniform(f"{name} uniform", inner),
        client.uniform(f"{name} part", shape),
    )


def start(parts: int, objectives: int, alpha: float) -> Tree:
    """A mixture's initial parameters: alpha [parts, m] and the logits [parts] of the weights.

    With several components, component c prefers objective c, so that they do not stay identical.
    """
    preferred = torch.eye(objectives).repeat(-(-parts // objectives), 1)[:parts]
    return {
        "alpha": alpha + (preferred if parts > 1 else torch.zeros(1, objectives)),
        "logits": torch.zeros(parts),
    }


def gamma(alpha: Tensor, normal: Tensor, uniform: Tensor) -> Tensor:
    """Gamma(alpha) samples from given normal and uniform numbers; alpha must be at least 1.

    With d = alpha - 1/3 and c = 1 / sqrt(9 d), (1 + c x)^3 d is accepted if log u < x^2 / 2 + d - d
    v + d log v for v = (1 + c x)^3, which has to be positive. The first accepted attempt is used,
    or the last attempt if none is accepted (less than once in a million samples).
    """
    d = (alpha - 1 / 3).unsqueeze(-1)
    v = ((1 + normal / torch.sqrt(9 * d)) ** 3).clamp(
        min=1e-30
    )  # the log of 1e-30 is never accepted
    accepted = uniform.log() < 0.5 * normal.square() + d * (1 - v + v.log())
    out = v[..., -1]
    for i in reversed(range(TRIES - 1)):
        out = torch.where(accepted[..., i], v[..., i], out)
    return d.squeeze(-1) * out


def dirichlet(alpha: Tensor, normal: Tensor, uniform: Tensor) -> Tensor:
    """A Dirichlet(alpha) point [..., m] from given numbers [..., m, TRIES]."""
    each = gamma(alpha, normal, uniform)
    return each / each.sum(-1, keepdim=True)


def sample(mixture: Tree, given: Draws) -> Tensor:
    """Points [n, m] of a mixture from draws with leading axis n."""
    alpha = mixture["alpha"]
    if alpha.shape[0] > 1:
        ends = mixture["logits"].softmax(-1).cumsum(-1)
        which = (given.part.unsqueeze(-1) > ends[:-1]).sum(-1)
        member = which.unsqueeze(-1) == torch.arange(alpha.shape[0])
        alpha = (member.to(alpha.dtype).unsqueeze(-1) * alpha).sum(-2)  # [n, m]
    return dirichlet(alpha.expand(*given.normal.shape[:-1]), given.normal, given.uniform)


def log_density(mixture: Tree, point: Tensor) -> Tensor:
    """The mixture's log density at one point [m]."""
    alpha = mixture["alpha"]
    log = torch.log(point.clamp(min=1e-12))
    return torch.logsumexp(mixture["logits"].log_softmax(-1) + _each(alpha, log), -1)


def evolution(mixture: Tree, points: Tensor, gain: Tensor) -> Tree:
    """The gradient to descend on to increase the expected gain: -mean_i gain_i grad log p(point_i).

    This is the estimate of natural evolution strategies; the gain need not be differentiable. No
    baseline is subtracted from the gains. If they are contributions to a hypervolume, which depend
    on all points, the mean of the other points' gains would change the expectation, and the mean of
    earlier gains, which would not, raises the deviation. The gradient of log p is written out,
    which is much cheaper than autograd.
    """
    n = points.shape[0]
    alpha = mixture["alpha"]
    log = torch.log(points.clamp(min=1e-12))
    score = log.unsqueeze(-2) + torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha)
    gain = gain / n
    if alpha.shape[0] == 1:
        zero = torch.zeros_like(mixture["logits"])
        return {"alpha": -(gain @ score.squeeze(-2)).unsqueeze(0), "logits": zero}
    weight = mixture["logits"].log_softmax(-1)
    component = (weight + _each(alpha, log)).softmax(-1)  # [n, parts]: P(component | point)
    by = gain.unsqueeze(-1) * component
    of_alpha = (by.unsqueeze(-1) * score).sum(0)
    return {"alpha": -of_alpha, "logits": -(by - gain.unsqueeze(-1) * weight.exp()).sum(0)}


def _each(alpha: Tensor, log: Tensor) -> Tensor:
    """The log density [..., parts] of each component at points whose logarithms are given."""
    norm = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    return norm + ((alpha - 1) * log.unsqueeze(-2)).sum(-1)


def bounded(mixture: Tree, low: float, high: float) -> Tree:
    """The mixture with every alpha clamped to the limits."""
    return {**mixture, "alpha": mixture["alpha"].clamp(low, high)}


def middle(objectives: int) -> Tensor:
    """The preference that weighs all objectives equally."""
    return torch.full((objectives,), 1 / objectives)


def grid(count: int, objectives: int) -> Tensor:
    """Preferences spread evenly over the simplex: the points i / p.

    With two objectives there are `count` + 1 points; with more, it is the largest such lattice of
    at most `count` + 1 points.

    >>> grid(2, 2).tolist()
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """
    if objectives == 1:
        return torch.ones(1, 1)
    p = 1
    while math.comb(p + objectives, objectives - 1) <= count + 1:
        p += 1
    return torch.tensor(_lattice(p, objectives), dtype=torch.float64).div(p).to(torch.float32)


def _lattice(total: int, places: int) -> list[list[int]]:
    if places == 1:
        return [[total]]
    return [[i, *rest] for i in range(total + 1) for rest in _lattice(total - i, places - 1)]
