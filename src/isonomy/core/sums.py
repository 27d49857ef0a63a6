"""Weighted sums of clients' replies, accumulated as they arrive, and weights with a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.tree import Tree

PIECE = 2**17  # numbers that are added at a time, 1 MB in double precision: the cache holds them


class Sums(NamedTuple):
    """A weighted sum of replies and its total weight, in double precision.

    With scores, weights are multiplied by exp(score - top), where top is the largest score so far.
    """

    total: float
    folded: Tree
    top: float = -math.inf
    largest: float = 0.0  # weight of one reply

    def mean(self) -> Tree:
        """The weighted mean so far, 0 if there is no weight."""
        total = self.total or 1.0
        return tree.tmap(lambda t: divided(t, total), self.folded)


def added(sums: Sums | None, value: Tree, weight: Tensor, score: Tensor | None = None) -> Sums:
    """The sums with some stacked replies added to them; the tensors of `sums` are overwritten.

    Sums are on the CPU; of replies on another device, only their sum is copied to it. The sum is
    scaled down when a larger score arrives, so nothing overflows.
    """
    if sums is None:
        sums = Sums(
            0.0,
            tree.tmap(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64), value),
        )
    total, folded, top, largest = sums
    if score is not None and bool((weight > 0).any()):
        score = score.cpu()
        top = max(top, float(score[weight > 0].max()))  # of the clients that have weight
        before = math.exp(sums.top - top)
        total, largest = total * before, largest * before
        tree.tmap(lambda t: t.mul_(before), folded)
        tilted = weight * torch.exp(score.to(torch.float64) - top)
        weight = torch.where(weight > 0, tilted, 0.0)
    # single precision where replies have it, so relative to the largest
    scale = float(weight.abs().max()) or 1.0
    relative = weight / scale
    tree.tmap(lambda t, v: _fold(t, weight, v, relative, scale), folded, value)
    most = max(largest, float(weight.max()))
    return Sums(total + float(weight.sum()), folded, top, most)


def plus(sums: Sums | None, value: Tree, total: float) -> Sums:
    """The sums with the weighted sum of some replies, and the sum of their weights, added."""
    before = tree.zeros_like(value) if sums is None else sums.folded
    folded = tree.tmap(lambda a, b: a.double() + b.double(), before, value)
    return Sums(total + (0.0 if sums is None else sums.total), folded)


def joined(parts: Iterable[Sums]) -> Sums:
    """The sum of several sums, added in the given order; the first is overwritten."""
    found: Sums | None = None
    for part in parts:
        if found is None:
            found = part
            continue
        top = max(found.top, part.top)
        one, other = (_scale(top, sums.top) for sums in (found, part))
        tree.tmap(lambda a, b, one=one, other=other: a.mul_(one).add_(b, alpha=other),
                  found.folded, part.folded)  # fmt: skip
        most = max(found.largest * one, part.largest * other)
        found = Sums(found.total * one + part.total * other, found.folded, top, most)
    if found is None:
        raise ValueError("there are no sums to join")
    return found


def _scale(top: float, own: float) -> float:
    """The factor of a sum whose scores are relative to `own`, if the largest of all is `top`."""
    return 1.0 if top == own else math.exp(own - top)


def _fold(sums: Tensor, weight: Tensor, stacked: Tensor, relative: Tensor, scale: float) -> Tensor:
    """Add the weighted sum over the leading axis to `sums`, which has double precision.

    The weights are also `relative` to their `scale`, at most 1.
    """
    if len(weight) == 1:
        for part, more in _pieces(sums, stacked[0].cpu()):
            part.add_(more, alpha=float(weight))
        return sums
    if not stacked.is_floating_point():
        return sums.add_(torch.tensordot(weight, stacked.cpu().to(torch.float64), dims=1))
    own = relative.to(stacked.dtype).to(stacked.device)
    return sums.add_(torch.tensordot(own, stacked, dims=1).cpu(), alpha=scale)


def divided(sums: Tensor, total: float) -> Tensor:
    """The sums divided by a total, in the default precision."""
    made = torch.empty_like(sums, dtype=torch.get_default_dtype())
    for part, of in _pieces(made, sums):
        part.copy_(of / total)
    return made


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same parts of tensors of one shape, whose copies in double precision are not large."""
    if tensors[0].numel() <= PIECE or not all(t.is_contiguous() for t in tensors):
        yield tensors
    else:
        yield from zip(*(torch.split(t.view(-1), PIECE) for t in tensors), strict=True)


def capped(weights: Tensor, share: float) -> Tensor:
    """Weights of which none is more than `share` of their sum: larger ones are lowered to it.

    With too few clients for that share, all weights become equal.

    >>> capped(torch.tensor([100.0, 30.0, 20.0]), 0.5).tolist()
    [50.0, 30.0, 20.0]
    >>> capped(torch.tensor([900, 30, 0]), 0.1).tolist()
    [30, 30, 0]
    """
    if share >= 1 or not len(weights):
        return weights
    rising = weights[weights > 0].sort().values.double()
    limit = float(rising[0]) if len(rising) else 0.0
    for above in range(len(rising)):  # how many are lowered
        if share * above >= 1:
            break
        rest = rising[: len(rising) - above]
        top = share * float(rest.sum()) / (1 - share * above)
        if float(rest[-1]) <= top:
            limit = top if above else float(rising[-1])
            break
    return torch.minimum(weights, torch.tensor(limit).to(weights.dtype))
