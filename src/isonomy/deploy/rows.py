"""Turn the rows to predict into features: tables, images, texts and arrays."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core import parquet
from isonomy.core.values import Frame, Values, values_of
from isonomy.data.arrow_values import frame_of, from_arrow, is_arrow, pyarrow
from isonomy.data.preparation import Pixels, Sentences, Texts, as_features
from isonomy.data.tables.roles import parts
from isonomy.deploy.groups import Given, column_groups, given_groups
from isonomy.errors import DataError, did_you_mean
from isonomy.postprocess import Rule

if TYPE_CHECKING:
    from isonomy.data.preparation import Preparation
    from isonomy.data.tables.columns import Table
    from isonomy.data.tables.preprocessing import Preprocessing

ARRAYS = (".npy", ".npz")
LISTED = 8  # column names in a note

Rows = Any
"""A path, an array or tensor, an arrow table, a data frame, or a mapping of columns."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features [n, ...], and notes on values and columns that the model cannot use.

    `groups` [n] are the rows' groups, if decisions depend on them.
    """

    x: Tensor
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None


def features(
    rows: Rows,
    preparation: Preparation | None,
    inputs: Sequence[int],
    rule: Rule | None = None,
    groups: Given | None = None,
) -> Features:
    """The features of rows, prepared as the model's training rows were.

    With a `rule` of decisions, also their groups: from the columns of a table, or as given.
    """
    if rule is None and groups is not None:
        raise DataError("groups are given, but the model's decisions do not depend on them.")
    from_table = rule if groups is None else None
    found = _features(rows, preparation, inputs, from_table)
    if rule is None or found.groups is not None:
        return found
    return replace(found, groups=given_groups(groups, len(found.x), rule))


def _features(
    rows: Rows, preparation: Preparation | None, inputs: Sequence[int], rule: Rule | None
) -> Features:
    if isinstance(rows, Tensor):
        return _array(rows.detach().cpu().numpy(), preparation, inputs, "the tensor")
    if isinstance(rows, np.ndarray):
        return _array(rows, preparation, inputs, "the array")
    if isinstance(rows, str | Path):
        path = Path(rows).expanduser()
        if path.suffix.lower() in ARRAYS:
            return _array(_load(path), preparation, inputs, str(path))
        _needs_table(preparation, inputs, str(path))
        if isinstance(preparation, Texts | Sentences):
            return _texts(_file(path), preparation, str(path))
        assert preparation is not None
        return prepared(read(path, preparation), preparation, rule)  # type: ignore[arg-type]
    table, place = _in_memory(rows), "the table"
    _needs_table(preparation, inputs, place)
    if isinstance(preparation, Texts | Sentences):
        return _texts(table, preparation, place)
    return prepared(_columns(table, preparation), preparation, rule)  # type: ignore[arg-type]


def read(path: Path, preparation: Preprocessing) -> Table:
    """The table in a file, with categories read as in training."""
    from isonomy.data.tables import files

    missing = preparation.table.missing
    return files.read(_single_file(path), missing, known=preparation.categories())


def _single_file(path: Path) -> Path:
    """The path of a single table; raises a DataError if it is missing or a folder of several."""
    from isonomy.data.tables import files

    if not path.exists():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no file '{path}'; check the path.{did_you_mean(path.name, beside)}"
        )
    found, several = files.find(path)
    if several:
        raise DataError(f"'{path}' is a folder with several tables; give one file.")
    return found[0]


def prepared(table: Table, preparation: Preprocessing, rule: Rule | None = None) -> Features:
    """The features of a table, with notes on columns and values that the model cannot use."""
    x = torch.from_numpy(preparation.transform(table))
    known = preparation.read(table)
    used = {*preparation.columns, *(r.of for r in preparation.readings if r.of)}
    groups = None
    if rule is not None:
        groups = column_groups(known, preparation, rule)
        used |= {rule.about.attribute, *parts(rule.about.attribute)}
    unused = [name for name in table.columns if name not in used]
    notes = [f"the model does not use {_listed(unused)}."] if unused else []
    for encoder in preparation.encoders:
        column = known.columns.get(encoder.columns[0])
        if encoder.kind == "sum" or column is None:
            continue
        missing = column.missing()
        if encoder.kind == "number":
            if missing.any():
                notes.append(
                    f"column '{encoder.name}': {_values(int(missing.sum()))} missing, the first in "
                    f"row {int(missing.argmax()) + 1}; filled with {encoder.fill:.6g}."
                )
            continue
        from isonomy.data.tables.columns import as_words

        words = as_words(column)
        unknown = [i for i, level in enumerate(words.levels) if level not in encoder.levels]
        where = np.flatnonzero(np.isin(words.codes, unknown))
        if len(where):
            first = words.levels[words.codes[where[0]]]
            effect = "counted as 'other'" if encoder.other else "encoded as zeros"
            notes.append(
                f"column '{encoder.name}': {_values(len(where))} unknown to the model, the "
                f"first '{first}' in row {where[0] + 1}; {effect}."
            )
    return Features(x, tuple(notes), groups)


def _values(count: int) -> str:
    return f"{count:,} value{'s' * (count != 1)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"column{'s' * (len(names) != 1)} {', '.join(names[:LISTED])}{more}"


def _needs_table(preparation: Preparation | None, inputs: Sequence[int], place: str) -> None:
    if preparation is None or isinstance(preparation, Pixels):
        shape = ", ".join(str(d) for d in inputs)
        what = "images" if preparation is not None else "features"
        raise DataError(
            f"{place}: the model needs {what} and cannot read a table; give an .npy or .npz file "
            f"with an array [n, {shape}]."
        )


def _array(
    x: NDArray[Any], preparation: Preparation | None, inputs: Sequence[int], place: str
) -> Features:
    if isinstance(preparation, Pixels):
        made = preparation.transform(x, place)
        turned = preparation.turned and x.dtype.kind in "iu"
        note = "in training the images of each client were rotated; these images are not rotated."
        return Features(torch.from_numpy(made), (note,) if turned else ())
    if x.shape[1:] != tuple(inputs) or x.ndim < 2:
        raise DataError(
            f"{place} has the shape {list(x.shape)}, but the model needs features "
            f"[n, {', '.join(str(d) for d in inputs)}]; give one row for each example."
        )
    return Features(torch.from_numpy(as_features(x, place)))


def _load(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"there is no file '{path}'; check the path.") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as an array ({' '.join(str(error).split())[:100]}); write it "
            "with numpy.save."
        ) from None
    if isinstance(found, np.ndarray):
        return found
    names = list(found)
    chosen = [name for name in ("x", "images", "features") if name in names] or names
    if len(names) != 1 and chosen == names:
        raise DataError(f"{path} has the arrays {', '.join(names)}; name the one to predict 'x'.")
    out: NDArray[Any] = found[chosen[0]]
    return out


def _texts(table: Frame, preparation: Texts | Sentences, place: str) -> Features:
    name = preparation.column
    if name not in table.names:
        raise DataError(
            f"{place} has no column '{name}' with the texts; add it."
            f"{did_you_mean(name, table.names)}"
        )
    texts = table[name].listed()
    wrong = [row for row, text in enumerate(texts) if not isinstance(text, str)]
    if wrong:
        raise DataError(f"column '{name}' of {place} has no text in row {wrong[0] + 1}; fill it.")
    unused = [other for other in table.names if other != name]
    notes = [f"the model does not use {_listed(unused)}."] if unused else []
    x = preparation.transform(texts)
    blank = np.flatnonzero(~x.any(1))
    if len(blank):
        notes.append(
            f"column '{name}': {len(blank):,} text{'s' * (len(blank) != 1)} without a word that "
            f"the model knows, the first in row {blank[0] + 1}."
        )
    return Features(torch.from_numpy(x), tuple(notes))


def _file(path: Path) -> Frame:
    """A file with texts; those of a CSV file are never numbers."""
    from isonomy.data.tables import csv_files, files

    found = _single_file(path)
    try:
        if path.name.lower().endswith(files.PARQUET):
            return parquet.read_frame(found)
        return csv_files.read_texts(found)
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{path} cannot be read ({reason}); write it again.") from None


def _in_memory(rows: Any) -> Frame:
    if isinstance(rows, Frame):
        return rows
    try:
        if isinstance(rows, Mapping):
            return Frame({str(name): _given(column) for name, column in rows.items()})
        if is_arrow(rows) and hasattr(rows, "column_names"):
            return frame_of(rows)
        if hasattr(rows, "columns") and hasattr(rows, "iloc"):
            return frame_of(pyarrow("a frame").Table.from_pandas(rows, preserve_index=False))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(
            f"the rows are not a table ({reason}); give columns of the same length."
        ) from None
    raise DataError(
        f"rows of type {type(rows).__name__} cannot be read; give a path, an array, or a table."
    )


def _given(column: Any) -> Values:
    return from_arrow(column) if is_arrow(column) else values_of(column)


def _columns(table: Frame, preparation: Any) -> Table:
    from isonomy.data.tables.columns import Table as Made
    from isonomy.data.tables.columns import column
    from isonomy.data.tables.readings import like

    missing, known = preparation.table.missing, preparation.categories()
    made = {
        name: like(values, known[name], missing) if name in known else column(values, missing)
        for name, values in table.columns.items()
    }
    return Made(made, len(table), "the table")
