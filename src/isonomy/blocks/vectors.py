"""Stacked trees as vectors, for methods that use the angles between the clients' updates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.task import Params
from isonomy.core.tree import Tree

COLUMNS = 2**13  # that are in double precision at once


def rows(stacked: Tree) -> Tensor:
    """A matrix with one row for each entry of a stacked tree."""
    return torch.cat([t.flatten(1) for t in tree.leaves(stacked)], 1)


def gram(vectors: Tensor) -> Tensor:
    """The inner products of all pairs of rows, in double precision."""
    out = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for part in _in_double(vectors):
        out += part @ part.T
    return out


def combination(weights: Tensor, vectors: Tensor) -> Tensor:
    """The sum of the rows, each times its weight, in double precision."""
    return torch.cat([weights @ part for part in _in_double(vectors)])


def _in_double(vectors: Tensor) -> Iterator[Tensor]:
    """Some columns after the others, so that their doubles fit the processor's cache."""
    for start in range(0, vectors.shape[1], COLUMNS):
        yield vectors[:, start : start + COLUMNS].to(torch.float64)


def unflattened(flat: Tensor, like: Params) -> Params:
    """A vector as a tree with the shapes of the parameters."""
    parts = torch.split(flat, [p.numel() for p in tree.leaves(like)])
    made = iter(parts)
    return tree.tmap(lambda p: next(made).reshape(p.shape), like)
