"""Read CSV files: find the delimiter and the header line, and say what is wrong with a file."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.core.values import Coded, Frame, Opaque, Plain, Values
from isonomy.data.tables import csv_large
from isonomy.data.tables.columns import MISSING, number
from isonomy.data.tables.file_errors import UNREADABLE, cannot_read, short_reason
from isonomy.errors import ConfigError, DataError

_DELIMITERS = ",;\t|"


PEEK = 1 << 16


_LINE = 1 << 24  # the longest line of names


_BLOCK = 1 << 20  # characters that are converted at a time
_ROWS = 1 << 13  # rows, where there are quotation marks


def read_csv(
    path: Path,
    missing: Sequence[str],
    encoding: str,
    piece: bytes | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Frame, str]:
    """Read a CSV file, or `piece`: some complete lines of it. Returns the table and the delimiter.

    Columns in `known` are read as text.
    """
    text, whole = peek(path, encoding)
    delimiter = _delimiter(text)
    names = header(path, text, loose=known is not None)
    blank, _, rows = _first(text)
    if piece is None and whole and not rows.strip():
        return Frame({name: Opaque(0, "empty") for name in names}), delimiter
    texts = {i for i, name in enumerate(names) if name in (known or ())}
    if piece is None and len(names) > 1 and path.stat().st_size >= csv_large.LARGE:
        with open_bytes(path) as raw:
            found = csv_large.read_large(
                raw, encoding, delimiter, len(names), blank + 1, missing, texts
            )
        if found is not None:
            return Frame(dict(zip(names, found, strict=True))), delimiter
    try:
        while True:
            columns = [_Column(missing, i in texts) for i in range(len(names))]
            with open_bytes(path) if piece is None else io.BytesIO(piece) as raw:
                lines = io.TextIOWrapper(raw, encoding, newline="")
                for _ in range(blank + 1 if piece is None else 0):
                    lines.readline()
                for block in _blocks(lines, delimiter, len(names), piece is not None):
                    for one, values in zip(columns, block, strict=True):
                        one.add(values)
            again = {i for i, one in enumerate(columns) if one.lost}
            if not again:
                break
            texts |= again  # text occurred after numbers
    except _Ragged as wrong:
        raise DataError(
            f"row {wrong.row} of {path} has {wrong.got} value{'s' * (wrong.got != 1)} but there "
            f"are {len(names)} columns; give it one value per column, and put a value that "
            "contains a delimiter or a line break in quotation marks."
        ) from None
    except (*UNREADABLE, csv.Error) as error:
        raise DataError(_message(path, encoding, error)) from error
    if piece is None and _may_lack_quotes(columns):
        _check_quotes(path, delimiter, encoding)
    return Frame({n: one.values() for n, one in zip(names, columns, strict=True)}), delimiter


def read_columns(
    source: Path | bytes,
    names: Sequence[str],
    wanted: Sequence[str],
    numbers: Collection[str],
    *,
    skip: int = 0,
    delimiter: str = ",",
) -> Frame:
    """Read the `wanted` columns of a CSV file in UTF-8 whose columns are `names`, after some lines.

    Those in `numbers` must be numbers, or missing; all others are text. Raises a ValueError, an
    OSError, an EOFError, a zlib.error or a csv.Error.
    """
    at = {name: i for i, name in enumerate(names)}
    if isinstance(source, Path) and source.stat().st_size >= csv_large.LARGE:
        texts = [i for name, i in at.items() if name not in numbers]
        some = sorted(at[name] for name in wanted)
        with open_bytes(source) as raw:
            read = csv_large.read_large(
                raw, "utf-8", delimiter, len(names), skip, MISSING, texts, some
            )
        made = {names[i]: values for i, values in zip(some, read or (), strict=False)}
        if read and all(isinstance(made[n], Plain) for n in wanted if n in numbers):
            return Frame({name: _with_empty(made[name]) for name in wanted})
    columns = {name: _Column(MISSING, name not in numbers) for name in wanted}
    rows = 0
    with io.BytesIO(source) if isinstance(source, bytes) else open_bytes(source) as raw:
        lines = io.TextIOWrapper(raw, "utf-8-sig", newline="")
        for _ in range(skip):
            lines.readline()
        for block in _blocks(lines, delimiter, len(names)):
            for name, one in columns.items():
                one.add(block[at[name]])
                if name in numbers and one.kind == "text":
                    row = next(i for i, v in enumerate(block[at[name]]) if not _is_number(v))
                    value = block[at[name]][row][:40]
                    raise ValueError(f"row {rows + row + 1} has '{value}' in column {name}")
            rows += len(block[0])
    if not rows:
        raise ValueError("it has no rows")
    found = {name: one.values() for name, one in columns.items()}
    return Frame({name: _reals(v) if name in numbers else v for name, v in found.items()})


def _with_empty(values: Values) -> Values:
    """A column with empty texts in place of missing ones."""
    if not isinstance(values, Coded) or not (values.codes < 0).any():
        return values
    codes = np.where(values.codes < 0, np.int32(len(values.texts)), values.codes)
    return Coded(codes, [*values.texts, ""])


def _reals(values: Values) -> Values:
    assert isinstance(values, Plain)
    return Plain(values.values.astype(np.float64))


def read_texts(path: Path) -> Frame:
    """Read all columns of a CSV file in UTF-8 as text; raises what `read_columns` raises."""
    text, _ = peek(path, "utf-8")
    names = header(path, text)
    return read_columns(
        path, names, names, (), skip=_first(text)[0] + 1, delimiter=_delimiter(text)
    )


def _is_number(value: str) -> bool:
    return value in MISSING or number(value.strip()) is not None


class _Ragged(ValueError):
    """A row with another number of values than there are columns."""

    def __init__(self, row: int, got: int, width: int) -> None:
        super().__init__(f"row {row} has {got} values instead of {width}")
        self.row, self.got = row, got


def _blocks(
    lines: io.TextIOWrapper, delimiter: str, width: int, skip: bool = False
) -> Iterator[Sequence[Sequence[str]]]:
    """Return the columns of some rows at a time. `skip` rows of another length, or raise."""
    done = 0
    while block := lines.read(_BLOCK) + lines.readline():
        plain = block.replace("\r\n", "\n")
        if '"' in plain or "\r" in plain or width == 1:
            rest: Iterable[str] = chain(io.StringIO(block, newline=""), lines)
            csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
            reader = csv.reader(rest, delimiter=delimiter)
            while rows := list(islice(reader, _ROWS)):
                kept = _kept([row for row in rows if row], len, width, skip, done)
                done += len(kept)
                if kept:
                    yield list(zip(*kept, strict=True))
            return
        there = [line for line in plain.split("\n") if line]
        count = lambda line: line.count(delimiter) + 1  # noqa: E731
        kept = _kept(there, count, width, skip, done)
        done += len(kept)
        if kept:
            values = delimiter.join(kept).split(delimiter)
            yield [values[i::width] for i in range(width)]


def _kept(rows: list[Any], count: Any, width: int, skip: bool, done: int) -> list[Any]:
    """Return the rows of the right length; raise _Ragged for another one unless `skip`."""
    if set(map(count, rows)) <= {width}:
        return rows
    if skip:
        return [row for row in rows if count(row) == width]
    at, row = next((at, row) for at, row in enumerate(rows) if count(row) != width)
    raise _Ragged(done + at + 1, count(row), width)


class _Column:
    """The values of a column so far: whole numbers, or else numbers, or else text."""

    def __init__(self, missing: Sequence[str], text: bool) -> None:
        self.kind = "text" if text else "whole"
        self.lost = False  # text occurred after numbers, whose text is not known any more
        self.parts: list[NDArray[Any]] = []
        self.place: dict[str, int] = {}
        self.last = ""
        self._gone = dict.fromkeys(("", *missing, *(f" {w}" for w in missing if w)), "nan")

    def add(self, values: Sequence[str]) -> None:
        """Add the values of some rows."""
        if self.lost:
            return
        self.last = values[-1]
        while self.kind != "text":
            try:
                self.parts.append(self._numbers(values))
                return
            except (ValueError, OverflowError):
                self.kind = "number" if self.kind == "whole" else "text"
        self.lost = bool(self.parts) and not self.place
        if not self.lost:
            place = self.place
            for value in dict.fromkeys(values):
                place.setdefault(value, len(place))
            self.parts.append(np.fromiter(map(place.__getitem__, values), np.int32, len(values)))

    def _numbers(self, values: Sequence[str]) -> NDArray[Any]:
        if self.kind == "whole":
            found = np.fromiter(map(int, values), np.int64, len(values))
        else:
            gone = self._gone
            found = np.fromiter(map(float, map(gone.get, values, values)), np.float64, len(values))
        together = "".join(values)
        if "_" in together or not together.isascii():  # which Python accepts in numbers
            raise ValueError
        return found

    def values(self) -> Values:
        """Return all values."""
        if not self.parts:
            return Opaque(0, "empty")
        kinds = {part.dtype for part in self.parts}
        whole = np.concatenate(self.parts)
        self.parts = []
        if self.kind == "text":
            return Coded(whole, list(self.place))
        return Plain(whole.astype(np.float64) if len(kinds) > 1 else whole)


def _may_lack_quotes(columns: Sequence[_Column]) -> bool:
    """Whether a value looks as if a quotation mark were missing, since then one reads on."""
    return bool(columns and _BREAK.search(columns[-1].last)) or any(
        '"' in text and _BREAK.search(text) for one in columns for text in one.place
    )


def _check_quotes(path: Path, delimiter: str, encoding: str) -> None:
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    row = -1  # the header line
    try:
        with open_bytes(path) as stream:
            lines = io.TextIOWrapper(stream, encoding=encoding, newline="")
            for values in csv.reader(lines, delimiter=delimiter, strict=True):
                row += bool(values)
    except csv.Error as error:
        raise DataError(
            f"a quotation mark in row {row + 1} of {path} is not closed at the end of its value; "
            "close it, or write it twice if it is part of the value."
        ) from error


def _message(path: Path, encoding: str, error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return _encoding_message(path, encoding)
    if isinstance(error, OSError | EOFError | zlib.error):
        return cannot_read(path, error)
    return f"{path} cannot be read as CSV ({short_reason(error)}); write the file again."


def _encoding_message(path: Path, encoding: str) -> str:
    line = ""
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                raw.decode(encoding)
            except UnicodeError as wrong:
                at = getattr(wrong, "start", 0)
                line = f" (line {number}, byte 0x{raw[at]:02x})"
                break
    return (
        f"{path} is not {encoding.upper()} text{line}; save it as UTF-8, or set the encoding of "
        'all files, for example encoding = "cp1252".'
    )


def open_bytes(path: Path) -> Any:
    """Open a file for reading bytes; a .gz file is decompressed."""
    return gzip.open(path, "rb") if _packed(path) else path.open("rb")


def _packed(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def peek(path: Path, encoding: str) -> tuple[str, bool]:
    """Return the beginning of a file, at least its first line, and whether that is all of it."""
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            f"encoding is '{encoding}', which is not a text encoding; usual ones are utf-8, cp1252 "
            "and latin-1."
        ) from None
    try:
        with open_bytes(path) as stream:
            raw = stream.read(PEEK)
            whole = len(raw) < PEEK
            raw += b"" if whole else stream.readline(_LINE)
    except UNREADABLE as error:
        raise DataError(cannot_read(path, error)) from error
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path} is UTF-16 text; save it as UTF-8.")
    if b"\0" in raw:
        raise DataError(
            f"{path} contains null bytes, so it is not a text file; save it as UTF-8, or rename it "
            "to .parquet if it is a Parquet file."
        )
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not raw.strip():
        raise DataError(
            f"{path} is empty; a table needs a header line with column names and one line per row, "
            "so fill the file or remove it."
        )
    try:  # a character that is cut off at the end is not an error
        return codecs.getincrementaldecoder(encoding)().decode(raw), whole
    except UnicodeError as error:
        raise DataError(_encoding_message(path, encoding)) from error


_BREAK = re.compile(r"\r\n|\r|\n")  # unlike str.splitlines, which also splits at other characters


_BLANK = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\r|\n))*")


def _first(text: str) -> tuple[int, str, str]:
    """Return the number of blank lines before the header line, that line, and what follows."""
    blank = _BLANK.match(text)
    assert blank is not None
    line, *rest = _BREAK.split(text[blank.end() :], maxsplit=1)
    return len(_BREAK.findall(blank[0])), line, "".join(rest)


def header(path: Path, text: str, loose: bool = False) -> list[str]:
    """Return the column names; `loose` accepts missing and repeated names."""
    try:
        names = next(csv.reader([_first(text)[1]], delimiter=_delimiter(text), strict=True))
    except csv.Error:
        raise DataError(
            f"the header line of {path} has a wrong quotation mark; write all column names on one "
            "line, and quote a name completely or not at all."
        ) from None
    return clean_names(path, _make_unique(names) if loose else names)


def _make_unique(header: Sequence[str]) -> list[str]:
    """Return unique column names: the second column called NAME becomes NAME.1."""
    names = [name.strip().removeprefix("\ufeff") for name in header]
    named = [name or f"column {i + 1}" for i, name in enumerate(names)]
    before = [named[:i].count(name) for i, name in enumerate(named)]
    return [f"{name}.{n}" if n else name for name, n in zip(named, before, strict=True)]


def _delimiter(text: str) -> str:
    """Return the most frequent delimiter of the header line, outside quotation marks."""
    counts, quoted = dict.fromkeys(_DELIMITERS, 0), False
    for c in _first(text)[1]:
        if c == '"':
            quoted = not quoted
        elif c in counts and not quoted:
            counts[c] += 1
    best = max(_DELIMITERS, key=lambda c: counts[c])
    return best if counts[best] else ","


def clean_names(path: Path | str, header: Sequence[str]) -> list[str]:
    """Return the column names without spaces around them; raise DataError if one repeats."""
    names = [name.strip().removeprefix("\ufeff") for name in header]
    seen: set[str] = set()
    for i, name in enumerate(names):
        if not name:
            raise DataError(
                f"column {i + 1} of {path} has no name; name every column in the header line."
            )
        if name in seen:
            raise DataError(f"{path} has two columns called '{name}'; give them different names.")
        seen.add(name)
    return names
