"""FairBatch's update of the weights of examples, for the data of one client or of a federation.

Roh, Lee, Whang and Suh, "FairBatch", ICLR 2021; Zeng, Chen and Lee for federations. lambda(y, z) is
the mass of cell (y, z) in the objective sum over cells of lambda(y, z) (mean loss of its examples'
group). It is stored as the ratio to its value in the plain mean, so all ratios start at 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isonomy.blocks.groups import Cells, share
from isonomy.core.notions import Notion


def start(groups: int) -> Tensor:
    """Ratios of 1: the plain mean of losses."""
    return torch.ones(2, groups, dtype=torch.float64)


def update(ratio: Tensor, sums: Cells, step: float | Tensor, notion: Notion) -> Tensor:
    """The ratios [2, groups] after one step; groups without examples keep theirs.

    A notion that compares all examples moves mass between the labels of a group; one that compares
    the examples with one label moves that label's mass between the groups.
    """
    label = notion.label
    return _all(ratio, sums, step) if label is None else _one_label(ratio, sums, step, label)


def parity_gaps(sums: Cells) -> Tensor:
    """F_z for each group z, from losses in place of errors; 0 for group 0.

    With errors it would be the positive rate of z minus that of group 0:
    F_z = (L_0z - L_1z) / m_z + m_1z / m_z - (L_00 - L_10) / m_0 - m_10 / m_0. The shares of labels
    are those of the totals, so they enter once, whatever the number of clients.
    """
    size = sums.count.sum(0)
    rate = share(sums.loss[0] - sums.loss[1] + sums.count[1], size)
    return torch.where((size > 0) & (size[0] > 0), rate - rate[0], 0.0)


def _all(ratio: Tensor, sums: Cells, step: float | Tensor) -> Tensor:
    """lambda(0, z) += step F_z, lambda(0, 0) -= step sum of F; lambda(1, z) = 2 p_z - lambda(0, z).

    p_z is the share of group z among the examples. As ratios to p_z, both labels add up to 2.
    """
    size = sums.count.sum(0)
    gaps = parity_gaps(sums)
    first = torch.arange(len(gaps)) == 0
    moves = torch.where(first, -gaps.sum(), gaps)
    own = share(size, size.sum())
    zero = (ratio[0] + step * share(moves, own)).clamp(0, 2)
    return torch.stack([zero, 2 - zero])


def _one_label(ratio: Tensor, sums: Cells, step: float | Tensor, label: int) -> Tensor:
    """The label's mass moves to the groups whose examples with this label have a larger mean loss.

    q_z is group z's share of that mass: q_z += step (l_z - l_0), q_0 -= their sum; values below 0
    are set to 0, and the shares are scaled to a sum of 1. The other label keeps its weights.
    """
    count, current = sums.count[label], ratio[label]
    known = count > 0
    mean = share(sums.loss[label], count)
    gaps = torch.where(known & known[0], mean - mean[0], 0.0)
    first = torch.arange(len(gaps)) == 0
    moves = step * torch.where(first, -gaps.sum(), gaps)
    own = share(count, count.sum())
    mass = (current * own + moves).clamp(min=0)
    new = torch.where(known, share(share(mass, mass.sum()), own), current)
    unchanged = (moves == 0).all() | (mass.sum() <= 0)
    rows = [ratio[0], ratio[1]]
    rows[label] = torch.where(unchanged, current, new)
    return torch.stack(rows)
