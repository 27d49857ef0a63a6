"""The examples of a federation: flat tensors, and the range of rows of each client.

Rows are ordered by client and, within a client, by split, so the training set of a client is one
range. Nothing is padded: a client costs only the memory of its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from isonomy.core.examples import SPLITS, Attribute, DataShape, Split
from isonomy.errors import DataError


class Pages(Protocol):
    """The mapped pages of packed data."""

    def fetch(self, ranges: Tensor) -> None:
        """Start to read the rows of some clients, whose splits lie at `ranges`."""

    def release(self) -> None:
        """Give back the memory of all pages; they are read again when they are needed."""


@dataclass(frozen=True, eq=False)
class Federation:
    """The examples of all clients.

    `x` [n, ...] float32; `y` [n], int64 class or float32 target; `groups` [n, A] int64, one column
    per protected attribute. `ranges[k, s]` is the (start, stop) of client k's split s, in the
    order of SPLITS. `clusters` is each client's true cluster, if known.
    """

    x: Tensor
    y: Tensor
    groups: Tensor
    ranges: Tensor
    classes: int
    attributes: tuple[Attribute, ...] = ()
    names: Sequence[str] = ()
    labels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    clusters: tuple[int, ...] | None = None
    source: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = ()  # about the data, shown before training
    preprocessing: Mapping[str, Any] | None = None  # how rows of a table became x, as JSON
    origin: str = ""  # where files were read from; not part of a result
    digest: str = ""  # of packed data, whose values were checked when they were packed
    pages: Pages | None = None  # of packed data, which are mapped

    def __post_init__(self) -> None:
        rows = self.x.shape[0]
        if self.y.shape[0] != rows or self.groups.shape != (rows, len(self.attributes)):
            raise DataError(
                f"data '{self.source}': x has {rows} rows, y {self.y.shape[0]}, groups "
                f"{tuple(self.groups.shape)}; give one label and {len(self.attributes)} group "
                "values per row."
            )
        if self.digest:
            return
        empty = [self.name(k) for k in (self.sizes() == 0).nonzero().flatten().tolist()]
        if empty:
            raise DataError(
                f"data '{self.source}': no training examples at {', '.join(empty[:5])}; give "
                "every client at least one, or remove it."
            )
        row = _not_finite(self.x)
        if row is not None:
            raise DataError(
                f"data '{self.source}': row {row} contains a feature that is not finite; fill or "
                "drop missing values first."
            )
        if not self.classes and not bool(torch.isfinite(self.y).all()):
            raise DataError(
                f"data '{self.source}': a target is not finite; fill or drop missing values first."
            )
        wrong = self.y[(self.y < 0) | (self.y >= self.classes)] if self.classes else self.y[:0]
        if len(wrong):
            raise DataError(
                f"data '{self.source}': label {int(wrong[0])} with {self.classes} classes; "
                "number the classes from 0."
            )

        for attribute, column in zip(self.attributes, self.groups.T, strict=True):
            if bool(((column < 0) | (column >= len(attribute.levels))).any()):
                raise DataError(
                    f"data '{self.source}': group {int(column.min())} to {int(column.max())} of "
                    f"'{attribute.name}' with {len(attribute.levels)} levels; number them from 0."
                )

    @classmethod
    def from_tensors(
        cls,
        x: Any,
        y: Any,
        clients: Any,
        *,
        protected: Mapping[str, Any] | None = None,
        splits: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> Federation:
        """Make a federation from tensors or arrays, which are used as they are.

        `x` has one row of features per example, of any shape. `y` are whole numbers (classes from
        0) or real numbers to predict. `clients` and each value of `protected` name the client and
        the group of every row, by numbers or texts. `splits` says train, validation or test in
        every row; without it, rows are split by `fractions` with the seed. Further options:
        `labels` (names of the classes) and `features` (names of the features).

        >>> x, sex = torch.randn(60, 3), ["f", "m"] * 30
        >>> made = Federation.from_tensors(
        ...     x, (x[:, 0] > 0).long(), ["north"] * 40 + ["south"] * 20, protected={"sex": sex}
        ... )
        >>> made.names, made.sizes("train").tolist(), made.attributes[0].levels
        (('north', 'south'), [28, 14], ('f', 'm'))
        """
        from isonomy.data.tensors import parts_of_tensors

        found = parts_of_tensors(
            x, y, clients, protected=protected, splits=splits, seed=seed, **options
        )
        return build(**found)

    def __len__(self) -> int:
        return int(self.ranges.shape[0])

    @property
    def shape(self) -> DataShape:
        """The description of the data that a task is made from."""
        return DataShape(tuple(self.x.shape[1:]), self.classes, self.attributes, self.source)

    def name(self, client: int) -> str:
        """Return the name of a client, or its number."""
        return self.names[client] if self.names else f"client {client}"

    def size(self, client: int, split: Split = "train") -> int:
        """Return the number of examples of a client in a split."""
        start, stop = self.ranges[client, SPLITS.index(split)].tolist()
        return int(stop - start)

    def sizes(self, split: Split = "train", clients: Tensor | None = None) -> Tensor:
        """Return the number of examples in a split, of every client or of some."""
        ranges = self.ranges if clients is None else self.ranges[clients]
        at = ranges[:, SPLITS.index(split)]
        return at[:, 1] - at[:, 0]

    def row_numbers(self, clients: Tensor, split: Split = "train") -> Tensor:
        """Return the rows of some clients' split, client by client.

        >>> made = Federation.from_tensors(
        ...     torch.zeros(5, 1), [0, 0, 0, 1, 1], [0, 0, 1, 1, 1], splits=["train"] * 5
        ... )
        >>> made.row_numbers(torch.tensor([1, 0])).tolist()
        [2, 3, 4, 0, 1]
        """
        sizes = self.sizes(split, clients)
        before = self.ranges[clients, SPLITS.index(split), 0] - sizes.cumsum(0) + sizes
        return before.repeat_interleave(sizes) + torch.arange(int(sizes.sum()))

    def blocks(self, most: int = 1 << 16) -> Iterator[Tensor]:
        """Yield all clients' numbers, at most so many at a time."""
        yield from torch.split(torch.arange(len(self)), most)

    def rows(self, client: int, split: Split = "train") -> slice:
        """Return the rows of a client's split in the flat tensors."""
        start, stop = self.ranges[client, SPLITS.index(split)].tolist()
        return slice(start, stop)

    def only(self, clients: Sequence[int]) -> Federation:
        """Return the federation of some of the clients, in the given order."""
        index = torch.as_tensor(list(clients))
        return replace(
            self,
            ranges=self.ranges[index],
            names=tuple(self.name(int(k)) for k in index),
            clusters=None if self.clusters is None else tuple(self.clusters[int(k)] for k in index),
        )

    def merged(self, clusters: Sequence[int]) -> Federation:
        """Return a federation with one client per cluster, with the examples of all its members."""
        members = [
            [k for k, c in enumerate(clusters) if c == cluster] for cluster in sorted(set(clusters))
        ]
        parts: dict[Split, list[Tensor]] = {
            split: [
                torch.cat([torch.arange(*self._bounds(k, split)) for k in ks]) for ks in members
            ]
            for split in SPLITS
        }
        return build(
            self.x,
            self.y,
            self.groups,
            parts,
            classes=self.classes,
            attributes=self.attributes,
            labels=self.labels,
            features=self.features,
            source=self.source,
        )

    def _bounds(self, client: int, split: Split) -> tuple[int, int]:
        at = self.rows(client, split)
        return at.start, at.stop


