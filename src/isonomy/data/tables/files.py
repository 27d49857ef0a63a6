"""Tables on disk: CSV and Parquet, one file a client or one file for all.

Read with care for what organisations really send: another column order, semicolons, decimal
commas, spaces about names, a byte-order mark. What cannot be read is refused with the file and,
where it is known, the line.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from isonomy.data.tables.readings import like
from isonomy.data.tables.roles import listed
from isonomy.errors import ConfigError, DataError, did_you_mean

CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
_DELIMITERS = ",;\t|"
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error, pa.ArrowException)
_PEEK = 1 << 16
_LINE = 1 << 24  # the longest line of names
_SMALL = 1 << 26  # bytes of a Parquet file up to which it is read at once


def find(path: str | Path) -> tuple[list[Path], bool]:
    """The table files at a path, and whether each is a client (a folder was named)."""
    place = Path(os.path.expanduser(path))  # a user that does not exist stays as it is
    try:
        return _find(place)
    except OSError as error:
        raise DataError(
            f"'{place}' cannot be looked into ({_short(error)}); check data.path and who may read "
            "it."
        ) from error


def _find(place: Path) -> tuple[list[Path], bool]:
    if place.is_dir():
        found = _ordered(p for p in place.iterdir() if p.is_file() and _kind(p) and _seen(p))
        if not found:
            raise DataError(
                f"there is no table in the folder '{place}'; put one file for each client there, "
                f"ending in {', '.join((*CSV[:2], *PARQUET[:1]))}."
            )
        for name, times in Counter(client_name(p) for p in found).items():
            if times > 1:
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
    beside = [p.name for p in place.parent.iterdir()] if place.parent.is_dir() else []
    raise DataError(
        f"there is no file or folder '{place}'; check data.path.{did_you_mean(place.name, beside)}"
    )


def _ordered(paths: Iterable[Path]) -> list[Path]:
    """In the order in which a client column would have them: by name, or by number if all are."""
    found = sorted(paths, key=lambda p: (client_name(p), p.name))
    try:
        return sorted(found, key=lambda p: float(client_name(p)))
    except ValueError:
        return found


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


def read(
    path: Path,
    missing: Sequence[str] = MISSING,
    encoding: str = "utf-8",
    known: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """A file's table, all its columns.

    With `known`, what the columns are is known: those in it are categories with these levels, and
    columns that nobody asks for may lack a name or have another's.
    """
    raw = _open(path, missing, encoding, known)
    columns = {name: raw.column(name, (known or {}).get(name)) for name in raw.names}
    return Table(columns, raw.rows, str(path))


def read_piece(
    path: Path, piece: bytes, missing: Sequence[str] = MISSING, encoding: str = "utf-8"
) -> Table:
    """Some whole lines of a CSV file, read as all of it would be; broken ones are left out."""
    read_, delimiter = _read_csv(path, missing, encoding, piece)
    raw = _Raw(path, read_.column_names, len(read_), read_.column, missing, comma=delimiter != ",")
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
    if not raw.rows:
        raise DataError(f"{path} has names of columns and no rows; fill it, or name another file.")
    told = raw.column(client)
    if isinstance(told, Other) and told.kind != "empty":
        raise ConfigError(
            f"column '{client}' of {path} cannot tell clients apart, since it holds "
            f"{'dates' if told.kind == 'time' else 'lists or bytes'}; name one of texts or "
            "whole numbers."
        )
    words = as_words(told)
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

    def __post_init__(self) -> None:
        self.at = {name: i for i, name in enumerate(self.names)}

    def column(self, name: str, known: Sequence[str] | None = None) -> Column:
        try:
            values = self.one(self.at[name])
            if known is not None:
                return like(values, known, self.missing, self.comma)
            return column(values, self.missing, self.comma)
        except _UNREADABLE as error:
            raise DataError(
                f"column '{name}' of {self.path} cannot be read ({_short(error)}); write the file "
                "again, or leave the column out of it."
            ) from error


def _open(
    path: Path,
    missing: Sequence[str],
    encoding: str,
    known: Mapping[str, Sequence[str]] | None = None,
) -> _Raw:
    if _kind(path) == "parquet":
        file = _open_parquet(path)
        given = _given(file)
        names = _names(path, given)
        if path.stat().st_size < _SMALL:
            whole = _whole(path, file)
            one = lambda i: whole.column(given[i])  # noqa: E731
        else:  # by name, since "a" also reads what is called "a.b"
            one = lambda i: file.read(columns=[given[i]]).column(given[i])  # noqa: E731
        return _Raw(path, names, file.metadata.num_rows, one, missing, comma=False)
    table, delimiter = _read_csv(path, missing, encoding, known=known)
    names = _names(path, table.column_names)
    return _Raw(path, names, len(table), table.column, missing, comma=delimiter != ",")


def column_names(path: Path, encoding: str = "utf-8") -> list[str]:
    """The names of a file's columns, without reading its rows."""
    if _kind(path) == "parquet":
        return _names(path, _given(_open_parquet(path)))
    text, _ = _peek(path, encoding)
    return _header(path, text)


