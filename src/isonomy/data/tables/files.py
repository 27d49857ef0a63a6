"""Tables on disk: CSV and Parquet, one file a client or one file for all.

Read with care for what organisations really send: another column order, semicolons, decimal
commas, spaces about names, a byte-order mark. What cannot be read is refused with the file and,
where it is known, the line.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from isonomy.data.tables.columns import (
    MISSING,
    Column,
    Numbers,
    Other,
    Table,
    Words,
    as_words,
    column,
)
from isonomy.data.tables.roles import listed
from isonomy.errors import ConfigError, DataError, did_you_mean

CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
_DELIMITERS = ",;\t|"
_PEEK = 1 << 16
_SMALL = 1 << 26  # bytes of a Parquet file up to which it is read at once


def find(path: str | Path) -> tuple[list[Path], bool]:
    """The table files at a path, and whether each is a client (a folder was named)."""
    place = Path(path).expanduser()
    if place.is_dir():
        found = sorted(p for p in place.iterdir() if p.is_file() and _kind(p) and _seen(p))
        if not found:
            raise DataError(
                f"there is no table in the folder '{place}'; put one file for each client there, "
                f"ending in {', '.join((*CSV[:2], *PARQUET[:1]))}."
            )
        names = [client_name(p) for p in found]
        for name in names:
            if names.count(name) > 1:
                raise DataError(
                    f"two tables in '{place}' are called '{name}'; each file is a client, so give "
                    "them different names."
                )
        return found, True
    if place.is_file():
        if not _kind(place):
            raise DataError(
                f"'{place}' is no table by its name; give a file that ends in "
                f"{', '.join((*CSV, *PARQUET))}."
            )
        return [place], False
    raise DataError(f"there is no file or folder '{place}'; check data.path.")


def client_name(path: Path) -> str:
    """A file's name without its endings."""
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


def _seen(path: Path) -> bool:
    """Not a file that an editor or a system hides, nor a note beside the tables."""
    return not path.name.startswith((".", "~", "_")) and path.name.lower() not in (
        "readme.txt",
        "license.txt",
        "notes.txt",
    )


def read(path: Path, missing: Sequence[str] = MISSING, encoding: str = "utf-8") -> Table:
    """A file's table, all its columns."""
    raw = _open(path, missing, encoding)
    columns = {name: raw.column(name) for name in raw.names}
    return Table(columns, raw.rows, str(path))


def read_piece(
    path: Path, piece: bytes, missing: Sequence[str] = MISSING, encoding: str = "utf-8"
) -> Table:
    """Some whole lines of a CSV file, read as all of it would be; broken ones are left out."""
    read_, delimiter = _read_csv(path, missing, encoding, piece)
    raw = _Raw(
        path, read_.column_names, len(read_), read_.column, missing, comma=delimiter != ","
    )
    return Table({name: raw.column(name) for name in raw.names}, raw.rows, str(path))


