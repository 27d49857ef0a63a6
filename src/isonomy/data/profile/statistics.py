"""What clients report about their rows: counts and sums, from which no row can be reconstructed.

There are two exchanges, as in a real federation. In the first, a client counts its labels and
groups and sums its features, from which the server computes the means. In the second, it sums
powers of the distances to those means for each label. Everything else is computed from these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS
from isonomy.data.federation import Federation

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = tuple[Tensor, Tensor, Tensor]
"""Some rows: features [n, ...], labels or targets [n], groups [n, A]."""

MOST_SUMS = 2_000_000  # clients x labels x columns: beyond it only some features are analysed
_BLOCK = 200_000  # numbers that are converted to float64 at a time


@dataclass(frozen=True)
class Shape:
    """What every client must know so that all count in the same way.

    `labels` is 1 for regression. `levels` is the number of groups of each attribute, `features`
    the positions of the analysed features, `indicators` the groups (attribute, level) that are
    additional columns.
    """

    labels: int
    levels: tuple[int, ...]
    features: Integers
    indicators: tuple[tuple[int, int], ...] = ()
    regression: bool = False

    @property
    def columns(self) -> int:
        """The number of analysed columns: features and indicators of groups."""
        return len(self.features) + len(self.indicators)


@dataclass(frozen=True)
class Tally:
    """The first reply of a client.

    `labels` [splits, labels] and, for each attribute, `groups` [splits, labels, levels] are
    counts of rows. For the training rows: the sum of each column, how often it is neither 0 nor 1,
    and the sum of the targets for regression.
    """

    labels: Integers
    groups: tuple[Integers, ...]
    total: Reals
    between: Integers
    target: float


@dataclass(frozen=True)
class Sums:
    """The second reply of a client: sums of powers of x - centre over its training rows.

    `first` to `fourth` [labels, columns] are for each label; `groups` [levels, features] the
    first power for each group; for regression `target` (y, y squared) and `cross` [columns].
    """

    first: Reals
    second: Reals
    third: Reals
    fourth: Reals
    groups: tuple[Reals, ...]
    target: tuple[float, float]
    cross: Reals


# --- client side -----------------------------------------------------------------------------


def tally(splits: Sequence[Rows], shape: Shape) -> Tally:
    """Count labels and groups in each split, and sum the columns of the first split."""
    labels = np.zeros((len(splits), shape.labels), dtype=np.int64)
    groups = [np.zeros((len(splits), shape.labels, g), dtype=np.int64) for g in shape.levels]
    for s, (_, y, group) in enumerate(splits):
        code = _codes(y, shape)
        labels[s] = torch.bincount(code, minlength=shape.labels).numpy()
        for a, levels in enumerate(shape.levels):
            cell = code * levels + group[:, a]
            count = torch.bincount(cell, minlength=shape.labels * levels)
            groups[a][s] = count.numpy().reshape(shape.labels, levels)
    total = torch.zeros(shape.columns, dtype=torch.float64)
    between = torch.zeros(shape.columns, dtype=torch.int64)
    target = 0.0
    for at, y, _ in _blocks(splits[0], shape):
        total += at.sum(0)
        between += (at * at != at).sum(0)
        target += float(y.double().sum()) if shape.regression else 0.0
    return Tally(labels, tuple(groups), total.numpy(), between.numpy(), target)


def sums(train: Rows, shape: Shape, centre: Reals, middle: float = 0.0) -> Sums:
    """Sum powers of the distances to `centre` [columns] by label; `middle` is the centre of y."""
    by_label = [torch.zeros(shape.labels, shape.columns, dtype=torch.float64) for _ in range(4)]
    width = len(shape.features)
    by_group = [torch.zeros(levels, width, dtype=torch.float64) for levels in shape.levels]
    cross = torch.zeros(shape.columns, dtype=torch.float64)
    target = [0.0, 0.0]
    away = torch.from_numpy(centre)
    for at, y, group in _blocks(train, shape):
        at -= away
        code = _codes(y, shape)
        for a, sum in enumerate(by_group):
            sum.index_add_(0, group[:, a], at[:, :width])
        if shape.regression:
            off = y.double() - middle
            cross += off @ at
            target = [target[0] + float(off.sum()), target[1] + float(off @ off)]
        power = at.clone()
        for i, sum in enumerate(by_label):
            sum.index_add_(0, code, power)
            power = power.mul_(at) if i < 3 else power
    first, second, third, fourth = (sum.numpy() for sum in by_label)
    groups = tuple(sum.numpy() for sum in by_group)
    return Sums(first, second, third, fourth, groups, (target[0], target[1]), cross.numpy())


def _codes(y: Tensor, shape: Shape) -> Tensor:
    return torch.zeros(len(y), dtype=torch.int64) if shape.regression else y


def _blocks(rows: Rows, shape: Shape) -> Iterator[Rows]:
    """Yield the analysed columns in double precision, a limited number of rows at a time."""
    x, y, groups = rows
    x = x.reshape(len(x), -1) if len(x) else x.reshape(0, x[:0].numel() or x.shape[-1])
    chosen = None if len(shape.features) == x.shape[1] else torch.from_numpy(shape.features)
    step = max(1, _BLOCK // max(1, shape.columns))
    for start in range(0, len(x), step):
        at = slice(start, start + step)
        values = x[at] if chosen is None else x[at].index_select(1, chosen)
        out = torch.empty(len(values), shape.columns, dtype=torch.float64)
        out[:, : values.shape[1]] = values
        for i, (a, level) in enumerate(shape.indicators):
            out[:, values.shape[1] + i] = groups[at, a] == level
        yield out, y[at], groups[at]


# --- server side ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientStatistics:
    """The replies of all clients.

    `labels` [K, splits, L], `groups` [K, splits, L, levels] for each attribute; `first` and
    `second` [K, L, columns]; `third` and `fourth` [L, columns] and `by_group` [levels, features]
    over all clients. `between` [columns] is how often a column is neither 0 nor 1.
    """

    shape: Shape
    labels: Integers
    groups: tuple[Integers, ...]
    centre: Reals
    between: Integers
    first: Reals
    second: Reals
    third: Reals
    fourth: Reals
    by_group: tuple[Reals, ...]
    target: Reals  # [K, 2], for regression
    cross: Reals  # [K, columns], for regression

    @property
    def rows(self) -> Integers:
        """The number of training rows of each client and label [K, L]."""
        out: Integers = self.labels[:, 0]
        return out


def collect(federation: Federation) -> ClientStatistics:
    """Run both exchanges with every client, one client at a time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # blocks are too small for several threads
    try:
        return _collect(federation)
    finally:
        torch.set_num_threads(threads)


