"""A client's weight as a function of its loss."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy_score(losses: Tensor, tau: float) -> Tensor:
    """F / tau in double precision: the logarithm of an entropy weight divided by its prior."""
    return losses.to(torch.float64) / tau


def entropy_weights(losses: Tensor, tau: float, prior: Tensor | None = None) -> Tensor:
    """The weights p_i = q_i exp(F_i / tau) / sum_j q_j exp(F_j / tau), in double precision.

    Of all distributions with the same mean loss they have the largest entropy (the smallest
    divergence from the prior q, which is uniform by default). tau = inf gives the prior, and
    tau -> 0 gives all weight to the largest loss. Adding a constant to all losses has no effect.

    >>> entropy_weights(torch.tensor([1.0, 1.0]), 0.1).tolist()
    [0.5, 0.5]
    """
    score = entropy_score(losses, tau)
    score = torch.exp(score - score.max())  # the largest is 1: nothing overflows
    weight = score if prior is None else prior.to(torch.float64) * score
    return weight / weight.sum()


def fair_angle(losses: Tensor) -> float:
    """The angle, in degrees, between the losses and a vector of equal losses; 0 if all are 0.

    For non-negative losses it is the arc tangent of their coefficient of variation (standard
    deviation / mean). It is computed in this form because an arc cosine near 1 loses precision.

    >>> round(fair_angle(torch.tensor([3.0, 1.0])), 3)  # mean 2, deviation 1: atan(1/2)
    26.565
    """
    at = losses.to(torch.float64)
    top = at.max().clamp(min=torch.finfo(torch.float64).tiny)  # so that no square overflows
    at = at / top
    deviation = (at - at.mean()).square().mean().sqrt()
    return float(torch.rad2deg(torch.atan2(deviation, at.mean())))


LEAST = 1e-10  # added to losses, so that a loss of 0 causes no division by zero


def log_power(losses: Tensor, q: float) -> Tensor:
    """The logarithm of (F + 1e-10)^q, in double precision: the weight of a client in q-FFL."""
    return q * (losses.to(torch.float64) + LEAST).log()
