"""The simplex: projection on it, and the point of a polytope that is nearest to the origin."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def project(point: Tensor) -> Tensor:
    """The nearest point of the probability simplex, in double precision.

    Duchi, Shalev-Shwartz, Singer and Chandra, ICML 2008: with u the coordinates in falling
    order, j counts while u_j + (1 - sum of the first j) / j > 0, the j-th itself included in the
    sum; then every coordinate moves by the same amount and is cut off at 0.

    >>> project(torch.tensor([0.5, 1.0])).tolist()
    [0.25, 0.75]
    """
    v = point.to(torch.float64)
    v = v - v.max()  # moves along with all coordinates; keeps digits where they are large
    u = v.sort(descending=True).values
    rank = torch.arange(1, len(v) + 1, dtype=torch.float64)
    shift = (1 - u.cumsum(0)) / rank
    last = int((u + shift > 0).nonzero().max())
    out = (v + shift[last]).clamp(min=0)
    return out / out.sum()  # mends the last digit


def min_norm(gram: Tensor, centre: Tensor, radius: float, tolerance: float = 1e-12) -> Tensor:
    """Weights of the shortest combination: minimise p' G p over a part of the simplex.

    `gram` holds the inner products of the vectors that are combined. The part is all p with
    |p_i - centre_i| <= radius. Two weights are moved at a time, the pair that gains most at first
    order, by the exact minimum along their line (sequential minimal optimisation): the sum stays
    1, and for a convex problem the pair's gain falls to 0 at the minimum.
    """
    G, start = (t.to(torch.float64).numpy() for t in (gram, centre))  # small steps: less overhead
    low, high = np.maximum(start - radius, 0.0), np.minimum(start + radius, 1.0)
    p = start.copy()
    slope = G @ p  # half the gradient
    limit = tolerance * max(float(G.diagonal().max()), np.finfo(np.float64).tiny)
    for _ in range(1000 * len(p)):
        up = np.where(p < high, slope, np.inf)  # who may gain weight
        down = np.where(p > low, slope, -np.inf)  # who may lose it
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