def _collect(federation: Federation) -> ClientStatistics:
    shape, number = _shape(federation), len(federation)
    labels = np.zeros((number, len(SPLITS), shape.labels), dtype=np.int64)
    groups = tuple(
        np.zeros((number, len(SPLITS), shape.labels, levels), dtype=np.int64)
        for levels in shape.levels
    )
    total, between, target = np.zeros(shape.columns), np.zeros(shape.columns, dtype=np.int64), 0.0
    for k in range(number):
        reply = tally([_rows(federation, k, s) for s in range(len(SPLITS))], shape)
        labels[k] = reply.labels
        for counts, one in zip(groups, reply.groups, strict=True):
            counts[k] = one
        total += reply.total
        between += reply.between
        target += reply.target
    rows = int(labels[:, 0].sum())
    centre, middle = total / rows, target / rows

    first = np.empty((number, shape.labels, shape.columns))
    second = np.empty_like(first)
    third, fourth = (np.zeros((shape.labels, shape.columns)) for _ in range(2))
    by_group = tuple(np.zeros((levels, len(shape.features))) for levels in shape.levels)
    targets = np.empty((number, 2))
    cross = np.empty((number, shape.columns if shape.regression else 0))
    for k in range(number):
        powers = sums(_rows(federation, k, 0), shape, centre, middle)
        first[k], second[k], targets[k] = powers.first, powers.second, powers.target
        third += powers.third
        fourth += powers.fourth
        cross[k] = powers.cross if shape.regression else 0
        for sum, part in zip(by_group, powers.groups, strict=True):
            sum += part
    return ClientStatistics(
        shape=shape,
        labels=labels,
        groups=groups,
        centre=centre,
        between=between,
        first=first,
        second=second,
        third=third,
        fourth=fourth,
        by_group=by_group,
        target=targets,
        cross=cross,
    )


def _rows(federation: Federation, client: int, split: int) -> Rows:
    at = federation.rows(client, SPLITS[split])
    return federation.x[at], federation.y[at], federation.groups[at]


def _shape(federation: Federation) -> Shape:
    """Choose all features, or evenly spaced ones if there are too many."""
    labels = federation.classes or 1
    there = int(federation.x[:1].numel())
    most = max(16, MOST_SUMS // (len(federation) * labels))
    features = np.linspace(0, there - 1, min(there, most)).round().astype(np.int64)
    levels = tuple(len(attribute.levels) for attribute in federation.attributes)
    return Shape(labels, levels, features, _indicators(federation), not federation.classes)


def _indicators(federation: Federation) -> tuple[tuple[int, int], ...]:
    """Choose the groups that become columns: one of two; none of an intersection of attributes."""
    names = {attribute.name for attribute in federation.attributes}
    out = []
    for a, attribute in enumerate(federation.attributes):
        parts = {part.strip() for part in attribute.name.split("*")}
        if len(parts) == 1 or not parts <= names:
            count = len(attribute.levels)
            out += [(a, level) for level in range(1 if count == 2 else 0, count)]
    return tuple(out)
