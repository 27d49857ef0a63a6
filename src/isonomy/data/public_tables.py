"""Read the published tables of named data sets, check them, and define their common options.

A file is read with the columns it is known to have, so a wrong value is reported with its row and
column, and columns that are not needed (names, birth dates) are never kept. Preparation is left to
`isonomy.data.tables`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.core.options import Option
from isonomy.core.values import Coded, Frame, Opaque, Plain, Values, values_of
from isonomy.data.dataset import Fact, Request, check_facts
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import FRACTIONS
from isonomy.data.tables.csv_files import read_columns
from isonomy.errors import DataError

Table = Frame


def options(
    protected: tuple[str, ...], bins: Mapping[str, Sequence[float]], **special: Option
) -> dict[str, Option]:
    """Return the options that all published tables have, and those of one data set."""
    cut = "; ".join(f"{name} at {' and '.join(f'{e:g}' for e in at)}" for name, at in bins.items())
    return {
        "protected": Option(
            protected, "protected attributes: columns, or intersections such as 'sex*race'"
        ),
        "keep_protected": Option(False, "whether protected columns are also used as features"),
        "bins": Option({}, f"edges of groups of protected numbers (default: {cut})"),
        **special,
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option("", "a copy of the complete data set to read instead of downloading it"),
    }


def obtain(
    what: str,
    files: Sequence[tuple[fetch.File, ...]],
    parse: Callable[[Sequence[Path]], Table],
    facts: Callable[[Table], list[Fact]],
    request: Request,
) -> tuple[Table, str]:
    """Return the complete, checked table of a data set and its origin."""
    if request.options["path"]:
        table, origin = parse([Path(request.options["path"]).expanduser()]), "the file given"
    else:
        fetched = fetch.fetch(*files, progress=request.progress)
        table, origin = parse([file.path for file in fetched]), fetched[0].source
    check_facts(what, facts(table))
    return table, origin


def roles(
    request: Request,
    label: str,
    positive: str,
    *,
    bins: Mapping[str, Sequence[float]],
    drop: Sequence[str] = (),
    twins: Mapping[str, str] | None = None,
    **more: Any,
) -> Any:
    """Return the roles of a table's columns, from the options that all published tables have.

    `bins` are the default groups of protected numbers. Columns in `drop` are not used as features,
    but may be protected. `twins` maps a column to another that reveals it: if the first is
    protected and not used as a feature, the other is not used either.
    """
    from isonomy.data import tables

    protected, keep = request.options["protected"], request.options["keep_protected"]
    used = {part.strip() for name in protected for part in name.split("*")}
    twin = [] if keep else [other for name, other in (twins or {}).items() if name in used]
    return tables.Roles(
        label=label,
        positive=positive,
        protected=protected,
        bins={name: at for name, at in bins.items() if name in used} | request.options["bins"],
        drop=tuple(name for name in dict.fromkeys([*drop, *twin]) if name not in used),
        keep_protected=keep,
        **more,
    )


def read_as(made: Federation, *readings: Mapping[str, Any]) -> Federation:
    """Return the federation with translations of published values in its preprocessing.

    With them a model can read rows of the file as published. Each reading is a
    `isonomy.data.tables.readings.Reading` as plain values.
    """
    from isonomy.data.tables.readings import Reading

    plain = [Reading(**dict(one)).model_dump(mode="json") for one in readings]
    return replace(made, preprocessing={**(made.preprocessing or {}), "readings": plain})


def first_line(path: Path) -> str:
    """Return the first line of a file, compressed or not, to find out its format."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.readline(10_000).decode("utf-8", "replace").strip()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path} ({reason}); check the path.") from error


