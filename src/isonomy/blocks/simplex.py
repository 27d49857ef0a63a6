"""The probability simplex: projection onto it, and the shortest convex combination of vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
    sum stays 1 and, as the problem is convex, the gain falls to 0 at the minimum.
    """
    G, start = (t.to(torch.float64).numpy() for t in (gram, centre))  # numpy: less overhead
    low, high = np.maximum(start - radius, 0.0), np.minimum(start + radius, 1.0)
    p = start.copy()
    slope = G @ p  # half the gradient
    limit = tolerance * max(float(G.diagonal().max()), np.finfo(np.float64).tiny)
    for _ in range(1000 * len(p)):
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