def read_clients(
    path: Path, client: str, missing: Sequence[str] = MISSING, encoding: str = "utf-8"
) -> Pieces:
    """One file's rows as the clients that a column names, in the order of their names.

    Each column is put in the clients' order as it is read, so that memory holds the table once.
    """
    raw = _open(path, missing, encoding)
    if client not in raw.names:
        raise ConfigError(
            f"{path} has no column '{client}' to tell clients by; its columns are "
            f"{listed(raw.names)}.{did_you_mean(client, raw.names)}"
        )
    words = as_words(raw.column(client))
    gone = words.missing()
    if gone.any():
        raise DataError(
            f"row {int(gone.argmax()) + 1} of {path} has no '{client}', so nobody holds it; fill "
            "it in, or take the row out."
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
    """A column with its rows in another order; None leaves them."""
    if order is None or isinstance(of, Other):
        return of
    if isinstance(of, Words):
        return Words(of.codes[order], of.levels)
    return Numbers(of.values[order])


@dataclass
class _Raw:
    """An open file: its columns' names, and how to read one of them."""

    path: Path
    names: list[str]
    rows: int
    one: Callable[[int], Any]
    missing: Sequence[str]
    comma: bool

    def column(self, name: str) -> Column:
        try:
            return column(self.one(self.names.index(name)), self.missing, self.comma)
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise DataError(
                f"column '{name}' of {self.path} cannot be read ({_short(error)}); write the file "
                "again, or leave the column out of it."
            ) from error


def _open(path: Path, missing: Sequence[str], encoding: str) -> _Raw:
    if _kind(path) == "parquet":
        file = _open_parquet(path)
        given = file.schema_arrow.names
        names = _names(path, given)
        if path.stat().st_size < _SMALL:
            one = _whole(path, file).column
        else:
            one = lambda i: file.read(columns=[given[i]]).column(0)  # noqa: E731
        return _Raw(path, names, file.metadata.num_rows, one, missing, comma=False)
    table, delimiter = _read_csv(path, missing, encoding)
    names = _names(path, table.column_names)
    return _Raw(path, names, len(table), table.column, missing, comma=delimiter != ",")


def column_names(path: Path, encoding: str = "utf-8") -> list[str]:
    """The names of a file's columns, without reading its rows."""
    if _kind(path) == "parquet":
        return _names(path, _open_parquet(path).schema_arrow.names)
    text = _peek(path, encoding)
    return _names(path, next(csv.reader([_first(text)], delimiter=_delimiter(text)), []))


# --- Parquet -------------------------------------------------------------------------------------


def _open_parquet(path: Path) -> Any:
    try:
        schema = pq.read_schema(path)
        texts = [f.name for f in schema if pa.types.is_string(f.type)]
        return pq.ParquetFile(path, read_dictionary=texts)  # texts as numbers in a dictionary
    except (OSError, pa.ArrowException) as error:
        raise DataError(_parquet_trouble(path, error)) from error


def _whole(path: Path, file: Any) -> Any:
    try:
        return file.read()
    except (OSError, pa.ArrowException) as error:
        raise DataError(_parquet_trouble(path, error)) from error


def _parquet_trouble(path: Path, error: Exception) -> str:
    return (
        f"{path} cannot be read as Parquet ({_short(error)}); it may be cut off or another kind "
        "of file, so get a whole copy."
    )


# --- CSV -----------------------------------------------------------------------------------------


def _read_csv(
    path: Path, missing: Sequence[str], encoding: str, piece: bytes | None = None
) -> tuple[Any, str]:
    text = _peek(path, encoding)
    delimiter = _delimiter(text)
    header = next(csv.reader([_first(text)], delimiter=delimiter), [])
    names = _names(path, header)
    convert = pacsv.ConvertOptions(
        null_values=[*missing, *(f" {word}" for word in missing if word)],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        auto_dict_encode=True,
        auto_dict_max_cardinality=1 << 16,
    )
    try:
        table = pacsv.read_csv(
            path if piece is None else pa.BufferReader(piece),
            read_options=pacsv.ReadOptions(
                column_names=names, skip_rows=1 if piece is None else 0, encoding=encoding
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values='"' in text,
                invalid_row_handler=None if piece is None else lambda _: "skip",
            ),
            convert_options=convert,
        )
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(_csv_trouble(path, encoding, error)) from error
    return table, delimiter


def _csv_trouble(path: Path, encoding: str, error: Exception) -> str:
    said = _short(error)
    if isinstance(error, UnicodeDecodeError) or "UTF8" in said or "utf" in said.lower():
        return _encoding_trouble(path, encoding)
    return (
        f"{path} cannot be read as CSV ({said}); every line has to have as many values as the "
        "first, and values with a comma or a line break have to be quoted."
    )


def _encoding_trouble(path: Path, encoding: str) -> str:
    line = ""
    with _opened(path) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                raw.decode(encoding)
            except UnicodeDecodeError as wrong:
                line = f" (line {number}, byte 0x{raw[wrong.start]:02x})"
                break
    return (
        f"{path} is not {encoding.upper()} text{line}; save it as UTF-8, or say what all files "
        'are in, e.g. encoding = "cp1252".'
    )


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _peek(path: Path, encoding: str) -> str:
    """The file's beginning, decoded, up to its last whole line."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ConfigError(
            f"there is no encoding '{encoding}'; usual ones are utf-8, cp1252 and latin-1."
        ) from None
    try:
        with _opened(path) as stream:
            raw = stream.read(_PEEK)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({_short(error)}); check the file.") from error
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path} is UTF-16 text; save it as UTF-8.")
    if b"\0" in raw:
        raise DataError(f"{path} is no text; give a CSV file, or name it .parquet if it is that.")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not raw.strip():
        raise DataError(
            f"{path} is empty; a table has a line of column names and a line for each row, so "
            "fill it or take it away."
        )
    cut = raw if len(raw) < _PEEK else raw[: raw.rfind(b"\n") + 1] or raw
    try:
        text: str = cut.decode(encoding)
        return text
    except UnicodeDecodeError as error:
        raise DataError(_encoding_trouble(path, encoding)) from error


def _first(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _delimiter(text: str) -> str:
    """What stands between the names of the first line, most often, outside quotes."""
    line, counts, quoted = _first(text), dict.fromkeys(_DELIMITERS, 0), False
    for c in line:
        if c == '"':
            quoted = not quoted
        elif c in counts and not quoted:
            counts[c] += 1
    best = max(_DELIMITERS, key=lambda c: counts[c])
    return best if counts[best] else ","


def _names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip().removeprefix("\ufeff") for name in header]
    for i, name in enumerate(names):
        if not name:
            raise DataError(
                f"column {i + 1} of {path} has no name; give every column a name in the first line."
            )
        if name in names[:i]:
            raise DataError(
                f"{path} has two columns called '{name}'; give every column its own name."
            )
    return names


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 140 else text[:137] + "..."


# --- who holds what ------------------------------------------------------------------------------


class Files:
    """One file a client; read when asked for, and kept while they are small enough together."""

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
        """A client's table."""
        if client in self._kept:
            return self._kept[client]
        table = read(self._paths[client], self._missing, self._encoding)
        if table.size <= self._room:
            self._room -= table.size
            self._kept[client] = table
        return table


class Pieces:
    """Clients that are stretches of one table."""

    def __init__(self, table: Table, bounds: Sequence[int], names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._table, self._bounds = table, list(bounds)

    def open(self, client: int) -> Table:
        """A client's table; its columns are views."""
        at = slice(self._bounds[client], self._bounds[client + 1])
        columns = {name: values[at] for name, values in self._table.columns.items()}
        place = f"client '{self.names[client]}'"
        place += f" in {self._table.place}" if self._table.place else ""
        return Table(columns, at.stop - at.start, place)


Source = Files | Pieces
