"""Find and read table files, CSV and Parquet.

Files differ between organisations: column order, semicolons, decimal commas, spaces around names,
a byte-order mark. All of that is accepted. A file that cannot be read is an error that names the
file and, if known, the line.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isonomy.core.values import Frame, Values
from isonomy.data.tables import parquet_files as parquet
from isonomy.data.tables.columns import (
    MISSING,
    Column,
    Table,
    column,
)
from isonomy.data.tables.csv_files import clean_names, header, peek, read_csv
from isonomy.data.tables.file_errors import UNREADABLE, short_reason
from isonomy.data.tables.readings import like
from isonomy.errors import ConfigError, DataError, did_you_mean

CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")


def find(path: str | Path, exclude: Sequence[str] = ()) -> tuple[list[Path], bool]:
    """Return the table files at a path, and whether the path is a folder: one file per client.

    `exclude` names files of the folder that are not tables of clients.
    """
    place = Path(os.path.expanduser(path))  # ~name of an unknown user is left as it is
    try:
        return _find(place, exclude)
    except OSError as error:
        raise DataError(
            f"'{place}' cannot be opened ({short_reason(error)}); check data.path and its "
            "permissions."
        ) from error


def _find(place: Path, exclude: Sequence[str]) -> tuple[list[Path], bool]:
    if place.is_dir():
        found = _ordered(p for p in place.iterdir() if p.is_file() and _kind(p) and _is_visible(p))
        there = [p.name for p in found]
        for name in exclude:
            if name not in there:
                raise ConfigError(
                    f"data.exclude names '{name}', which is not a table in '{place}'; give the "
                    f"names of files there.{did_you_mean(name, there)}"
                )
        found = [p for p in found if p.name not in exclude]
        if not found:
            raise DataError(
                f"there is no table in the folder '{place}'; put one file per client there, with a "
                f"name that ends in {', '.join((*CSV[:2], *PARQUET[:1]))}."
            )
        for name, times in Counter(client_name(p) for p in found).items():
            if times > 1:
                raise DataError(
                    f"two tables in '{place}' are called '{name}'; each file is one client, so "
                    "give them different names."
                )
        return found, True
    if exclude and place.exists():
        raise ConfigError(
            f"data.exclude names files of a folder, but '{place}' is one file; remove it."
        )
    if place.is_file():
        if not _kind(place):
            raise DataError(
                f"'{place}' is not a table file; give a file with a name that ends in "
                f"{', '.join((*CSV, *PARQUET))}."
            )
        return [place], False
    beside = [p.name for p in place.parent.iterdir()] if place.parent.is_dir() else []
    raise DataError(
        f"there is no file or folder '{place}'; check data.path.{did_you_mean(place.name, beside)}"
    )


def _ordered(paths: Iterable[Path]) -> list[Path]:
    """Sort files by client name, or by number if all names are numbers, as a client column is."""
    found = sorted(paths, key=lambda p: (client_name(p), p.name))
    order = ordered_names([client_name(p) for p in found])
    return [found[i] for i in order]


def ordered_names(names: Sequence[str]) -> list[int]:
    """Return the order of clients: by name, or by number if all names are numbers.

    >>> ordered_names(["10", "9", "1"]), ordered_names(["b", "10", "9"])
    ([2, 1, 0], [1, 2, 0])
    """
    by_name = sorted(range(len(names)), key=lambda i: names[i])
    try:
        return sorted(by_name, key=lambda i: float(names[i]))
    except ValueError:
        return by_name


def client_name(path: Path) -> str:
    """Return the name of a file without its endings."""
    name = path.name
    for ending in (*CSV, *PARQUET):
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return path.stem


def _kind(path: Path) -> str:
    name = path.name.lower()
    if name.endswith(PARQUET):
        return "parquet"
    return "csv" if name.endswith(CSV) else ""


def _is_visible(path: Path) -> bool:
    """Whether a file is neither hidden or temporary nor a text note next to the tables."""
    return not path.name.startswith((".", "~", "_")) and path.name.lower() not in (
        "readme.txt",
        "license.txt",
        "notes.txt",
    )


def read(
    path: Path,
    missing: Sequence[str] = MISSING,
    encoding: str = "utf-8",
    known: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Read all columns of a file.

    `known` gives the levels of columns that are known to be categories. With it, other columns may
    lack a name or share one.
    """
    return open_table(path, missing, encoding, known).whole(known)


def read_piece(
    path: Path, piece: bytes, missing: Sequence[str] = MISSING, encoding: str = "utf-8"
) -> Table:
    """Read some complete lines of a CSV file as the whole file would be read; skip bad lines."""
    found, delimiter = read_csv(path, missing, encoding, piece)
    return _opened(path, found, delimiter, missing).whole()


@dataclass
class OpenTable:
    """An open file or a table in memory: its columns' names, and a function that reads one.

    `path` is where it is, for messages.
    """

    path: Path | str
    names: list[str]
    rows: int
    one: Callable[[int], Values]
    missing: Sequence[str]
    comma: bool

    def __post_init__(self) -> None:
        self.at = {name: i for i, name in enumerate(self.names)}

    def column(self, name: str, known: Sequence[str] | None = None) -> Column:
        """Read a column; `known` are its levels if it is categorical."""
        try:
            values = self.one(self.at[name])
            if len(values) != self.rows:
                raise ValueError(f"it has {len(values)} rows, but the file says {self.rows}")
            if known is not None:
                return like(values, known, self.missing, self.comma)
            return column(values, self.missing, self.comma)
        except UNREADABLE as error:
            raise DataError(
                f"column '{name}' of {self.path} cannot be read ({short_reason(error)}); write the "
                "file again, or remove the column from it."
            ) from error

    def whole(self, known: Mapping[str, Sequence[str]] | None = None) -> Table:
        """Read all columns; `known` are the levels of those that are known to be categories."""
        columns = {name: self.column(name, (known or {}).get(name)) for name in self.names}
        return Table(columns, self.rows, str(self.path))


def open_table(
    path: Path,
    missing: Sequence[str],
    encoding: str,
    known: Mapping[str, Sequence[str]] | None = None,
) -> OpenTable:
    """Open a file; see `read` for the arguments."""
    if _kind(path) == "parquet":
        file = parquet.open_file(path)
        given = parquet.given_columns(file)
        names = clean_names(path, [file.names[i] for i in given])
        if path.stat().st_size < parquet.SMALL:
            whole = parquet.read_whole(path, file)
            one = lambda i: whole[i]  # noqa: E731
        else:
            one = lambda i: file.read([given[i]])[0]  # noqa: E731
        return OpenTable(path, names, file.rows, one, missing, comma=False)
    return _opened(path, *read_csv(path, missing, encoding, known=known), missing)


def _opened(path: Path, found: Frame, delimiter: str, missing: Sequence[str]) -> OpenTable:
    names = clean_names(path, found.names)
    one = list(found.columns.values()).__getitem__
    return OpenTable(path, names, len(found), one, missing, comma=delimiter != ",")


def column_names(path: Path, encoding: str = "utf-8") -> list[str]:
    """Return the names of a file's columns without reading its rows."""
    if _kind(path) == "parquet":
        return clean_names(path, parquet.given_names(parquet.open_file(path)))
    text, _ = peek(path, encoding)
    return header(path, text)
