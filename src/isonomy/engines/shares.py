"""Shares of clients: groups of similar work, each of which one process computes.

Shares are what several processes divide among themselves. A result depends on the number of shares
(in rounding), but not on the number of processes that compute them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.work import Work
from isonomy.data.federation import Federation

Numbers = NDArray[np.int64]

OVERHEAD = 6e5  # operations that a step of any number of clients could do in its overhead
CLIENT = 4e5  # the same for one more client, if steps are compiled (see `shares_of`)
LOOKUP = 2e4  # operations that could be done while an example is looked up and its loss computed


def shares_of(
    federation: Federation,
    count: int,
    work: Work,
    flops: float = 0.0,
    *,
    compiled: bool = False,
) -> Tensor:
    """Each client's share [clients], from 0; the shares have about the same work.

    Clients are sorted by size and cut into contiguous groups, so that a group's clients take about
    as many steps. The work of a group is that of all its examples, plus an overhead of as many
    steps as its longest client takes, since these follow one another. The largest group is made as
    small as possible. `flops` are the floating-point operations of an example, which decide how
    many examples could be computed in an overhead. They are counted and not timed, so that a
    repetition has the same shares.

    If steps are `compiled`, steps of few clients cost less, so each client's own overhead counts
    too. The constants were found with a small network and 100 and 1,000 uneven clients, such that
    two processes take about as long (see docs/performance).

    >>> import torch
    >>> from isonomy.data.federation import build
    >>> sizes = [40, 20, 20, 20, 20, 20, 20, 20, 20, 20]
    >>> rows = torch.arange(sum(sizes)).split(sizes)
    >>> y = torch.zeros(sum(sizes), dtype=torch.int64)
    >>> groups = torch.zeros(sum(sizes), 0, dtype=torch.int64)
    >>> made = build(torch.zeros(sum(sizes), 1), y, groups, {"train": list(rows)}, classes=2)
    >>> shares_of(made, 2, Work(batch=10)).tolist()
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    """
    sizes, order = federation.sizes(), by_size(federation)
    kinds, kind = torch.unique(sizes[order], return_inverse=True)
    steps = np.array([work.count(n) for n in kinds.tolist()], np.int64)
    one = LOOKUP + flops
    examples = steps * np.array([work.width(n) for n in kinds.tolist()], np.int64)
    client = round(CLIENT / one) if compiled else 0
    each = (examples + client)[kind.numpy()]
    alone = (round(OVERHEAD / one) * steps)[kind.numpy()]
    low, high = 0, int(alone.max() + each.sum())
    while low < high:  # the least bound under which the groups are enough
        middle = (low + high) // 2
        enough = len(_groups(each, alone, middle)) <= count
        low, high = (low, middle) if enough else (middle + 1, high)
    return shares_with([last - first for first, last in _groups(each, alone, low)], order)


def shares_with(counts: Sequence[int], order: Tensor) -> Tensor:
    """Each client's share [clients], if the shares have so many clients, the first in order first.

    >>> shares_with([1, 2], torch.tensor([2, 0, 1])).tolist()
    [1, 1, 0]
    """
    out = torch.empty(len(order), dtype=torch.int64)
    out[order] = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return out


def by_size(federation: Federation) -> Tensor:
    """The clients, the largest first, in the order in which shares are cut."""
    return torch.argsort(-federation.sizes(), stable=True)


def _groups(each: Numbers, alone: Numbers, bound: int) -> list[tuple[int, int]]:
    """Contiguous groups of at most this much work, or of one client."""
    ends = np.concatenate([[0], np.cumsum(each)])
    groups, first = [], 0
    while first < len(each):
        room = bound - int(alone[first])
        last = int(np.searchsorted(ends, ends[first] + room, side="right")) - 1
        last = min(max(last, first + 1), len(each))
        groups.append((first, last))
        first = last
    return groups
