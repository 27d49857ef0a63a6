"""Thresholds as candidates of the linear program, and the rule that its solution is.

In a cell (client, group), thresholds between two neighbouring bins that hold examples decide all of
them alike, so there is one candidate for each gap. Which threshold inside the gap is taken follows
from the prices of the budgets: the score at which a decision for class 1 gains nothing. Without a
price this is a half. So a client with few examples gets the threshold that the other clients'
examples suggest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.metrics.counts import Floats
from isonomy.postprocess.program import Candidates, Solution
from isonomy.postprocess.rates import Rate
from isonomy.postprocess.rule import About, Thresholds


@dataclass(frozen=True, eq=False)
class Gaps:
    """The candidates of one cell: between which bins each threshold lies, both ends included."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]

    @classmethod
    def of(cls, counts: Floats) -> Gaps:
        """The gaps of a histogram [label, bin]."""
        used = np.flatnonzero(counts.sum(0))
        return cls(np.append(0, used + 1), np.append(used, counts.shape[-1]))


def candidates(counts: Floats, gain: Floats, rates: tuple[Rate, ...]) -> Candidates:
    """The candidates of a histogram [label, bin]; `gain` [bin] is what accepting a bin gains."""
    used = np.flatnonzero(counts.sum(0))
    weights = np.stack([rate.labels(2) for rate in rates])  # [rates, label]
    above = _from_top((weights @ counts[:, used]).T)
    below = weights @ counts.sum(-1)
    return Candidates(_from_top(gain[used]), above, below)


def _from_top(each: Floats) -> Floats:
    """The sums from each entry to the last, and then 0."""
    return np.concatenate([each[::-1].cumsum(0)[::-1], np.zeros_like(each[:1])])


def thresholds(
    about: About,
    gaps: dict[tuple[int, int], Gaps],
    chance: Floats,
    solution: Solution,
    rates: tuple[Rate, ...],
    default: Thresholds | None,
) -> Thresholds:
    """The rule of a solution; `chance` [clients, levels, bins] is the probability of class 1.

    A cell without examples gets that of `default`, which is also the rule of a new client. Without
    `default`, such a cell accepts scores from a half.
    """
    clients, levels, bins = chance.shape
    edges: dict[tuple[int, int], NDArray[np.int64]] = {}
    for cell, gap in gaps.items():
        best = int(np.searchsorted(chance[cell], indifferent(solution.price[cell], rates)))
        edges[cell] = np.clip(best, gap.low, gap.high)
    chosen = {cell: np.flatnonzero(w) for cell, w in solution.weights.items()}
    most = max(len(at) for at in chosen.values())
    if default is not None:
        most = max(most, default.parts["edge"].shape[-1])
    edge = np.full((clients, levels, most), bins, dtype=np.int64)
    weight = np.zeros((clients, levels, most))
    edge[:, :, 0], weight[:, :, 0] = bins // 2, 1.0
    rest = None if default is None else _padded(default, most)
    if rest is not None:
        edge[:], weight[:] = rest[0], rest[1]
    for cell, at in chosen.items():
        edge[cell], weight[cell] = bins, 0.0
        edge[cell][: len(at)] = edges[cell][at]
        weight[cell][: len(at)] = solution.weights[cell][at]
    if rest is not None:
        edge, weight = (
            np.concatenate([edge, rest[0][None]]),
            np.concatenate([weight, rest[1][None]]),
        )
    return Thresholds(about, {"edge": torch.from_numpy(edge), "weight": torch.from_numpy(weight)})


def _padded(rule: Thresholds, most: int) -> tuple[NDArray[np.int64], Floats]:
    """The row of a rule for all clients, with `most` thresholds."""
    edge, weight = rule.parts["edge"].numpy()[0], rule.parts["weight"].numpy()[0]
    more = ((0, 0), (0, most - edge.shape[-1]))
    return np.pad(edge, more, mode="edge"), np.pad(weight, more)


def indifferent(price: Floats, rates: tuple[Rate, ...]) -> float:
    """The probability of class 1 at which deciding for class 1 gains nothing.

    Such a decision gains 2p - 1 and pays the price of every rate that it counts in, which it does
    with probability 1, p (given label 1) or 1 - p (given label 0).
    """
    slope, start = 2.0, -1.0
    for rate, paid in zip(rates, price, strict=True):
        of0, of1 = rate.labels(2) * paid
        start -= of0
        slope -= of1 - of0
    return min(max(-start / slope, 0.0), 1.0) if slope > 1e-6 else 0.5
