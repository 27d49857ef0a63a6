"""A release: what an algorithm is given in place of plain combinations of replies.

With a release, replies arrive clipped (models that are averaged as differences to what was sent),
and only what it makes of their sums reaches the algorithm (`isonomy.privacy.release`).
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from isonomy.core.tree import Tree


class Release(Protocol):
    """Turns sums of clipped replies into what the algorithm is given; `ask` is the question."""

    def size_weights(self, ids: Tensor) -> Tensor:
        """Each client's weight where an algorithm weights by size, from 0 to 1."""

    def mean(self, ask: Any, folded: Tree, weights: Tensor, *, by_size: bool) -> Tree:
        """A mean, from the weighted sum of clipped replies and the weights of those asked.

        With `by_size` the weights are those of `size_weights`; otherwise they are public.
        """

    def sum(self, ask: Any, folded: Tree) -> Tree:
        """A sum, from the sum of clipped replies."""

    def weighed(self, ask: Any, name: str, folded: Tree, total: float, largest: float) -> Tree:
        """The mean of one part, from its sum with public weights, their total and the largest."""
