"""Read and write Parquet files, with DuckDB, which is imported when it is first needed.

The only module that uses DuckDB, besides `isonomy.data.tables.csv_large`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.core.values import Coded, Frame, Opaque, Plain, Values, coded, join, values_of

GROUP = 1 << 17  # rows of a group in a file that is written
OBJECTS = 1 << 14  # rows up to which texts become Python's before they are coded

_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG)INT|U?INTEGER|FLOAT|DOUBLE|BOOLEAN")
_WIDE = re.compile(r"U?HUGEINT|DECIMAL.*")
_TEXT = re.compile(r"VARCHAR|ENUM.*|JSON")
_TIME = re.compile(r"DATE|TIME.*|INTERVAL")
_RENAMED = re.compile(r".*_\d+")  # names that are the same but for their case are numbered
_open = threading.local()  # the connection of this thread, and the process that it is of


_before_fork: list[Any] = []


class ParquetError(ValueError):
    """A file that cannot be read as Parquet."""


def connection() -> Any:
    """Return this thread's connection to DuckDB, which holds no tables between calls."""
    if getattr(_open, "process", None) != os.getpid():
        import duckdb

        if hasattr(_open, "made"):  # of the process that this one was forked from: without its
            _before_fork.append(_open.made)  # threads, which were not forked, it cannot be closed
        _open.made = duckdb.connect(":memory:", config=_SETTINGS)
        _open.made.execute("SET enable_progress_bar = false")
        _open.made.execute(f"SET temp_directory = {text(tempfile.gettempdir())}")
        _open.process = os.getpid()
    return _open.made


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Convert the errors of DuckDB into a ParquetError."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.InternalError | duckdb.FatalException):
            _open.process = None  # the connection cannot be used any more
        said = re.sub(r"^[A-Za-z ]*Error: ", "", str(error).partition("\n")[0])
        if re.search(r"No space left|File too large|quota exceeded", str(error)):
            raise OSError(errno.ENOSPC, "No space left on device") from None
        said = re.sub(r""" *((of|in|for) )?[Ff]ile ['"].*?['"]""", "", said).strip()
        raise ParquetError(said) from None
    except (UnicodeDecodeError, RuntimeError):  # of DuckDB's binding to Python
        raise ParquetError("a text is not UTF-8") from None


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield the path as SQL; DuckDB would take some characters of it for a pattern."""
    whole = os.path.abspath(path)
    with open(whole, "rb") as file:  # so that what is wrong with the path is an OSError
        size = os.fstat(file.fileno()).st_size
    if size < 12:
        raise ParquetError(f"it has {size} bytes")
    if not re.search(r"[*?\[{]", whole):
        yield text(whole)
        return
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "table.parquet")
        try:
            os.symlink(whole, link)
        except OSError:
            shutil.copyfile(whole, link)
        yield text(link)


def text(given: str) -> str:
    """Return a text as SQL."""
    return "'" + given.replace("'", "''") + "'"


class ParquetFile:
    """An open file: its columns' names and its number of rows; columns are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _reachable(path) as place, checked():
            found = connection().sql(f"SELECT * FROM {_scan(place)}")
            names, self._types = list(found.columns), [str(kind) for kind in found.types]
            if any(_RENAMED.fullmatch(name) for name in names):
                names = _names(place)
            [(self.rows,)] = connection().execute(f"SELECT count(*) FROM {_scan(place)}").fetchall()
        self.names = names

    def read(self, columns: Sequence[int] | None = None) -> list[Values]:
        """Read columns, all by default."""
        return self._read(range(len(self.names)) if columns is None else columns, "")

    def sample(self, pieces: int, rows: int) -> list[Values]:
        """Read all columns of about so many rows: the first ones of some groups of rows."""
        with _reachable(self.path) as place, checked():
            groups = connection().execute(
                "SELECT DISTINCT row_group_id, row_group_num_rows "
                f"FROM parquet_metadata({place}) ORDER BY 1"
            )
            sizes = [int(size) for _, size in groups.fetchall()]
        starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        some = np.unique(np.linspace(0, len(sizes) - 1, min(pieces, len(sizes))).round())
        parts = []
        for group in some.astype(int).tolist():
            first = starts[group]
            last = min(first + rows // len(some), starts[group + 1])
            where = f"WHERE file_row_number >= {first} AND file_row_number < {last}"
            parts.append(self._read(range(len(self.names)), where))
        return [join(each) for each in zip(*parts, strict=True)]

    def _read(self, columns: Sequence[int], where: str) -> list[Values]:
        if not columns:
            return []
        with _reachable(self.path) as place, checked():
            named = ", ".join(f"c{i}" for i in range(len(self.names)))
            source = f"{_scan(place, bool(where))} AS t({named}) {where}"
            long = self.rows > OBJECTS and not where
            wanted = [_wanted(f"c{i}", self._types[i], long) for i in columns]
            found = fetched(f"SELECT {', '.join(wanted)} FROM {source}")
            return [
                self._values(i, values, source, long)
                for i, values in zip(columns, found, strict=True)
            ]

    def _values(self, i: int, found: Any, source: str, long: bool) -> Values:
        kind = self._types[i]
        if _NUMBER.fullmatch(kind) or _WIDE.fullmatch(kind):
            made = plain(found)
            gone = len(made) and made.null is not None and bool(made.null.all())
            return Opaque(len(made), "empty") if gone else made
        if _TEXT.fullmatch(kind):
            return codes_of(f"c{i}", source) if long else coded(_objects(found))
        if bool(np.all(plain(found).values)):
            return Opaque(len(found), "empty")
        if kind != "BLOB":
            return Opaque(len(found), "time" if _TIME.fullmatch(kind) else "other")
        try:
            with checked():
                return coded(_objects(fetched(f"SELECT decode(c{i}) FROM {source}")[0]))
        except ParquetError:
            return Opaque(len(found), "other")


def _scan(place: str, numbered: bool = False) -> str:
    more = ", file_row_number = true" if numbered else ""
    return f"read_parquet({place}, hive_partitioning = false{more})"


def _names(place: str) -> list[str]:
    """The names of the columns, as they are in the file."""
    query = f"SELECT name, num_children FROM parquet_schema({place})"
    tree = [(str(name), int(under or 0)) for name, under in connection().execute(query).fetchall()]
    out, at = [], 1
    for _ in range(tree[0][1]):
        out.append(tree[at][0])
        left = 1
        while left:  # skip what is nested in the column
            left += tree[at][1] - 1
            at += 1
    return out


def _wanted(name: str, kind: str, long: bool) -> str:
    if _NUMBER.fullmatch(kind) or (_TEXT.fullmatch(kind) and not long):
        return name
    if _WIDE.fullmatch(kind):
        return f"{name}::DOUBLE"
    return "NULL::BOOLEAN" if _TEXT.fullmatch(kind) else f"{name} IS NULL"


def fetched(query: str) -> list[Any]:
    """Return the columns of a query's result as arrays of numpy, which may be masked."""
    return list(connection().execute(query).fetchnumpy().values())


def plain(found: Any) -> Plain:
    """Return numbers that DuckDB has fetched."""
    if not isinstance(found, np.ma.MaskedArray):
        return Plain(found)
    null = np.ma.getmaskarray(found)
    return Plain(found.data, null if null.any() else None)


def _objects(found: Any) -> list[Any]:
    if not isinstance(found, np.ma.MaskedArray):
        return list(found.tolist())
    out = found.data.astype(object)
    out[np.ma.getmaskarray(found)] = None
    return list(out.tolist())


def codes_of(name: str, source: str) -> Coded:
    """Return a column of text of any length, without one object of Python for each row."""
    kind = "isonomy_texts"
    made = connection()
    where = f"SELECT DISTINCT {name} AS text FROM {source}"
    made.execute(f"CREATE TEMP TABLE {kind} AS SELECT text FROM ({where}) WHERE text IS NOT NULL")
    try:
        texts = [each for (each,) in made.execute(f"SELECT text FROM {kind}").fetchall()]
        if not texts:
            [(rows,)] = made.execute(f"SELECT count(*) FROM {source}").fetchall()
            return Coded(np.full(rows, -1, dtype=np.int32), [])
        made.execute(f"CREATE TEMP TYPE {kind}_type AS ENUM (SELECT text FROM {kind})")
        try:
            [found] = fetched(f"SELECT enum_code({name}::{kind}_type) FROM {source}")
        finally:
            made.execute(f"DROP TYPE {kind}_type")
    finally:
        made.execute(f"DROP TABLE {kind}")
    codes = plain(found)
    out = codes.values.astype(np.int32)
    return Coded(out if codes.null is None else np.where(codes.null, np.int32(-1), out), texts)


def written(columns: Mapping[str, Any]) -> bytes:
    """Return a file of columns: lists, whose cells may be lists, arrays of numpy, or `Values`.

    Its bytes depend on the values only.
    """
    arrays: dict[str, Any] = {"row": np.arange(len(next(iter(columns.values()), ())))}
    lists: list[Any] = []
    wanted = []
    names = _distinct(columns)
    for at, (name, values) in enumerate(zip(names, columns.values(), strict=True)):
        if isinstance(values, list) and any(isinstance(v, list | tuple) for v in values):
            lists.append(values)
            reals = any(isinstance(one, float) for value in values for one in value or ())
            kind = "DOUBLE[][]" if reals else "BIGINT[][]"
            cell = f"list_extract(${len(lists)}::{kind}, row + 1)"
        else:
            cell, found = f"c{at}", _array(values)
            arrays[cell] = found
            if found.dtype.kind == "f" and (nan := np.isnan(np.ma.getdata(found))).any():
                arrays[f"nan{at}"] = nan & ~np.ma.getmaskarray(found)  # otherwise a missing value
                cell = f"CASE WHEN nan{at} THEN 'nan' ELSE c{at} END"
        wanted.append(f"{cell} AS {_named(name)}")
    with _scratch() as path:
        with checked():
            made = connection()
            made.register("isonomy_columns", arrays)
            try:
                query = f"SELECT {', '.join(wanted)} FROM isonomy_columns"
                made.execute(f"COPY ({query}) TO {_target(path)}", lists or None)
            finally:
                made.unregister("isonomy_columns")
        return _renamed(path.read_bytes(), names, columns)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield the path of a new file, in memory on Linux and otherwise in a folder of its own."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("isonomy")
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "table.parquet"


def _named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _target(path: Path) -> str:
    options = f"FORMAT parquet, ROW_GROUP_SIZE {GROUP}, USE_TMP_FILE false"
    return f"{text(os.path.abspath(path))} ({options})"


def _array(values: Any) -> Any:
    found = values if isinstance(values, Plain | Coded | Opaque) else values_of(values)
    if isinstance(found, Coded):
        return found.objects()
    if isinstance(found, Opaque):
        return np.ma.masked_array(np.zeros(found.rows), np.ones(found.rows, dtype=np.bool_))
    return found.values if found.null is None else np.ma.masked_array(found.values, found.null)


def _distinct(names: Iterable[str]) -> list[str]:
    """Names of the same lengths that also differ if the case of letters does not count."""
    out: list[str] = []
    seen: set[str] = set()
    for name in names:
        used, number = name, 0
        while used.casefold() in seen:
            width = len(name.encode())
            used = "".join(chr(1 + number // 31**k % 31) for k in range(width))
            number += 1
        seen.add(used.casefold())
        out.append(used)
    return out


def _renamed(content: bytes, used: Sequence[str], names: Iterable[str]) -> bytes:
    """Return a file with the right names, in place of names of the same lengths."""
    changes = [(a.encode(), b.encode()) for a, b in zip(used, names, strict=True) if a != b]
    if not changes:
        return content
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:]
    for wrong, right in changes:
        length = bytes([len(right)]) if len(right) < 128 else b""  # before a short name
        footer = footer.replace(length + wrong, length + right)
    return content[:start] + footer


def join_files(parts: Sequence[Path], target: Path) -> None:
    """Write the rows of several files with the same columns as one file.

    A column without values in one file can have any type in another.
    """
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(_reachable(part)) for part in parts]
        stack.enter_context(checked())
        names = _names(places[0])
        used = _distinct(names)
        source = " UNION ALL ".join(f"SELECT * FROM {_scan(place)}" for place in places)
        named = ", ".join(map(_named, used))
        query = f"SELECT * FROM ({source}) AS t({named})"
        connection().execute(f"COPY ({query}) TO {_target(target)}")
    if used != names:
        target.write_bytes(_renamed(target.read_bytes(), used, names))


def read_frame(path: Path) -> Frame:
    """Read all columns."""
    file = ParquetFile(path)
    return Frame(dict(zip(file.names, file.read(), strict=True)))


def rows_of(path: Path) -> dict[str, list[Any]]:
    """Read all columns as lists of Python's values, which may be lists again."""
    with _reachable(path) as place, checked():
        found = connection().execute(f"SELECT * FROM {_scan(place)}")
        names = [column[0] for column in found.description]
        rows = found.fetchall()
        if any(_RENAMED.fullmatch(name) for name in names):
            names = _names(place)
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}