# --- Parquet -------------------------------------------------------------------------------------


def _open_parquet(path: Path) -> Any:
    try:
        schema = pq.read_schema(path)
        texts = [f.name for f in schema if pa.types.is_string(f.type)]
        return pq.ParquetFile(path, read_dictionary=texts)  # texts as numbers in a dictionary
    except _UNREADABLE as error:
        raise DataError(_parquet_trouble(path, error)) from error


def _given(file: Any) -> list[str]:
    """The names of a file's columns, but for those that pandas adds to number rows."""
    return [name for name in file.schema_arrow.names if not _PANDAS.fullmatch(name)]


_PANDAS = re.compile(r"__index_level_\d+__")


def _whole(path: Path, file: Any) -> Any:
    try:
        return file.read()
    except _UNREADABLE as error:
        raise DataError(_parquet_trouble(path, error)) from error


def _parquet_trouble(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return _read_trouble(path, error)
    return (
        f"{path} cannot be read as Parquet ({_short(error)}); it may be cut off or another kind "
        "of file, so get a whole copy."
    )


# --- CSV -----------------------------------------------------------------------------------------


def _read_csv(
    path: Path,
    missing: Sequence[str],
    encoding: str,
    piece: bytes | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Any, str]:
    text, whole = _peek(path, encoding)
    delimiter = _delimiter(text)
    names = _header(path, text, loose=known is not None)
    blank, _, rows = _first(text)
    if piece is None and whole and not rows.strip():
        return pa.table({name: pa.nulls(0) for name in names}), delimiter
    convert = pacsv.ConvertOptions(
        null_values=["", *missing, *(f" {word}" for word in missing if word)],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        auto_dict_encode=True,
        auto_dict_max_cardinality=1 << 16,
        column_types={name: pa.string() for name in known or () if name in names},
    )

    def parse(breaks: bool, threads: bool = True) -> Any:
        return pacsv.read_csv(
            path if piece is None else pa.BufferReader(piece),
            read_options=pacsv.ReadOptions(
                column_names=names,
                skip_rows=blank + 1 if piece is None else 0,
                encoding=encoding,
                use_threads=threads,
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=breaks,
                invalid_row_handler=None if piece is None else lambda _: "skip",
            ),
            convert_options=convert,
        )

    try:
        try:
            table = parse('"' in text)
        except pa.ArrowInvalid:  # line breaks in values further on, or a row known by its number
            table = parse(True, threads=False)
    except _UNREADABLE as error:
        raise DataError(_csv_trouble(path, encoding, error, blank + 1)) from error
    if any(pa.types.is_binary(getattr(f.type, "value_type", f.type)) for f in table.schema):
        raise DataError(_encoding_trouble(path, encoding))  # what is no text was left as bytes
    if piece is None and _doubtful(table):
        _check_quotes(path, delimiter, encoding)
    return table, delimiter


def _doubtful(table: Any) -> bool:
    """Whether a value looks as if a quotation mark were missing: arrow lets it go on for lines."""
    last = table.column(table.num_columns - 1)[-1].as_py() if len(table) else None
    if isinstance(last, str) and _BREAK.search(last):
        return True
    for chunk in (chunk for values in table.columns for chunk in values.chunks):
        texts = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if pa.types.is_string(texts.type):
            marked = texts.filter(pc.match_substring(texts, '"'))
            if pc.any(pc.match_substring_regex(marked, r"[\r\n]")).as_py():
                return True
    return False


def _check_quotes(path: Path, delimiter: str, encoding: str) -> None:
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    row = -1  # the line of names
    try:
        with _opened(path) as stream:
            lines = io.TextIOWrapper(stream, encoding=encoding, newline="")
            for values in csv.reader(lines, delimiter=delimiter, strict=True):
                row += bool(values)
    except csv.Error as error:
        raise DataError(
            f"a quotation mark in row {row + 1} of {path} is not closed where its value ends, so "
            "what follows is taken into it; close it, or double it if it is part of the value."
        ) from error


_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


def _csv_trouble(path: Path, encoding: str, error: Exception, skip: int) -> str:
    said = _short(error)
    if isinstance(error, UnicodeDecodeError) or "UTF8" in said or "utf" in said.lower():
        return _encoding_trouble(path, encoding)
    if isinstance(error, OSError):
        return _read_trouble(path, error)
    ragged = _RAGGED.search(said)
    if ragged is None:
        return f"{path} cannot be read as CSV ({said}); write it again."
    row, wanted, got = (int(number) for number in ragged.groups())
    return (
        f"row {row - skip} of {path} has {got} value{'s' * (got != 1)} where there are {wanted} "
        "columns; give it one for each, and check its quotation marks: a value that holds a "
        "delimiter or a line break needs a pair of them."
    )


def _read_trouble(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} may not be read; have yourself given the permission."
    return (
        f"{path} cannot be read ({_short(error)}); it may be cut off or another kind of file, so "
        "get a whole copy."
    )


def _encoding_trouble(path: Path, encoding: str) -> str:
    line = ""
    with _opened(path) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                raw.decode(encoding)
            except UnicodeError as wrong:
                at = getattr(wrong, "start", 0)
                line = f" (line {number}, byte 0x{raw[at]:02x})"
                break
    return (
        f"{path} is not {encoding.upper()} text{line}; save it as UTF-8, or say what all files "
        'are in, e.g. encoding = "cp1252".'
    )


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if _packed(path) else path.open("rb")


def _packed(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _peek(path: Path, encoding: str) -> tuple[str, bool]:
    """The file's beginning, decoded, with at least its first line; and whether that is all."""
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            f"there is no encoding '{encoding}' of texts; usual ones are utf-8, cp1252 and latin-1."
        ) from None
    try:
        with _opened(path) as stream:
            raw = stream.read(_PEEK)
            whole = len(raw) < _PEEK
            raw += b"" if whole else stream.readline(_LINE)
    except _UNREADABLE as error:
        raise DataError(_read_trouble(path, error)) from error
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path} is UTF-16 text; save it as UTF-8.")
    if b"\0" in raw:
        raise DataError(
            f"{path} holds null bytes, so it is no text; save it as UTF-8, or name it .parquet if "
            "it is that."
        )
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not raw.strip():
        raise DataError(
            f"{path} is empty; a table has a line of column names and a line for each row, so "
            "fill it or take it away."
        )
    try:  # a letter that is cut in two at the end is none to complain of
        return codecs.getincrementaldecoder(encoding)().decode(raw), whole
    except UnicodeError as error:
        raise DataError(_encoding_trouble(path, encoding)) from error


