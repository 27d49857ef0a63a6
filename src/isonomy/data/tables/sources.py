"""The tables of all clients: one file or table per client, or ranges of rows of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.data.tables.columns import (
    MISSING,
    Column,
    Numbers,
    Other,
    Table,
    Words,
    as_words,
)
from isonomy.data.tables.files import OpenTable, client_name, open_table, read
from isonomy.data.tables.roles import listed
from isonomy.errors import ConfigError, DataError, did_you_mean


class Files:
    """One file per client, read when needed and kept in memory while there is room."""

    def __init__(
        self,
        paths: Sequence[Path],
        missing: Sequence[str] = MISSING,
        encoding: str = "utf-8",
        keep: int = 3 << 29,
    ) -> None:
        self.names = tuple(client_name(path) for path in paths)
        self._paths, self._missing, self._encoding = list(paths), missing, encoding
        self._kept: dict[int, Table] = {}
        self._room = keep

    def open(self, client: int) -> Table:
        """Return the table of a client."""
        if client in self._kept:
            return self._kept[client]
        table = read(self._paths[client], self._missing, self._encoding)
        if table.size <= self._room:
            self._room -= table.size
            self._kept[client] = table
        return table


class Pieces:
    """Clients whose rows are consecutive ranges of one table."""

    def __init__(self, table: Table, bounds: Sequence[int], names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._table, self._bounds = table, list(bounds)

    def open(self, client: int) -> Table:
        """Return the table of a client; its columns are views."""
        at = slice(self._bounds[client], self._bounds[client + 1])
        columns = {name: values[at] for name, values in self._table.columns.items()}
        place = f"client '{self.names[client]}'"
        place += f" in {self._table.place}" if self._table.place else ""
        if len(self.names) == 1:
            place = self._table.place or "the table"
        return Table(columns, at.stop - at.start, place)


class Opened:
    """One table per client that is in memory; its columns are converted when needed."""

    def __init__(self, tables: Mapping[str, OpenTable]) -> None:
        self.names = tuple(tables)
        self._tables = list(tables.values())
        self._kept: dict[int, Table] = {}

    def open(self, client: int) -> Table:
        """Return the table of a client."""
        if client not in self._kept:
            self._kept[client] = self._tables[client].whole()
        return self._kept[client]


Source = Files | Pieces | Opened


def read_clients(
    path: Path, client: str, missing: Sequence[str] = MISSING, encoding: str = "utf-8"
) -> Pieces:
    """Divide the rows of one file into the clients that a column names; see `by_client`."""
    return by_client(open_table(path, missing, encoding), client)


def by_client(raw: OpenTable, client: str) -> Pieces:
    """Divide the rows of one table into the clients that a column names, ordered by name.

    Each column is reordered as it is read, so memory holds the table only once.
    """
    path = raw.path
    if client not in raw.names:
        raise ConfigError(
            f"{path} has no column '{client}', which data.client names; its columns are "
            f"{listed(raw.names)}.{did_you_mean(client, raw.names)}"
        )
    if not raw.rows:
        raise DataError(f"{path} has a header line but no rows; add rows, or give another file.")
    values = raw.column(client)
    if isinstance(values, Other) and values.kind != "empty":
        raise ConfigError(
            f"column '{client}' of {path} cannot identify clients because it contains "
            f"{'dates' if values.kind == 'time' else 'lists or bytes'}; name a column of text or "
            "whole numbers."
        )
    words = as_words(values)
    gone = words.missing()
    if gone.any():
        raise DataError(
            f"row {int(gone.argmax()) + 1} of {path} has no value in column '{client}', so it "
            "belongs to no client; fill it in, or remove the row."
        )
    order = (
        None if bool((np.diff(words.codes) >= 0).all()) else np.argsort(words.codes, kind="stable")
    )
    held = [(level, n) for level, n in zip(words.levels, words.counts().tolist(), strict=True) if n]
    bounds = np.concatenate([[0], np.cumsum([n for _, n in held], dtype=np.int64)])
    columns = {name: reorder(raw.column(name), order) for name in raw.names if name != client}
    table = Table(columns, raw.rows, str(path))
    return Pieces(table, bounds.tolist(), [level for level, _ in held])


def reorder(of: Column, order: Any) -> Column:
    """Return a column with its rows in another order; None keeps the order."""
    if order is None or isinstance(of, Other):
        return of
    if isinstance(of, Words):
        return Words(of.codes[order], of.levels)
    return Numbers(of.values[order], truths=of.truths)
