"""Which counts of small cells a client tells: the rules of `least`, for methods and evaluations."""

from __future__ import annotations

import torch
from torch import Tensor


def told(count: Tensor, least: int) -> Tensor:
    """Which cells are told; the last axis of `count` are cells whose sum is known to the server.

    A cell with fewer than `least` examples is not told. If the cells that are not told have fewer
    than `least` examples together, this number would follow from the sum, so the smallest of the
    other cells is withheld too. Safe under vmap.

    >>> told(torch.tensor([40, 25, 3]), 10).tolist()
    [True, False, False]
    >>> told(torch.tensor([40, 25, 0]), 10).tolist()  # nothing is hidden
    [True, True, False]
    """
    enough = count >= least
    hidden = torch.where(enough, 0, count).sum(-1, keepdim=True)
    smallest = torch.where(enough, count.double(), torch.inf).argmin(-1, keepdim=True)
    is_smallest = torch.arange(count.shape[-1]) == smallest
    return enough & ~(is_smallest & (hidden > 0) & (hidden < least))


def even(part: Tensor, whole: Tensor) -> Tensor:
    """A count of some of the examples in a cell, so that one example does not show in it.

    The smaller of `part` and the rest is rounded to an even number; a half goes to the multiple
    of four.

    >>> even(torch.tensor([0, 1, 3, 22, 23]), torch.tensor([23, 23, 23, 23, 23])).tolist()
    [0, 0, 4, 23, 23]
    """
    rest = whole - part
    small = 2 * (torch.minimum(part, rest).double() / 2).round()
    near = torch.where(part <= rest, small, whole - small)
    return near.to(part.dtype)


def even_predictions(counts: Tensor) -> Tensor:
    """Counts [..., C] of a cell's examples by predicted class, of which one example does not show.

    All but the most frequent class are rounded to even numbers; that class has the rest.
    """
    total = counts.sum(-1, keepdim=True)
    most = torch.arange(counts.shape[-1]) == counts.argmax(-1, keepdim=True)
    small = torch.where(most, 0, (2 * (counts.double() / 2).round()).to(counts.dtype))
    rest = (total - small.sum(-1, keepdim=True)).clamp(min=0)
    return torch.where(most, rest, small)


def withheld_counts(
    counts: Tensor, loss: Tensor | None, levels: tuple[int, ...], least: int
) -> tuple[Tensor, Tensor | None]:
    """An evaluation's counts [..., 1 + G, C, C] and losses [1 + G, C], 0 in cells not told.

    A cell is a label of everyone (row 0), or of a group. The labels of everyone add up to the
    client's examples, so `told` is applied to them. The groups of an attribute add up to everyone,
    and a group with only some of its labels would have misleading rates, so an attribute is told
    with all groups, or not at all if a cell of it, or of examples of unknown group, is small.
    """
    cells = counts.sum(-1)  # by row and label
    first = cells.reshape(-1, *cells.shape[-2:])[0]  # the same for all models that are measured
    shown = torch.zeros_like(first, dtype=torch.bool)
    shown[0] = told(first[0], least)
    start = 1
    for number in levels:
        groups = first[start : start + number]
        all_cells = torch.cat([groups, (first[0] - groups.sum(0)).unsqueeze(0)])
        small = (all_cells > 0) & (all_cells < least) & shown[0]
        shown[start : start + number] = shown[0] & ~small.any()
        start += number
    kept = torch.where(shown.unsqueeze(-1), counts, 0)
    return kept, None if loss is None else torch.where(shown, loss, 0.0)
