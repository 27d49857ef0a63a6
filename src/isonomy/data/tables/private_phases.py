"""The client side of table preparation with differential privacy: what is summed and then noised.

A reply is a vector that is bounded by construction:

- level `example`: the sum of one vector per training row, each of Euclidean norm 1 at most, so one
  row changes the reply by 1 at most;
- level `client`: a vector of norm 1 at most for the whole client: a mean over its rows, or 1 for
  each value that it has, divided by the root of their number.

With d columns in one reply, each has the norm 1 / sqrt(d). The division of rows into splits depends
on their positions only, not on their content, so a row is in the same split whatever the others
are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.examples import SPLITS
from isonomy.data.partition import split as split_rows
from isonomy.data.tables.columns import Numbers, as_words
from isonomy.data.tables.phases import Client, Kept, Message, Reply, given_splits
from isonomy.data.tables.preprocessing import LARGEST, Schema
from isonomy.errors import DataError

THERE = "there"  # stands for all values of a column that is divided by given edges
MISSING = ""  # stands for missing values among the values of a column; no value is empty text
MOST = 100  # values of a column that one client reports, at level `client`: its most frequent ones
LEAST_POWER, MOST_POWER = -20, 60  # powers of two; ranges of columns are found among them

_POWERS = 2.0 ** np.arange(LEAST_POWER, MOST_POWER + 1)
EDGES: NDArray[np.float64] = np.concatenate([[-np.inf], -_POWERS[::-1], _POWERS, [np.inf]])
"""The marks of the public grid: minus and plus powers of two; numbers near 0 share one cell."""


def divide(message: Message, client: Client) -> tuple[Reply, Kept]:
    """Split the rows by their positions, or by the split column; nothing is reported."""
    if message["split"]:
        return {}, given_splits(message["split"], client)
    rows = client.table.rows
    part = np.full(rows, -1, dtype=np.int8)
    if rows:
        same = np.zeros(rows, dtype=np.int64)
        seed = (int(message["seed"]), client.number)
        pieces = split_rows(torch.arange(rows), same, None, message["fractions"], seed)
        for s, name in enumerate(SPLITS):
            part[pieces[name].numpy()] = s
    return {}, part


def values_held(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """The values of some columns in training rows, each with its part of the bounded vector.

    Of columns in `binned` it is only told whether a value is there.
    """
    columns, out = message["columns"], {}
    for name in columns:
        words, train = as_words(client.table.columns[name]), _train(client)
        codes, levels = words.codes[train], words.levels
        if name in message.get("binned", ()):
            codes, levels = np.minimum(codes, 0), (THERE,)
        found, times = np.unique(codes, return_counts=True)
        held = {
            levels[code] if code >= 0 else MISSING: int(n)
            for code, n in zip(found.tolist(), times.tolist(), strict=True)
        }
        if message["level"] == "client":
            most = sorted(held, key=lambda value: (-held[value], value))[:MOST]
            each = 1 / math.sqrt(len(columns) * max(len(most), 1))
            out[name] = dict.fromkeys(most, each)
        else:
            out[name] = {value: n / math.sqrt(len(columns)) for value, n in held.items()}
    return {"values": out}, client.kept


def histograms(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """How many numbers of each column are in each cell of the public grid."""
    columns, out = message["columns"], []
    for name in columns:
        at = _finite(name, client)
        cells = np.bincount(
            np.searchsorted(EDGES, at, side="right") - 1, minlength=len(EDGES) - 1
        ).astype(np.float64)
        out.append(cells / math.sqrt(len(columns)) / _whole(message, len(at)))
    return {"vector": np.concatenate(out).tolist()}, client.kept


def moments(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """Of each column with a range: sums of a, of a^2 and of 1, with a in [-1, 1] the scaled value.

    A row without a value adds nothing.
    """
    ranges, out = message["ranges"], []
    for name, (low, high) in ranges.items():
        at = _finite(name, client)
        a = ((at - (low + high) / 2) / ((high - low) / 2)).clip(-1, 1)
        sums = np.array([a.sum(), np.square(a).sum(), len(a)])
        out.append(sums / math.sqrt(3 * len(ranges)) / _whole(message, int(_train(client).sum())))
    return {"vector": np.concatenate(out).tolist()}, client.kept


def keep(message: Message, client: Client) -> tuple[Reply, Kept]:
    """Leave out rows whose label or group is not one of the schema's; the sizes of splits.

    The sizes are how a simulation lays out its rows; they are not released at level `client`.
    """
    schema = Schema.model_validate(message["schema"])
    assert client.kept is not None
    part = client.kept.copy()
    part[~(schema.target(client.table)[1] & schema.known_groups(client.table))] = -1
    if not (part == 0).any():
        raise DataError(
            f"client '{client.name}' has no training row whose label and groups are among those "
            "found with noise; list the values in privacy.categories, or raise privacy.epsilon."
        )
    return {"sizes": [int((part == s).sum()) for s in range(len(SPLITS))]}, part


def _train(client: Client) -> NDArray[np.bool_]:
    assert client.kept is not None
    found: NDArray[np.bool_] = client.kept == 0
    return found


def _whole(message: Message, count: int) -> float:
    """What a client's sum is divided by: its number of rows, or 1 at level `example`."""
    return float(max(count, 1)) if message["level"] == "client" else 1.0


def _finite(name: str, client: Client) -> NDArray[np.float64]:
    """The numbers of a column in training rows; infinite ones count as the largest."""
    column: Any = client.table.columns[name]
    if not isinstance(column, Numbers):
        return np.zeros(0)
    at = column.values[_train(client)].astype(np.float64)
    return np.nan_to_num(at[~np.isnan(at)], posinf=LARGEST, neginf=-LARGEST)
