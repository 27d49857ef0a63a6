"""The direction in which clients' losses become equal, for methods that add it as an objective."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def angle(losses: Tensor) -> float:
    """The angle between the clients' losses and the vector of ones, in radians.

    >>> angle(torch.tensor([1.0, 1.0]))
    0.0
    """
    values = losses.to(torch.float64)
    length = values.norm() * math.sqrt(len(values))
    # sine and cosine: the arc cosine alone loses small angles
    apart = (values - values.mean()).norm() * math.sqrt(len(values))
    return math.atan2(float(apart), float(values.sum())) if length > 0 else 0.0


def towards_equal(losses: Tensor) -> Tensor:
    """The derivative of -cos(losses, ones) with respect to the losses, in double precision.

    It is 0 if all losses are equal, also up to rounding.
    """
    values = losses.to(torch.float64)
    m, length = len(values), values.norm()
    slope = (values.sum() * values / length**2 - 1) / (math.sqrt(m) * length)
    equal = (values - values.mean()).norm() <= 1e-6 * length
    return torch.where(equal, 0.0, slope)
