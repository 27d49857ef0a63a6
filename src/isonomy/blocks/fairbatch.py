"""FairBatch's steps of the weights of examples, for one client's data or for a federation's.

Roh, Lee, Whang and Suh, "FairBatch", ICLR 2021; Zeng, Chen and Lee for federations. lambda(y, z) is
the mass of cell (y, z) in the objective sum over cells of lambda(y, z) (mean loss of its examples'
group). It is kept as its ratio to what it would be in the plain mean, so all ratios begin at 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isonomy.blocks.groups import Cells, Notion, share


def start(groups: int) -> Tensor:
    """Ratios of 1: the plain mean of losses."""
    return torch.ones(2, groups, dtype=torch.float64)


def moved(ratio: Tensor, got: Cells, step: float | Tensor, notion: Notion) -> Tensor:
    """The ratios [2, groups] after one step; groups without examples stay as they are."""
    return _parity(ratio, got, step) if notion == "dp" else _opportunity(ratio, got, step)


def parity_gaps(got: Cells) -> Tensor:
    """F_z for each group z, of losses in place of errors; 0 for group 0.

    With errors it is the positive rate of z less that of group 0:
    F_z = (L_0z - L_1z) / m_z + m_1z / m_z - (L_00 - L_10) / m_0 - m_10 / m_0. The shares of labels
    are those of the totals, so they enter once, however many clients the totals are of.
    """
    size = got.count.sum(0)
    rate = share(got.loss[0] - got.loss[1] + got.count[1], size)
    return torch.where((size > 0) & (size[0] > 0), rate - rate[0], 0.0)


def _parity(ratio: Tensor, got: Cells, step: float | Tensor) -> Tensor:
    """lambda(0, z) += step F_z, lambda(0, 0) -= step sum of F; lambda(1, z) = 2 p_z - lambda(0, z).

    p_z is the share of z's own examples. In ratios to p_z, both add up to 2.
    """
    size = got.count.sum(0)
    gaps = parity_gaps(got)
    first = torch.arange(len(gaps)) == 0
    moves = torch.where(first, -gaps.sum(), gaps)
    own = share(size, size.sum())
    zero = (ratio[0] + step * share(moves, own)).clamp(0, 2)
    return torch.stack([zero, 2 - zero])


def _opportunity(ratio: Tensor, got: Cells, step: float | Tensor) -> Tensor:
    """The mass of label 1 goes to the groups whose examples of it have the larger mean loss.

    q_z is group z's share of that mass: q_z += step (l_z - l_0), q_0 -= their sum; what falls
    below 0 is cut off, and the shares are brought back to a sum of 1. Label 0 keeps its weights.
    """
    count = got.count[1]
    told = count > 0
    mean = share(got.loss[1], count)
    gaps = torch.where(told & told[0], mean - mean[0], 0.0)
    first = torch.arange(len(gaps)) == 0
    moves = step * torch.where(first, -gaps.sum(), gaps)
    own = share(count, count.sum())
    mass = (ratio[1] * own + moves).clamp(min=0)
    new = torch.where(told, share(share(mass, mass.sum()), own), ratio[1])
    still = (moves == 0).all() | (mass.sum() <= 0)
    return torch.stack([ratio[0], torch.where(still, ratio[1], new)])