_BREAK = re.compile(r"\r\n|\r|\n")  # str.splitlines knows more of them than CSV does
_BLANK = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\r|\n))*")


def _first(text: str) -> tuple[int, str, str]:
    """How many lines are blank before the line of names, that line, and what follows it."""
    blank = _BLANK.match(text)
    assert blank is not None
    line, *rest = _BREAK.split(text[blank.end() :], maxsplit=1)
    return len(_BREAK.findall(blank[0])), line, "".join(rest)


def _header(path: Path, text: str, loose: bool = False) -> list[str]:
    try:
        header = next(csv.reader([_first(text)[1]], delimiter=_delimiter(text), strict=True))
    except csv.Error:
        raise DataError(
            f"the line of names in {path} has a quotation mark too many or too few; write every "
            "column's name on one line, and in quotation marks only as a whole."
        ) from None
    return _names(path, _told_apart(header) if loose else header)


def _told_apart(header: Sequence[str]) -> list[str]:
    """Every column with a name of its own: the second of a name is called NAME.1."""
    names = [name.strip().removeprefix("\ufeff") for name in header]
    named = [name or f"column {i + 1}" for i, name in enumerate(names)]
    before = [named[:i].count(name) for i, name in enumerate(named)]
    return [f"{name}.{n}" if n else name for name, n in zip(named, before, strict=True)]


def _delimiter(text: str) -> str:
    """What stands between the names of the first line, most often, outside quotes."""
    counts, quoted = dict.fromkeys(_DELIMITERS, 0), False
    for c in _first(text)[1]:
        if c == '"':
            quoted = not quoted
        elif c in counts and not quoted:
            counts[c] += 1
    best = max(_DELIMITERS, key=lambda c: counts[c])
    return best if counts[best] else ","


def _names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip().removeprefix("\ufeff") for name in header]
    seen: set[str] = set()
    for i, name in enumerate(names):
        if not name:
            raise DataError(
                f"column {i + 1} of {path} has no name; give every column a name in the first line."
            )
        if name in seen:
            raise DataError(
                f"{path} has two columns called '{name}'; give every column its own name."
            )
        seen.add(name)
    return names


def _short(error: BaseException) -> str:
    """What an error says, in a few words that go inside of a sentence."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    text = "".join(c for c in text.split(". ")[0].rstrip(".") if c.isprintable())
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
        if len(self.names) == 1:
            place = self._table.place or "the table"
        return Table(columns, at.stop - at.start, place)


Source = Files | Pieces
