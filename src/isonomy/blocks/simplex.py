"""The probability simplex: projection onto it, and the shortest convex combination of vectors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]


def project(point: Tensor) -> Tensor:
    """The nearest point of the probability simplex, in double precision.

    Duchi, Shalev-Shwartz, Singer and Chandra, ICML 2008: with u the coordinates in decreasing
    order, find the largest j with u_j + (1 - sum of the first j) / j > 0, where the sum includes
    the j-th. Every coordinate is shifted by this (1 - sum) / j and clamped at 0.

    >>> project(torch.tensor([0.5, 1.0])).tolist()
    [0.25, 0.75]
    """
    v = point.to(torch.float64)
    v = v - v.max()  # the projection is the same; large coordinates keep their precision
    u = v.sort(descending=True).values
    rank = torch.arange(1, len(v) + 1, dtype=torch.float64)
    shift = (1 - u.cumsum(0)) / rank
    last = int((u + shift > 0).nonzero().max())
    out = (v + shift[last]).clamp(min=0)
    return out / out.sum()  # corrects the rounding error


def min_norm(gram: Tensor, centre: Tensor, radius: float, tolerance: float = 1e-12) -> Tensor:
    """Weights of the shortest combination: minimise p' G p over a part of the simplex.

    `gram` holds the inner products of the combined vectors. The part of the simplex is all p with
    |p_i - centre_i| <= radius. Each iteration changes two weights, the pair with the largest
    first-order gain, to the exact minimum along their line (sequential minimal optimisation). The
    sum stays 1 and, as the problem is convex, the gain falls to 0 at the minimum. Pairs alone
    become slow where vectors are similar, so after every `len(p)` iterations all weights that are
    strictly inside their bounds move towards their common minimum, as far as the bounds allow.
    """
    G, start = (t.to(torch.float64).numpy() for t in (gram, centre))  # numpy: less overhead
    low, high = np.maximum(start - radius, 0.0), np.minimum(start + radius, 1.0)
    p = start.copy()
    slope = G @ p  # half the gradient
    limit = tolerance * max(float(G.diagonal().max()), np.finfo(np.float64).tiny)
    for iteration in range(1000 * len(p)):
        if iteration and iteration % len(p) == 0:
            _move_free(G, p, slope, low, high)
            slope = G @ p
        up = np.where(p < high, slope, np.inf)  # weights that may increase
        down = np.where(p > low, slope, -np.inf)  # weights that may decrease
        i, j = int(up.argmin()), int(down.argmax())
        gain = down[j] - up[i]
        if not gain > limit:
            break
        bend = G[i, i] + G[j, j] - 2 * G[i, j]
        rise, fall = high[i] - p[i], p[j] - low[j]
        move = min(rise, fall) if bend <= 0 else min(rise, fall, gain / bend)
        p[i] = high[i] if move == rise else p[i] + move
        p[j] = low[j] if move == fall else p[j] - move
        slope = slope + move * (G[:, i] - G[:, j])
    return torch.from_numpy(p)


def _move_free(G: Numbers, p: Numbers, slope: Numbers, low: Numbers, high: Numbers) -> None:
    """Move the weights inside their bounds towards the minimum with the other weights fixed.

    With H the part of `G` of the free weights, the change d with sum(d) = 0 solves
    H d = -slope + a constant. The last free weight is eliminated, so that the sum stays 1.
    """
    free = np.flatnonzero((p > low) & (p < high))
    if len(free) < 2:
        return
    others, last = free[:-1], free[-1]
    H = G[np.ix_(others, others)] - G[others, last, None] - G[None, last, others] + G[last, last]
    change = np.linalg.lstsq(H, slope[last] - slope[others], rcond=None)[0]
    change = np.append(change, -change.sum())
    downhill, bend = float(slope[free] @ change), float(change @ G[np.ix_(free, free)] @ change)
    if not downhill < 0:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(change > 0, high[free] - p[free], low[free] - p[free]) / change
    room = np.where(change == 0, np.inf, room)
    step = min(1.0, float(room.min()), -downhill / bend if bend > 0 else np.inf)
    moved = np.clip(p[free] + step * change, low[free], high[free])
    if step == room.min():
        nearest = room.argmin()
        moved[nearest] = high[free][nearest] if change[nearest] > 0 else low[free][nearest]
    p[free] = moved
