"""Published tables: read in their own form, checked by what is known of them, options they share.

A named data set's file is read by the columns it is known to have, so that a value where none
belongs is refused by row and column, and columns that nobody needs (names, birth dates) are never
kept. What is done with the columns then is `isonomy.data.tables`' business.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.core.options import Option
from isonomy.data.dataset import Fact, Request, insist
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import FRACTIONS
from isonomy.errors import DataError

Table = Any  # pyarrow.Table, which has no types and is slow to import


def options(
    protected: tuple[str, ...], bins: Mapping[str, Sequence[float]], **special: Option
) -> dict[str, Option]:
    """The options that all published tables have, and a data set's own."""
    cut = "; ".join(f"{name} at {' and '.join(f'{e:g}' for e in at)}" for name, at in bins.items())
    return {
        "protected": Option(
            protected, "protected attributes: columns, or intersections such as 'sex*race'"
        ),
        "keep_protected": Option(False, "whether the protected columns are features too"),
        "bins": Option({}, f"where protected numbers are cut into groups ({cut} unless said)"),
        **special,
        "fractions": Option(FRACTIONS, "shares of a client's rows to train, validate and test"),
        "path": Option("", "a copy of the whole data set to read instead of fetching it"),
    }


def obtain(
    what: str,
    files: Sequence[tuple[fetch.File, ...]],
    parse: Callable[[Sequence[Path]], Table],
    facts: Callable[[Table], list[Fact]],
    request: Request,
) -> tuple[Table, str]:
    """The whole data set's table, checked, and where it came from."""
    if request.options["path"]:
        table, origin = parse([Path(request.options["path"]).expanduser()]), "the file given"
    else:
        fetched = fetch.fetch(*files, progress=request.progress)
        table, origin = parse([file.path for file in fetched]), fetched[0].source
    insist(what, facts(table))
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
    """What a table's columns are, by the options that all published tables have.

    `bins` cut what is protected unless the user says where. `drop` are no features; a user may
    protect one nevertheless. `twins` names for a column another that gives it away: where the
    first is protected and no feature, neither is the other.
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
    """The federation, its preprocessing knowing how the published file writes some columns.

    So a model reads rows of the file as they are published. Each reading is that of
    `isonomy.data.tables.readings`, as plain values.
    """
    from isonomy.data.tables.readings import Reading

    plain = [Reading(**dict(one)).model_dump(mode="json") for one in readings]
    return replace(made, preprocessing={**(made.preprocessing or {}), "readings": plain})


def first_line(path: Path) -> str:
    """A file's first line, packed or not, to tell its form by."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.readline(10_000).decode("utf-8", "replace").strip()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path} ({said}); check the path.") from error


def header(what: str, path: Path, wanted: Sequence[str]) -> tuple[list[str], str]:
    """The names in a file's first line, which have to include `wanted`, and what is between them.

    The second column of a name is called NAME.1.
    """
    line = first_line(path).removeprefix("\ufeff")
    delimiter = max(",;\t", key=line.count)
    told = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    before = [told[:i].count(name) for i, name in enumerate(told)]
    names = [f"{name}.{n}" if n else name for name, n in zip(told, before, strict=True)]
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
    """The `wanted` columns (all unless said) of a CSV file whose columns are `columns`, in order.

    `skip` lines at the start hold no row. `numbers` are the columns that hold numbers, and of
    these only `gaps` may lack one. Spaces about a word are no part of it; a word in `missing` is
    null. `what` is the data set's name.
    """
    pa: Any = importlib.import_module("pyarrow")
    pacsv: Any = importlib.import_module("pyarrow.csv")
    kept = list(wanted or columns)
    kinds = {name: pa.float64() if name in numbers else pa.string() for name in kept}
    try:
        table = pacsv.read_csv(
            path,
            read_options=pacsv.ReadOptions(column_names=list(columns), skip_rows=skip),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types=kinds, include_columns=kept, strings_can_be_null=False
            ),
        )
    except (OSError, EOFError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {path.name} as {what} ({str(error).splitlines()[0][:120]}); give a "
            f"file with the {len(columns)} columns from {columns[0]} to {columns[-1]}."
        ) from error
    # Only what was asked for is converted: names and birth dates stay in the file.
    arrays = [
        _numbers(what, name, table[name], name in gaps)
        if name in numbers
        else _words(table[name], missing)
        for name in kept
    ]
    return pa.table(arrays, names=kept)


def _words(values: Any, missing: Sequence[str]) -> Any:
    pa: Any = importlib.import_module("pyarrow")
    pc: Any = importlib.import_module("pyarrow.compute")
    words = pc.utf8_trim_whitespace(values)
    if missing:
        gone = pc.is_in(words, value_set=pa.array(list(missing)))
        words = pc.if_else(gone, pa.scalar(None, pa.string()), words)
    return words


def _numbers(what: str, name: str, values: Any, gaps: bool) -> Any:
    numbers = values.to_numpy()
    bad = np.flatnonzero(np.isinf(numbers) if gaps else ~np.isfinite(numbers))
    if len(bad):
        raise DataError(
            f"{what}: row {int(bad[0]) + 1} has no number for {name}; fill it in, or get a whole "
            "copy of the file."
        )
    return values


def numbers(table: Table, name: str) -> Any:
    """A column of numbers as an array, NaN where there is none."""
    return table[name].to_numpy()


def words(table: Table, name: str) -> Any:
    """A column of words as an array of str, None where there is none."""
    return np.array(table[name].to_pylist(), dtype=object)


def count(table: Table, name: str, value: str | float) -> int:
    """How many rows have a value."""
    at = numbers(table, name) if isinstance(value, int | float) else words(table, name)
    return int((at == value).sum())


def one_of(what: str, table: Table, name: str, known: Sequence[str]) -> None:
    """Refuse a column that holds other words than it can."""
    found = sorted({str(word) for word in table[name].unique().to_pylist()})
    if not set(found) <= set(known):
        raise DataError(
            f"{what}'s {name} is {' or '.join(found[:4])} in this file; it has to be "
            f"{' or '.join(known)}, so get a whole copy."
        )


def replaced(table: Table, name: str, values: Any) -> Table:
    """The table with other values in a column, or with a new last column."""
    pa: Any = importlib.import_module("pyarrow")
    column = pa.array(values, from_pandas=True)
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)
