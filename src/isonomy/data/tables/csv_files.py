"""Read CSV files: find the delimiter and the header line, and say what is wrong with a file."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from isonomy.data.tables.file_errors import UNREADABLE, cannot_read, short_reason
from isonomy.errors import ConfigError, DataError

_DELIMITERS = ",;\t|"


PEEK = 1 << 16


_LINE = 1 << 24  # the longest line of names


def read_csv(
    path: Path,
    missing: Sequence[str],
    encoding: str,
    piece: bytes | None = None,
    known: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Any, str]:
    """Read a CSV file, or `piece`: some complete lines of it. Returns the table and the delimiter.

    Columns in `known` are read as text.
    """
    text, whole = peek(path, encoding)
    delimiter = _delimiter(text)
    names = header(path, text, loose=known is not None)
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
        except (
            pa.ArrowInvalid
        ):  # a value with a line break, or a bad row: single-threaded, errors name it
            table = parse(True, threads=False)
    except UNREADABLE as error:
        raise DataError(_message(path, encoding, error, blank + 1)) from error
    if any(pa.types.is_binary(getattr(f.type, "value_type", f.type)) for f in table.schema):
        raise DataError(_encoding_message(path, encoding))  # undecodable values are left as bytes
    if piece is None and _may_lack_quotes(table):
        _check_quotes(path, delimiter, encoding)
    return table, delimiter


def _may_lack_quotes(table: Any) -> bool:
    """Whether a value looks as if a quotation mark were missing, since arrow reads on for lines."""
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


_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


def _message(path: Path, encoding: str, error: Exception, skip: int) -> str:
    reason = short_reason(error)
    if isinstance(error, UnicodeDecodeError) or "UTF8" in reason or "utf" in reason.lower():
        return _encoding_message(path, encoding)
    if isinstance(error, OSError):
        return cannot_read(path, error)
    ragged = _RAGGED.search(reason)
    if ragged is None:
        return f"{path} cannot be read as CSV ({reason}); write the file again."
    row, wanted, got = (int(number) for number in ragged.groups())
    return (
        f"row {row - skip} of {path} has {got} value{'s' * (got != 1)} but there are {wanted} "
        "columns; give it one value per column, and put a value that contains a delimiter or a "
        "line break in quotation marks."
    )


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
