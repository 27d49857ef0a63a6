"""What a phase sees of its client: the client's examples, state, random draws and batches."""

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
    """The flat tensors with all examples; each client's rows are a range of them."""

    x: Tensor
    y: Tensor
    groups: Tensor

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """The examples at `rows`, with their weights."""
        # row lookup by embedding: under vmap it stays one fast gather for the whole cohort
        flat = torch.nn.functional.embedding(rows, self.x.reshape(self.x.shape[0], -1))
        x = flat.reshape(*rows.shape, *self.x.shape[1:])
        return Batch(x, self.y[rows], self.groups[rows], weight)


@dataclass(frozen=True, eq=False)
class Client:
    """Everything that a phase may read besides the message: the client's examples and state.

    A batch may contain padding, which has weight 0. `rate` is the learning rate of the round.
    Random numbers come from `uniform` and `normal`, which are pure functions of (seed, round,
    client, name).
    """

    pool: Pool
    id: Tensor  # the client's number, for middleware; an algorithm uses the message instead
    starts: Tensor  # [3] first row of each split
    sizes: Tensor  # [3] examples in each split
    key: Tensor
    rate: Tensor
    state: State
    work: Work
    widths: tuple[int, int, int]  # the sizes, or the largest of clients that run side by side
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
        """The batches of this round; the same in every phase of the round."""
        made = plan(self.work, self.key, self.sizes[0], self.widths[0], self.steps, self.passes)
        return made._replace(rows=self.starts[0] + made.rows)

    def examples(self, split: Split) -> Batch:
        """All examples of a split."""
        return self._slice(split, 0, max(self.widths[SPLITS.index(split)], 1))

    def pages(self, split: Split, size: int = 1024) -> Iterator[Batch]:
        """All examples of a split, at most `size` at a time."""
        width = self.widths[SPLITS.index(split)]
        for first in range(0, max(width, 1), size):
            yield self._slice(split, first, min(size, max(width, 1) - first))

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform numbers in (0, 1), determined by seed, round, client and `name`."""
        return random.uniform(self.key, name, shape)

    def normal(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Standard normal numbers, determined by seed, round, client and `name`."""
        return random.normal(self.key, name, shape)

    def _slice(self, split: Split, first: int, count: int) -> Batch:
        s = SPLITS.index(split)
        at = first + torch.arange(count)
        real = at < self.sizes[s]
        # padding repeats the client's first row, so that a phase never sees another client's
        rows = torch.where(real, self.starts[s] + at, self.starts[0])
        return self.pool.batch(rows, real.to(torch.float32))


def lone_client(pool: Pool, work: Work, rate: float, key: Tensor) -> Client:
    """A client whose training examples are a whole pool, outside of any federation."""
    size = len(pool.y)
    return Client(
        pool=pool,
        id=torch.tensor(-1),
        starts=torch.zeros(len(SPLITS), dtype=torch.int64),
        sizes=torch.tensor([size, 0, 0]),
        key=key,
        rate=torch.tensor(rate, dtype=torch.float32),
        state=(),
        work=work,
        widths=(size, 0, 0),
        steps=work.count(size),
        passes=work.passes(size),
    )
