"""Fronts inside a phase: hypervolumes, contributions to them, and the Tchebycheff loss.

All objectives are minimised. Everything here works under `vmap` and can be traced.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Scalar = Literal["augmented", "logsumexp", "max"]
LEAST = 1e-6  # smallest preference in a division
SLOPE = 0.1  # weight of the sum beside the maximum in the augmented Tchebycheff loss
MOST = 12  # largest number of points for the sum over subsets
ROUNDING = 1e-6  # contributions below this fraction of the reference volume are rounding errors


def tchebycheff(losses: Tensor, preference: Tensor, how: Scalar = "logsumexp") -> Tensor:
    """The weighted Tchebycheff loss of losses [..., m] under preferences [..., m].

    "max" is max_j loss_j / preference_j, and "logsumexp" its smooth upper bound log sum_j
    exp(loss_j / preference_j), which is at most log m above it. "augmented" is

        max_j w_j (loss_j - ideal_j) + SLOPE sum_j w_j loss_j,    w_j = (1 / preference_j) / sum

    (Steuer and Choo, 1983). The ideal is the smallest first loss among these preferences, and 0 for
    the others. The weights are those of "max", scaled to a sum of 1 so that no gradient explodes
    at the border; with the ideal, preferences are spread over the trade-off.

    >>> float(tchebycheff(torch.tensor([0.2, 0.3]), torch.tensor([0.5, 0.5]), "max"))
    0.6000000238418579
    """
    ratio = 1 / preference.clamp(min=LEAST)
    if how == "augmented":
        weight = ratio / ratio.sum(-1, keepdim=True)
        best = losses[..., 0].detach().flatten().amin()
        ideal = torch.cat([best.reshape(1), torch.zeros(losses.shape[-1] - 1)])
        return (weight * (losses - ideal)).amax(-1) + SLOPE * (weight * losses).sum(-1)
    each = losses / preference.clamp(min=LEAST)
    return torch.logsumexp(each, -1) if how == "logsumexp" else each.amax(-1)


def hypervolume2(points: Tensor, reference: Tensor) -> Tensor:
    """The area [...] that points [..., n, 2] dominate up to a reference point, by one sweep.

    >>> points = torch.tensor([[0.25, 0.5], [0.5, 0.25]])
    >>> float(hypervolume2(points, torch.ones(2)))
    0.5
    """
    inside = torch.minimum(points, reference)  # a point beyond the reference dominates nothing
    x, order = inside[..., 0].sort(-1)
    low = inside[..., 1].gather(-1, order).cummin(-1).values
    right = torch.cat([x[..., 1:], reference[..., 0].expand_as(x[..., :1])], -1)
    return ((right - x) * (reference[..., 1].unsqueeze(-1) - low)).sum(-1)


def contributions(points: Tensor, reference: Tensor) -> Tensor:
    """What each of the points [n, m] adds to the hypervolume of all: H(all) - H(all but it).

    The result is exact. With two objectives it takes one sweep for each point, moved to the
    reference. With more it takes inclusion and exclusion over all 2^n subsets of the points; the
    terms cancel, so they are summed in float64.

    Raises ValueError for more than `MOST` points of more than two objectives.

    >>> points = torch.tensor([[0.25, 0.5], [0.5, 0.25], [0.6, 0.6]])
    >>> contributions(points, torch.ones(2)).tolist()
    [0.125, 0.125, 0.0]
    """
    n, m = points.shape[-2:]
    if m == 2:
        gone = torch.eye(n + 1, n, dtype=torch.bool).unsqueeze(-1)  # the last row removes none
        volumes = hypervolume2(torch.where(gone, reference, points.unsqueeze(0)), reference)
        return _cleared(volumes[n] - volumes[:n], reference)
    if n > MOST:
        raise ValueError(f"{n} points of {m} objectives: give at most {MOST}.")
    member = torch.tensor(_subsets(n), dtype=torch.float64)  # [subsets, n]
    low, ends = torch.minimum(points, reference).double(), reference.double()
    at = torch.where(member.unsqueeze(-1) > 0, low, torch.finfo(torch.float64).min)
    volume = (ends - at.amax(-2)).prod(-1)  # dominated by every point of a subset
    sign = 2 * (member.sum(-1) % 2) - 1
    gain = ((sign * volume).unsqueeze(-1) * member).sum(0)
    return _cleared(gain.to(points.dtype), reference)


def _cleared(gain: Tensor, reference: Tensor) -> Tensor:
    """Contributions with rounding errors set to 0; Adam, which rescales, would amplify them."""
    return torch.where(gain > ROUNDING * reference.prod(), gain, 0.0)


@cache
def _subsets(n: int) -> tuple[tuple[int, ...], ...]:
    """All non-empty subsets, as rows of zeros and ones."""
    return tuple(row for row in itertools.product((0, 1), repeat=n) if any(row))


def hypervolume_drawn(points: Tensor, draws: Tensor) -> Tensor:
    """The share of draws [k, m] in the unit cube that one or more of the points [n, m] dominate."""
    below = (points.unsqueeze(-2) <= draws).all(-1)
    return below.any(0).to(points.dtype).mean()
