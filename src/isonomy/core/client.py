"""What a phase sees of its client: the client's own examples, state, draws and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.core import random
from isonomy.core.batches import Plan, plan
from isonomy.core.examples import SPLITS, Split
from isonomy.core.task import Batch
from isonomy.core.tree import Tree
from isonomy.core.work import Work

Message = dict[str, Tree]
Reply = Tree
State = Tree


class Pool(NamedTuple):
    """The flat tensors that hold the examples; a client's rows are a range of them."""

    x: Tensor
    y: Tensor
    groups: Tensor

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """The examples at `rows`, with their weights."""
        # a row lookup as an embedding: vmap keeps it one fast gather for the whole cohort
        flat = torch.nn.functional.embedding(rows, self.x.reshape(self.x.shape[0], -1))
        x = flat.reshape(*rows.shape, *self.x.shape[1:])
        return Batch(x, self.y[rows], self.groups[rows], weight)


@dataclass(frozen=True, eq=False)
class Client:
    """All that a phase may read besides the message: this client's own examples and state.

    Padding is out of sight: it carries weight 0 in every batch. `rate` is this round's learning
    rate. Draws come from `uniform` and `normal`, pure functions of (seed, round, client, name).
    """

    pool: Pool
    id: Tensor  # the client's number; for middleware, an algorithm goes by the message
    starts: Tensor  # [3] first row of each split
    sizes: Tensor  # [3] examples in each split
    key: Tensor
    rate: Tensor
    state: State
    work: Work
    widths: tuple[int, int, int]  # the sizes, or the largest of those that run side by side
    steps: int
    passes: int

    @property
    def size(self) -> Tensor:
        """The number of training examples, as a float."""
        return self.sizes[0].to(torch.float32)

    @property
    def train(self) -> Batch:
        """All training examples."""
        return self.examples("train")

    @property
    def validation(self) -> Batch:
        """All validation examples."""
        return self.examples("validation")

    @property
    def plan(self) -> Plan:
        """This round's batches; the same in every phase of the round."""
        made = plan(self.work, self.key, self.sizes[0], self.widths[0], self.steps, self.passes)
        return made._replace(rows=self.starts[0] + made.rows)

    def examples(self, split: Split) -> Batch:
        """All examples of a split."""
        return self._slice(split, 0, max(self.widths[SPLITS.index(split)], 1))

    def pages(self, split: Split, size: int = 1024) -> Iterator[Batch]:
        """All examples of a split, some at a time."""
        width = self.widths[SPLITS.index(split)]
        for first in range(0, max(width, 1), size):
            yield self._slice(split, first, min(size, max(width, 1) - first))

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform draws in (0, 1) that belong to this client, round and name."""
        return random.uniform(self.key, name, shape)

    def normal(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Standard normal draws that belong to this client, round and name."""
        return random.normal(self.key, name, shape)

    def _slice(self, split: Split, first: int, count: int) -> Batch:
        s = SPLITS.index(split)
        at = first + torch.arange(count)
        real = at < self.sizes[s]
        rows = torch.where(real, self.starts[s] + at, self.starts[0])  # padding: one's own row
        return self.pool.batch(rows, real.to(torch.float32))
