"""Apply a partition, and split the rows of every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.data.partition.registry import Partition
from isonomy.data.partition.rows import Rows
from isonomy.data.partition.splits import FRACTIONS, split
from isonomy.errors import DataError


def allocate(
    rows: Rows,
    partition: Partition,
    options: Mapping[str, Any],
    clients: int,
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
) -> tuple[dict[Split, list[Tensor]], tuple[str, ...]]:
    """Partition the rows, then split those of every client.

    Returns the rows of every split and client, as `federation.build` expects them, and the
    clients' names.
    """
    members, names = assign(rows, partition, options, clients, seed)
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    for k, mine in enumerate(members):
        for name, piece in split(mine, rows.labels, rows.groups, fractions, (seed, k)).items():
            parts[name].append(piece)
    return parts, names


def assign(
    rows: Rows, partition: Partition, options: Mapping[str, Any], clients: int, seed: int
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return the rows of every client, before they are split, and the clients' names."""
    if len(rows) == 0:
        raise DataError("there are no rows to assign to clients; give at least one per client.")
    return partition.apply(rows, clients, seed, options)
