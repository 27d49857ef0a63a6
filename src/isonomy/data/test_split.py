"""Data sets with an official test split: assign test rows to clients by their training rows."""

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
    """Like `partition.allocate`, for data whose test rows are numbered after the training rows.

    The partition is applied to the training rows. Every client then gets test rows of each label
    (and group) in proportion to its training rows, see `follow`, unless the partition assigns
    them. `validation` is the fraction of a client's training rows used for validation.
    """
    if not 0 <= validation < 1:
        raise ConfigError(
            f"validation is {validation}; set it to the fraction of training rows for validation, "
            "at least 0 and below 1."
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
    """Assign every test row to one client, given the clients' training rows.

    The test rows of a label (x group) are divided in proportion to the clients' training rows of
    it. Each share is rounded up or down so that the totals of clients are close to proportional to
    their sizes: clients of equal size get equal numbers. Test rows of a label without training
    rows are divided by size.

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
    order = rng.permutation(len(members))  # breaks ties between equal shares
    shares = np.empty_like(counts)
    shares[order] = _apportion(counts[order], np.bincount(tested, minlength=many))
    out: list[list[Integers]] = [[] for _ in members]
    for cell in range(many):
        mine = rng.permutation(np.flatnonzero(tested == cell))
        for k, piece in enumerate(np.split(mine, np.cumsum(shares[:, cell])[:-1])):
            out[k].append(piece)
    return [torch.from_numpy(np.sort(np.concatenate(pieces))) for pieces in out]


def _apportion(counts: Integers, stock: Integers) -> Integers:
    """Return whole numbers [clients, cells] that add up to the stock, proportional to the counts.

    Every number is its exact share rounded up or down. Which are rounded up is chosen so that the
    totals of clients are proportional to their sizes: cell by cell, the clients with the largest
    deficit. Remaining deviations are reduced by moving units between clients within cells.
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
    """Move one unit from a client to another whose surplus is smaller by more than one unit."""
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
    """Return which clients a unit from `start` can reach: the giver of a cell, a client's cell.

    In a cell, a unit moves from a client that is rounded up to one that could be. That client may
    pass on a unit in another cell, and so on.
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
