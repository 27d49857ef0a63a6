"""Read large CSV files with DuckDB, several times faster than `csv_files` does by itself.

DuckDB is not exact: it leaves out spaces next to quotation marks, and values that a row has too
many if they are empty. So every byte of the file is accounted for: the values that were read, with
delimiters, line breaks and quotation marks, have to be as long as the file. If they are not, or if
anything else is unusual, nothing is returned, and `csv_files` reads the file, or says what is
wrong with it.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import numpy as np

from isonomy.core.parquet import checked, codes_of, connection, fetched, plain, text
from isonomy.core.values import Coded, Plain, Values
from isonomy.data.tables.columns import number

LARGE = 1 << 21  # bytes from which files are read in this way
_EXACT = 2**53  # whole numbers from here on are not always exact as reals
_BLOCK = 1 << 24
_MARKS = b'"\r\n'
_TABLE = "isonomy_csv"


def read_large(
    stream: IO[bytes],
    encoding: str,
    delimiter: str,
    width: int,
    skip: int,
    missing: Sequence[str],
    texts: Collection[int],
    wanted: Collection[int] | None = None,
) -> list[Values] | None:
    """Read the columns after `skip` lines, or return None if it is not certain what they are.

    `texts` are the columns that are text in any case. Others than the `wanted` ones are left out.
    """
    some = sorted(range(width) if wanted is None else wanted)
    gone = ["", *missing, *(f" {word}" for word in missing if word)]
    try:
        with _copy(stream, encoding) as path:
            length, quoted, underscores = _length(path, skip)
            numbers = _numbers(path, delimiter, width, skip, gone) - set(texts)
            for _ in range(2):
                source = _source(path, delimiter, width, skip)
                with checked(), _loaded(source, width, gone, numbers, quoted, underscores):
                    bad = _bad(numbers)
                    if not bad:
                        return _columns(width, some, numbers, length)
                numbers -= bad
    except (OSError, EOFError, ValueError, csv.Error):
        return None
    return None


@contextmanager
def _copy(stream: IO[bytes], encoding: str) -> Iterator[str]:
    """Yield the path of the text in UTF-8; a file that is not so is copied."""
    name = getattr(stream, "name", None)
    plain_file = type(stream) is io.BufferedReader and encoding.lower() in ("utf-8", "utf8")
    if plain_file and not set(str(name)) & set("*?[{"):
        yield os.path.abspath(str(name))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "table.csv")
        with open(path, "w", encoding="utf-8", newline="") as out:
            lines = io.TextIOWrapper(stream, encoding, newline="")
            shutil.copyfileobj(lines, out, 1 << 20)
            lines.detach()
        yield path


def _length(path: str, skip: int) -> tuple[int, bool, bool]:
    """Return the bytes of values and delimiters; whether there are quotation marks, underscores."""
    length, quoted, underscores = 0, False, False
    with open(path, "rb") as stream:
        for _ in range(skip):
            stream.readline()
        while block := stream.read(_BLOCK):
            quoted = quoted or b'"' in block
            underscores = underscores or b"_" in block
            if b"+-" in block or b"nan(" in block.lower():  # which DuckDB accepts in numbers
                raise ValueError("unusual numbers")
            length += len(block) - sum(block.count(bytes([mark])) for mark in _MARKS)
    return length, quoted, underscores


def _numbers(path: str, delimiter: str, width: int, skip: int, gone: Sequence[str]) -> set[int]:
    """Return the columns that are numbers in the first rows."""
    with open(path, encoding="utf-8", newline="") as stream:
        for _ in range(skip):
            stream.readline()
        lines = [line for line, _ in zip(stream, range(200), strict=False)]
    rows = [row for row in csv.reader(lines, delimiter=delimiter) if len(row) == width]
    return {
        i
        for i, values in enumerate(zip(*rows, strict=True))
        if all(value in gone or number(value.strip()) is not None for value in values)
    }


def _source(path: str, delimiter: str, width: int, skip: int) -> str:
    """The rows of the file, as text, in SQL."""
    kinds = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(width))
    return (
        f"read_csv({text(path)}, columns = {{{kinds}}}, delim = {text(delimiter)}, skip = {skip}, "
        "quote = '\"', escape = '\"', header = false, auto_detect = false, strict_mode = true, "
        "null_padding = false, hive_partitioning = false)"
    )


@contextmanager
def _loaded(
    source: str,
    width: int,
    gone: Sequence[str],
    numbers: Collection[int],
    quoted: bool,
    underscores: bool,
) -> Iterator[None]:
    """Load the file into a table: numbers, and where a value is not a number; texts; lengths."""
    marks = ", ".join(map(text, gone))
    wanted, lengths = [], []
    for i in range(width):
        if i in numbers:
            odd = f" OR contains(c{i}, '_')" if underscores else ""  # DuckDB's numbers have them
            odd = f"(d{i} IS NULL AND c{i} NOT IN ({marks})){odd}"
            wanted.append(f"d{i} AS c{i}, coalesce({odd}, false) AS b{i}")
            lengths.append(f"coalesce(strlen(c{i}), 0)")
            continue
        wanted.append(f"c{i}")
        bare = f"c{i}"
        for mark in ('"', "\n", "\r") if quoted else ():
            bare = f"replace({bare}, {text(mark)}, '')"
        lengths.append(f"coalesce(strlen({bare}), 0)")
    reals = ", ".join(["*", *(f"TRY_CAST(c{i} AS DOUBLE) AS d{i}" for i in sorted(numbers))])
    made = connection()
    made.execute(
        f"CREATE OR REPLACE TEMP TABLE {_TABLE} AS "
        f"SELECT {', '.join(wanted)}, {' + '.join(lengths)} AS length "
        f"FROM (SELECT {reals} FROM {source})"
    )
    try:
        yield
    finally:
        made.execute(f"DROP TABLE {_TABLE}")


def _bad(numbers: Collection[int]) -> set[int]:
    """Return the columns with a value that is not a number."""
    if not numbers:
        return set()
    each = ", ".join(f"bool_or(b{i})" for i in sorted(numbers))
    [found] = connection().execute(f"SELECT {each} FROM {_TABLE}").fetchall()
    return {i for i, bad in zip(sorted(numbers), found, strict=True) if bad}


def _columns(
    width: int, wanted: Sequence[int], numbers: Collection[int], length: int
) -> list[Values] | None:
    query = f"SELECT count(*), sum(length) FROM {_TABLE}"
    [(rows, there)] = connection().execute(query).fetchall()
    if int(there or 0) + rows * (width - 1) != length:
        return None
    out: list[Values] = []
    for i in wanted:
        if i not in numbers:
            out.append(codes_of(f"c{i}", _TABLE))
            continue
        found = plain(fetched(f"SELECT c{i} FROM {_TABLE}")[0]).numbers()
        if (np.abs(found) >= _EXACT).any() and not np.isinf(found).any():
            return None
        out.append(Plain(found))
    return (
        None
        if any(_breaks(one, at == width - 1) for at, one in zip(wanted, out, strict=True))
        else out
    )


def _breaks(values: Values, last: bool) -> bool:
    """Whether a text has a line break that may be due to a missing quotation mark."""
    return isinstance(values, Coded) and any(
        ("\n" in each or "\r" in each) and (last or '"' in each) for each in values.texts
    )
