"""Weighted sums of replies, accumulated as they arrive."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.tree import Tree


class Sums:
    """A weighted sum of replies and its total weight, accumulated in double precision.

    With scores, weights are multiplied by exp(score - top), where top is the largest score so far.
    The sum is scaled down when a larger score arrives, so nothing overflows.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.folded: Tree = None
        self.top = -math.inf

    def add(self, value: Tree, weight: Tensor, score: Tensor | None = None) -> None:
        """Add some stacked replies."""
        if self.folded is None:
            self.folded = tree.tmap(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64), value)
        if score is not None and bool((weight > 0).any()):
            top = max(self.top, float(score[weight > 0].max()))  # of the clients that have weight
            before = math.exp(self.top - top)
            self.total *= before
            tree.tmap(lambda sums: sums.mul_(before), self.folded)
            tilted = weight * torch.exp(score.to(torch.float64) - top)
            weight, self.top = torch.where(weight > 0, tilted, 0.0), top
        tree.tmap(lambda sums, t: _fold(sums, weight, t), self.folded, value)
        self.total += float(weight.sum())

    def add_sum(self, value: Tree, total: float) -> None:
        """Add the weighted sum of some replies, and the sum of their weights."""
        before = tree.zeros_like(value) if self.folded is None else self.folded
        self.folded = tree.tmap(lambda a, b: a.double() + b.double(), before, value)
        self.total += total

    def mean(self) -> Tree:
        """The weighted mean so far, 0 if there is no weight."""
        total = self.total or 1.0
        return tree.tmap(lambda t: (t / total).to(torch.get_default_dtype()), self.folded)


def _fold(sums: Tensor, weight: Tensor, stacked: Tensor) -> Tensor:
    """Add the weighted sum over the leading axis to `sums`, which has double precision."""
    if len(weight) == 1:
        return sums.add_(stacked[0], alpha=float(weight))
    if not stacked.is_floating_point():
        return sums.add_(torch.tensordot(weight, stacked.to(torch.float64), dims=1))
    scale = float(weight.abs().max()) or 1.0  # so that weights in single precision are at most 1
    part = torch.tensordot((weight / scale).to(stacked.dtype), stacked, dims=1)
    return sums.add_(part, alpha=scale)
