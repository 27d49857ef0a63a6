"""Sample tables without reading all of them: some files, some rows, the header of every file.

The amount that is read is bounded, so sampling a terabyte takes seconds. Of a large file, pieces
from all over the file are read, because files are often sorted.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.data.tables import parquet_files
from isonomy.data.tables.columns import MISSING, Table, column
from isonomy.data.tables.file_errors import UNREADABLE, cannot_read
from isonomy.data.tables.files import PARQUET, column_names, find, read, read_piece
from isonomy.data.tables.stray_files import strays
from isonomy.errors import DataError

FILES = 20  # files of which rows are read; of others only the header is read
BYTES = 8 << 20  # that are read of a CSV file
ROWS = 100_000  # that are read of a Parquet file
_PIECES = 64
_START = 1 << 16


@dataclass(frozen=True, eq=False)
class Look:
    """A sample of the tables at a path.

    `headers` are the column names of every file; `tables` are the sampled files, by their index.
    `rows` is the number of rows of all files, an estimate unless `whole` is set. `excluded` are
    files in the folder that look different from the others, which all other fields leave out.
    """

    paths: tuple[Path, ...]
    folder: bool
    headers: tuple[tuple[str, ...], ...]
    tables: dict[int, Table]
    rows: int
    whole: bool
    size: int
    encoding: str = "utf-8"
    excluded: tuple[Path, ...] = ()

    @property
    def rows_text(self) -> str:
        """The number of rows as text; an estimate is rounded."""
        if self.whole:
            return f"{self.rows:,}"
        return f"about {float(f'{self.rows:.2g}'):,.0f}"


def look_at(
    path: str | Path, missing: Sequence[str] = MISSING, *, files: int = FILES, most: int = BYTES
) -> Look:
    """Sample the tables of a folder, or one table; a folder with one table counts as that table."""
    paths, folder = find(path)
    folder = folder and len(paths) > 1
    encoding = encoding_of(paths, spread(len(paths), files), most)
    every = [tuple(column_names(p, encoding)) for p in paths]
    left_out = strays(every)
    excluded = tuple(paths[k] for k in left_out)
    headers = tuple(header for k, header in enumerate(every) if k not in left_out)
    paths = [p for p in paths if p not in excluded]
    chosen = spread(len(paths), files)
    sizes = [p.stat().st_size for p in paths]
    tables, seen, rows, whole = {}, 0, 0, len(chosen) == len(paths)
    for k in chosen:
        tables[k], there, complete = _sample(paths[k], missing, encoding, most)
        whole = whole and complete
        seen += sizes[k]
        rows += there
    rows = rows if seen == sum(sizes) else round(rows * sum(sizes) / max(seen, 1))
    return Look(tuple(paths), folder, headers, tables, rows, whole, sum(sizes), encoding, excluded)


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `count`, evenly spaced.

    >>> spread(3, 5), spread(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)] if most > 1 else [0]


# --- one file ------------------------------------------------------------------------------------


def _sample(
    path: Path, missing: Sequence[str], encoding: str, most: int
) -> tuple[Table, int, bool]:
    """Return some rows of a file, its estimated number of rows, and whether these are all."""
    if path.name.lower().endswith(PARQUET):
        return _sample_parquet(path, missing)
    if path.stat().st_size <= most and not path.name.lower().endswith(".gz"):
        table = read(path, missing, encoding)
        return table, table.rows, True
    pieces, whole = _pieces(path, most)
    table = read_piece(path, b"".join(pieces), missing, encoding)
    taken = max(sum(map(len, pieces)), 1)
    return table, table.rows if whole else round(table.rows * _length(path) / taken), whole


def _sample_parquet(path: Path, missing: Sequence[str]) -> tuple[Table, int, bool]:
    file = parquet_files.open_file(path)
    if file.rows <= ROWS:
        table = read(path, missing)
        return table, file.rows, True
    try:
        taken = file.sample(_PIECES, ROWS)
    except UNREADABLE as error:
        raise DataError(cannot_read(path, error)) from error
    names = [name.strip() for name in file.names]
    columns = {n: column(values, missing) for n, values in zip(names, taken, strict=True)}
    return Table(columns, len(taken[0]), str(path)), file.rows, False


def _pieces(path: Path, most: int) -> tuple[list[bytes], bool]:
    """Return complete lines from all over a CSV file, and whether these are all; no header.

    If values contain line breaks, a piece could begin inside a value. Then only the beginning of
    the file is read, as for a compressed file.
    """
    with _opened(path) as stream:
        start = stream.read(most)
        whole = len(start) < most
        start = start if whole else _whole_lines(start)
        first = start[start.find(b"\n") + 1 :]
        if path.name.lower().endswith(".gz") or broken_lines(start):
            return [first], whole
        share = most // _PIECES
        out = [_whole_lines(first[:share])]
        for i in range(1, _PIECES):
            stream.seek((_length(path) - share) * i // (_PIECES - 1))
            piece = stream.read(share)
            cut = _whole_lines(piece[piece.find(b"\n") + 1 :])
            out.append(cut if cut.endswith(b"\n") else cut + b"\n")
    return out, False


def _length(path: Path) -> int:
    """Return the size of a file's text; gzip stores it modulo 4 GB at the end of the file."""
    size = path.stat().st_size
    if not path.name.lower().endswith(".gz"):
        return size
    with path.open("rb") as stream:
        stream.seek(-4, 2)
        return max(int.from_bytes(stream.read(4), "little"), size)


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _whole_lines(raw: bytes) -> bytes:
    return raw[: raw.rfind(b"\n") + 1] or raw


def broken_lines(raw: bytes) -> bool:
    r"""Whether a quoted value contains a line break.

    >>> broken_lines(b'a,b\n"x","y"\n'), broken_lines(b'a,b\n"x\ny",2\n')
    (False, True)
    """
    if b'"' not in raw:
        return False
    lines = io.StringIO(raw.decode("latin-1"), newline="")
    csv.field_size_limit(max(csv.field_size_limit(), len(raw)))
    return any("\n" in value for row in csv.reader(lines) for value in row)


# --- encodings -----------------------------------------------------------------------------------


def encoding_of(paths: Sequence[Path], chosen: Sequence[int], most: int = BYTES) -> str:
    """Return the encoding of CSV files: UTF-8, or else the Windows encoding cp1252 or latin-1."""
    kinds: dict[str, Path] = {}
    for k, path in enumerate(paths):
        if path.name.lower().endswith(PARQUET):
            continue
        try:
            with _opened(path) as stream:
                raw = stream.read(most if k in chosen else _START)
        except (OSError, EOFError):
            continue  # the error is reported when the file is read
        if raw[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and b"\0" not in raw:
            kinds.setdefault(text_kind(raw), path)
    odd = kinds.get("cp1252") or kinds.get("latin-1")
    if odd is None:
        return "utf-8"
    if "utf-8" in kinds:
        raise DataError(
            f"{odd} is not UTF-8 text but {kinds['utf-8'].name} is; save all files as UTF-8, so "
            "that letters such as ä or é are read correctly."
        )
    return "latin-1" if "latin-1" in kinds else "cp1252"


def text_kind(raw: bytes) -> str:
    """Return the simplest encoding that can decode a text.

    >>> text_kind(b"age"), text_kind("Müller".encode()), text_kind("Müller".encode("cp1252"))
    ('ascii', 'utf-8', 'cp1252')
    """
    whole = _whole_lines(raw)
    for name in ("ascii", "utf-8", "cp1252"):
        try:
            whole.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"
