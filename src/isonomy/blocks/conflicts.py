"""Updates of clients that conflict: remove what points against another client's update.

FedFV's rule (Wang et al., IJCAI 2021), from the updates' inner products alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def resolved(products: Tensor, losses: Tensor, alpha: float) -> Tensor:
    """Each client's update without its conflicts, as coefficients [m, m] of the original updates.

    For each client except the share `alpha` with the largest losses, the components along the
    updates that it conflicts with are removed, in increasing order of loss. `products` holds the
    updates' inner products. Projections only combine updates linearly, so the coefficients are
    enough.
    """
    m, products = len(losses), products.to(torch.float64)
    order = losses.argsort(stable=True).tolist()
    keep = set(order[m - math.ceil(round(alpha * m, 9)) :]) if alpha > 0 else set()
    out = torch.eye(m, dtype=torch.float64)
    for k in range(m):
        for i in order if k not in keep else ():
            product = out[k] @ products[:, i]
            if i != k and product < 0:
                out[k, i] -= product / products[i, i]
    return out


def length_factor(g: Tensor, products: Tensor) -> Tensor:
    """The factor that gives g the length of the mean update; 0 if g is only rounding error."""
    own = g.double().square().sum()
    nothing = own <= 1e-12 * products.diagonal().mean()
    factor = (products.mean().clamp(min=0) / own).sqrt()
    return torch.where(nothing, 0.0, factor).to(g.dtype)


def check_alpha(alpha: float) -> None:
    """Raise a ValueError for a share that is none."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha = {alpha}: give a number from 0 to 1.")