def header(what: str, path: Path, wanted: Sequence[str]) -> tuple[list[str], str]:
    """Return the column names of a file, which must include `wanted`, and the delimiter.

    The second column called NAME becomes NAME.1.
    """
    line = first_line(path).removeprefix("\ufeff")
    delimiter = max(",;\t", key=line.count)
    given = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    before = [given[:i].count(name) for i, name in enumerate(given)]
    names = [f"{name}.{n}" if n else name for name, n in zip(given, before, strict=True)]
    lacking = [name for name in wanted if name not in names]
    if lacking:
        raise DataError(
            f"cannot read {path.name} as {what}: it has no column {lacking[0]}; give a file with "
            f"the {len(wanted)} columns from {wanted[0]} to {wanted[-1]}."
        )
    return names, delimiter


def read(
    what: str,
    path: Path,
    columns: Sequence[str],
    numbers: Sequence[str],
    *,
    skip: int = 0,
    delimiter: str = ",",
    wanted: Sequence[str] = (),
    missing: Sequence[str] = (),
    gaps: Sequence[str] = (),
) -> Table:
    """Return the `wanted` columns (default: all) of a CSV file whose columns are `columns`.

    The first `skip` lines are skipped. `numbers` are the columns of numbers; only those in `gaps`
    may have missing values. Spaces around words are removed; a word in `missing` becomes null.
    `what` is the name of the data set.
    """
    kept = list(wanted or columns)
    try:
        table = read_columns(path, columns, kept, numbers, skip=skip, delimiter=delimiter)
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise DataError(
            f"cannot read {path.name} as {what} ({str(error).splitlines()[0][:120]}); give a "
            f"file with the {len(columns)} columns from {columns[0]} to {columns[-1]}."
        ) from error
    for name in kept:
        values = table[name]
        if isinstance(values, Coded):
            trimmed = [word.strip() for word in values.texts]
            gone = set(missing)
            meant = [None if word in gone else word for word in trimmed]
            table = table.having(name, values.mapped(meant))
        else:
            _check_numbers(what, name, values, name in gaps)
    return table


def _check_numbers(what: str, name: str, values: Values, gaps: bool) -> None:
    found = array(values)
    bad = np.flatnonzero(np.isinf(found) if gaps else ~np.isfinite(found))
    if len(bad):
        raise DataError(
            f"{what}: row {int(bad[0]) + 1} has no number in column {name}; fill it in, or get a "
            "complete copy of the file."
        )


def numbers(table: Table, name: str) -> Any:
    """Return a column of numbers as an array; missing values are NaN."""
    return array(table[name])


def array(values: Values) -> Any:
    """Return numbers as an array; missing values are NaN."""
    if isinstance(values, Plain):
        return values.numbers()
    return np.full(len(values), np.nan) if isinstance(values, Opaque) else values.objects()


def words(table: Table, name: str) -> Any:
    """Return a column of text as an array of str; missing values are None."""
    values = table[name]
    return values.objects() if isinstance(values, Coded) else np.array(values.listed(), object)


def count(table: Table, name: str, value: str | float) -> int:
    """Return the number of rows with a value."""
    at = numbers(table, name) if isinstance(value, int | float) else words(table, name)
    return int((at == value).sum())


def complete(table: Table) -> int:
    """Return the number of rows without a missing value."""
    gone = np.zeros(len(table), dtype=np.bool_)
    for values in table.columns.values():
        if isinstance(values, Coded):
            gone |= values.codes < 0
        else:
            gone |= np.isnan(array(values).astype(np.float64))
    return int((~gone).sum())


def one_of(what: str, table: Table, name: str, known: Sequence[str]) -> None:
    """Raise DataError if a column contains values other than the known ones."""
    found = sorted({str(word) for word in words(table, name)})
    if not set(found) <= set(known):
        raise DataError(
            f"{what}'s {name} is {' or '.join(found[:4])} in this file but must be "
            f"{' or '.join(known)}; get a complete copy."
        )


def replaced(table: Table, name: str, values: Any) -> Table:
    """Return the table with other values in a column, or with a new last column."""
    return table.having(name, values_of(values))
