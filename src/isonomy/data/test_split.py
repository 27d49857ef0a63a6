"""Data with test rows of their own: the training rows are dealt, and the test rows follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.data.partition import Integers, Partition, Rows, Seed, assign, generator, split
from isonomy.errors import ConfigError

Flags = NDArray[np.bool_]


def allocate_tested(
    train: Rows,
    test: Rows,
    partition: Partition,
    options: Mapping[str, Any],
    clients: int,
    seed: int,
    validation: float = 0.0,
) -> tuple[dict[Split, list[Tensor]], tuple[str, ...]]:
    """As `partition.allocate`, for data whose test rows are numbered after the training rows.

    The partition is made on the training rows; every client then gets test rows of each label
    (and group) in proportion to its training rows of it, see `follow`, unless the partition says
    which. `validation` is the fraction of a client's training rows that validate.
    """
    if not 0 <= validation < 1:
        raise ConfigError(
            f"validation is {validation}; give the fraction of the training rows that validate, "
            "0 or more and below 1."
        )
    if partition.tested is None:
        members, names = assign(train, partition, options, clients, seed)
        tests = follow(members, train, test, seed)
    else:
        members, tests = partition.tested(train, test)
        names = tuple(f"client {k}" for k in range(len(members)))
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    for k, mine in enumerate(members):
        fractions = (1 - validation, validation, 0.0)
        pieces = split(mine, train.labels, train.groups, fractions, (seed, k))
        parts["train"].append(pieces["train"])
        parts["validation"].append(pieces["validation"])
    parts["test"] = [piece + len(train) for piece in tests]
    return parts, names


def follow(members: Sequence[Tensor], train: Rows, test: Rows, seed: Seed) -> list[Tensor]:
    """Each client's test rows, given its training rows: all are shared out, each to one client.

    A label's (x group's) test rows are shared in proportion to the clients' training rows of it.
    Each share is rounded up or down, in such a way that clients' totals come near to proportion
    with their sizes: equal clients get equally many. Test rows of a label that nobody trains on
    are shared by size.

    >>> rows = Rows(np.array([0, 0, 1, 1]))
    >>> [part.tolist() for part in follow([torch.tensor([0, 1]), torch.tensor([2, 3])],
    ...                                   rows, Rows(np.array([1, 0, 1])), seed=0)]
    [[1], [0, 2]]
    """
    rng = generator("test", seed)
    both = Rows(
        np.concatenate([train.labels, test.labels]),
        None
        if train.groups is None or test.groups is None
        else np.concatenate([train.groups, test.groups]),
    )
    cells = both.cells("label" if both.groups is None else "label*group")
    trained, tested = cells[: len(train)], cells[len(train) :]
    many = int(cells.max(initial=0)) + 1
    counts = np.stack([np.bincount(trained[part.numpy()], minlength=many) for part in members])
    order = rng.permutation(len(members))  # who comes first when shares are alike
    shares = np.empty_like(counts)
    shares[order] = _apportion(counts[order], np.bincount(tested, minlength=many))
    out: list[list[Integers]] = [[] for _ in members]
    for cell in range(many):
        mine = rng.permutation(np.flatnonzero(tested == cell))
        for k, piece in enumerate(np.split(mine, np.cumsum(shares[:, cell])[:-1])):
            out[k].append(piece)
    return [torch.from_numpy(np.sort(np.concatenate(pieces))) for pieces in out]


def _apportion(counts: Integers, stock: Integers) -> Integers:
    """Whole numbers [clients, cells] that add up to the stock and follow the counts.

    Every number is its exact share rounded up or down. Which of them go up is chosen so that
    clients' totals follow their sizes: cell by cell those who are owed most; what is not right
    then is moved between clients, inside the cells, as far as that can be.
    """
    total, sizes = counts.sum(0), counts.sum(1) / counts.sum()
    exact = np.where(total > 0, counts / np.maximum(total, 1), sizes[:, None]) * stock
    out: Integers = np.floor(exact + 1e-9).astype(np.int64)
    broken = exact - out > 1e-9
    goal = (sizes * stock.sum()).clip(out.sum(1), (out + broken).sum(1))
    up, owed = np.zeros_like(broken), goal - exact.sum(1)
    for cell, over in enumerate(stock - out.sum(0)):
        owed += exact[:, cell] - out[:, cell]
        due = np.where(broken[:, cell], owed, -np.inf)
        up[np.argsort(-due, kind="stable")[:over], cell] = True
        owed -= up[:, cell]
    while _moved(up, broken, (out + up).sum(1) - goal):
        pass
    out += up
    return out


def _moved(up: Flags, broken: Flags, surplus: NDArray[np.float64]) -> bool:
    """Move one unit from a client to another who has, for its goal, more than a unit less."""
    for rich in np.argsort(-surplus, kind="stable").tolist():
        if surplus[rich] - surplus.min() <= 1 + 1e-9:
            return False
        givers, through = _reached(up, broken, rich)
        poor = min(through, key=lambda client: float(surplus[client]), default=rich)
        if surplus[rich] - surplus[poor] > 1 + 1e-9:
            while poor != rich:
                cell = through[poor]
                up[poor, cell], up[givers[cell], cell] = True, False
                poor = givers[cell]
            return True
    return False


def _reached(up: Flags, broken: Flags, start: int) -> tuple[dict[int, int], dict[int, int]]:
    """Who could get a unit that `start` gives: a cell's giver, and each client's cell.

    In a cell a unit goes from one who is rounded up to one who is not and might be; that one may
    give another in another cell, and so on.
    """
    givers: dict[int, int] = {}
    through: dict[int, int] = {}
    edge = [start]
    for client in edge:
        for cell in np.flatnonzero(up[client]).tolist():
            if cell not in givers:
                givers[cell] = client
                for other in np.flatnonzero(broken[:, cell] & ~up[:, cell]).tolist():
                    if other not in through and other != start:
                        through[other] = cell
                        edge.append(other)
    return givers, through
