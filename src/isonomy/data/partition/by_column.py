"""The partition `column`: one client per value of a column."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isonomy.data.partition.registry import MINIMUM, partition
from isonomy.data.partition.rows import Integers, Rows, Seed
from isonomy.data.partition.sizes import check_feasible
from isonomy.errors import ConfigError, DataError, unknown


def column_names(rows: Rows, column: str, minimum: int = 10) -> tuple[str, ...]:
    """Return the names of the clients that `by_column` makes."""
    return _clients_of_values(rows, column, minimum)[1]


@partition(
    "column",
    "one client per value of a column, such as a state or a hospital",
    counted=True,
    names=column_names,
    column="the column's name",
    minimum=MINIMUM,
)
def by_column(
    rows: Rows, clients: int, seed: Seed, *, column: str = "", minimum: int = 10
) -> list[Tensor]:
    """Make one client per value, in the order of the levels; the seed has no effect.

    Values with fewer than `minimum` rows are merged into one last client, together with the next
    rarest values until that client has the minimum too. `clients` is 0, or the resulting number.
    """
    del seed
    codes, names = _clients_of_values(rows, column, minimum)
    if clients not in (0, len(names)):
        raise DataError(
            f"partition 'column': '{column}' makes {len(names)} clients of at least {minimum} "
            f"rows, not {clients}; remove the number of clients, or set it to {len(names)}."
        )
    return [torch.from_numpy(np.flatnonzero(codes == k)) for k in range(len(names))]


def _clients_of_values(rows: Rows, column: str, minimum: int) -> tuple[Integers, tuple[str, ...]]:
    """Return the client of each row and the clients' names."""
    if not column:
        raise ConfigError("partition 'column': no column is named; give column = \"NAME\".")
    if column not in rows.columns:
        raise ConfigError(unknown("column", column, rows.columns))
    check_feasible(len(rows), 1, minimum)
    values = rows.columns[column]
    counts = np.bincount(values.codes, minlength=len(values.levels))
    order = [int(v) for v in np.argsort(counts, kind="stable") if counts[v] > 0]
    rare = [v for v in order if counts[v] < minimum]
    while rare and counts[rare].sum() < minimum:
        rare.append(order[len(rare)])
    kept = [v for v in sorted(order) if v not in rare]
    client = np.full(len(values.levels), len(kept), dtype=np.int64)
    client[kept] = np.arange(len(kept))
    names = [values.levels[v] for v in kept]
    if rare:
        names.append(
            " or ".join(values.levels[v] for v in sorted(rare)) if len(rare) < 4 else "other"
        )
    return client[values.codes], tuple(names)
