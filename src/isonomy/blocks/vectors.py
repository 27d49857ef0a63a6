"""Stacked trees as vectors, for methods that use the angles between the clients' updates."""

from __future__ import annotations

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.task import Params
from isonomy.core.tree import Tree


def rows(stacked: Tree) -> Tensor:
    """A matrix with one row for each entry of a stacked tree."""
    return torch.cat([t.flatten(1) for t in tree.leaves(stacked)], 1)


def gram(vectors: Tensor) -> Tensor:
    """The inner products of all pairs of rows, in double precision."""
    at = vectors.to(torch.float64)
    return at @ at.T


def unflattened(flat: Tensor, like: Params) -> Params:
    """A vector as a tree with the shapes of the parameters."""
    parts = torch.split(flat, [p.numel() for p in tree.leaves(like)])
    made = iter(parts)
    return tree.tmap(lambda p: next(made).reshape(p.shape), like)