def _not_finite(x: Tensor) -> int | None:
    """Return the first row with a number that is not finite; by blocks, to save memory."""
    block = max(1, (1 << 22) // max(1, x[:1].numel()))
    for start in range(0, x.shape[0], block):
        part = x[start : start + block]
        if bool(part.sum().isfinite()):  # then all values are finite; this check is cheap
            continue
        if not bool(torch.isfinite(part).all()):
            wrong = ~torch.isfinite(part.reshape(part.shape[0], -1)).all(1)
            return start + int(wrong.nonzero()[0])
    return None


def arrange(parts: dict[Split, list[Tensor]]) -> tuple[Tensor, Tensor]:
    """Return row numbers ordered by client and split, and the ranges of each client."""
    order: list[Tensor] = []
    ranges = np.zeros((len(parts["train"]), len(SPLITS), 2), dtype=np.int64)
    at = 0
    for k in range(ranges.shape[0]):
        for s, split in enumerate(SPLITS):
            index = torch.as_tensor(parts[split][k]) if split in parts else torch.arange(0)
            order.append(index.to(torch.int64))
            ranges[k, s] = at, at + len(index)
            at += len(index)
    return torch.cat(order), torch.from_numpy(ranges)


def build(
    x: Tensor,
    y: Tensor,
    groups: Tensor,
    parts: dict[Split, list[Tensor]],
    *,
    classes: int,
    attributes: tuple[Attribute, ...] = (),
    names: tuple[str, ...] = (),
    labels: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    clusters: tuple[int, ...] | None = None,
    source: str = "",
    notes: tuple[str, ...] = (),
) -> Federation:
    """Build a federation; `parts[split][k]` are the row numbers of client k."""
    rows, ranges = arrange(parts)
    return Federation(
        x=x[rows].to(torch.float32),
        y=y[rows],
        groups=groups[rows],
        ranges=ranges,
        classes=classes,
        attributes=attributes,
        names=names,
        labels=labels,
        features=features,
        clusters=clusters,
        source=source,
        notes=notes,
    )
