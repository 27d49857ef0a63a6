"""The least violation that any model can attain, bracketed from both sides.

For losses that are convex in w, by minimax duality

    min_w max_z r_z(w) = max_lambda P(lambda),   P(lambda) = min_w sum_z lambda_z r_z(w),

with lambda on the simplex. P at any lambda is a lower bound; if it is positive, no model meets all
bounds. No bound on the risk enters. The r of any models w_1, ..., w_S give an upper bound, the
value of the matrix game max_lambda min_s lambda' r(w_s): some mixture of these models attains it,
because r is convex, so if it is at most 0, some model meets all bounds. Each step evaluates P
between the best lambda so far and the solution of the game (Kelley's cutting planes, damped),
and adds the model that it finds to the game.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.programs import game

QUERIES = 25  # largest number of evaluations of P
CLOSE = 1e-3  # a positive bracket narrower than this is not refined


class Attainable(NamedTuple):
    """The bracket of min_w max_z r_z(w)."""

    low: float
    high: float


def least_violation(
    lowest: Callable[[Tensor], tuple[Tensor, float]], r: Tensor, start: Tensor
) -> Attainable:
    """The bracket, from the r [Z] of one model and the multipliers [Z] to start from.

    `lowest` returns the r of the model that minimises lambda' r, and a lower bound on lambda' r
    over all models.
    """
    found = [r]
    best, high, low = start / start.sum().clamp(min=1e-300), float(r.max()), -math.inf
    if not float(start.sum()) > 0:
        best = torch.full_like(start, 1 / len(start))
    ask = best
    for _ in range(QUERIES):
        at, bound = lowest(ask)
        if not (math.isfinite(bound) and bool(at.isfinite().all())):
            break
        if bound > low:
            low, best = bound, ask
        found.append(at)
        high, mix = game(torch.stack(found))
        if high <= 0 or high - low <= (CLOSE if low > 0 else 1e-2 * CLOSE):
            break
        ask = (best + mix) / 2
    return Attainable(low, max(high, low))
