"""What a person's preference between objectives means to an algorithm that learns a front."""

from __future__ import annotations

from torch import Tensor


def ray_of(preference: Tensor) -> Tensor:
    """The ray of losses for a preference [..., m] as a person gives it.

    Algorithms train max_j loss_j / ray_j, so a larger entry of a ray allows a larger loss. In a
    preference, a larger share of an objective means less of its loss. With two objectives the ray
    is the preference in reverse; with m, a share of 1 / (m - 1) or more asks for none of the loss.

    >>> import torch
    >>> ray_of(torch.tensor([0.75, 0.25])).tolist()
    [0.25, 0.75]
    """
    at = (1 - (preference.shape[-1] - 1) * preference).clamp(min=0)
    return at / at.sum(-1, keepdim=True)


def preference_of(ray: Tensor) -> Tensor:
    """The preference [..., m] whose ray this is; the inverse of `ray_of`."""
    return (1 - ray) / (ray.shape[-1] - 1)
