"""From files to columns to a federation's tensors: groups and encoded features."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.data.federation import Attribute
from isonomy.data.partition import Categories
from isonomy.errors import ConfigError, DataError, unknown

Numbers = NDArray[np.float64]
Column = Categories | Numbers


def read_csv(
    what: str,
    paths: Sequence[Path],
    names: Sequence[str],
    numbers: Sequence[str],
    skip: Sequence[int],
) -> dict[str, Column]:
    """The columns of CSV files without header, one file after the other.

    `names` are the columns' names, `numbers` those that hold numbers, `skip` how many lines to
    leave out at the start of each file, `what` the data set's name for messages. Spaces about a
    value are no part of it, and a category's levels are sorted.
    """
    pa: Any = importlib.import_module("pyarrow")
    csv: Any = importlib.import_module("pyarrow.csv")
    kinds = {name: pa.float64() if name in numbers else pa.string() for name in names}
    convert = csv.ConvertOptions(column_types=kinds, strings_can_be_null=False)
    tables = []
    for path, lines in zip(paths, skip, strict=True):
        try:
            options = csv.ReadOptions(column_names=list(names), skip_rows=lines)
            tables.append(csv.read_csv(path, read_options=options, convert_options=convert))
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise DataError(
                f"cannot read {path.name} as {what} ({str(error).splitlines()[0][:120]}); give a "
                f"file with the {len(names)} columns from {names[0]} to {names[-1]}."
            ) from error
    table = pa.concat_tables(tables)
    columns: dict[str, Column] = {}
    for name in names:
        values = pa.concat_arrays(table[name].chunks) if len(table) else pa.array([], kinds[name])
        if name in numbers:
            columns[name] = _numbers(what, name, values.to_numpy(zero_copy_only=False))
        else:
            coded = values.dictionary_encode()
            words = np.array([word.strip() for word in coded.dictionary.to_pylist()], dtype=str)
            levels, rank = np.unique(words, return_inverse=True)
            codes = rank[coded.indices.to_numpy()].astype(np.int64)
            columns[name] = Categories(codes, tuple(levels.tolist()))
    return columns


def _numbers(what: str, name: str, values: Numbers) -> Numbers:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise DataError(
            f"{what}: row {int(bad[0]) + 1} has no number for {name}; fill it in, or get a whole "
            "copy of the file."
        )
    return values


def categories(columns: Mapping[str, Column], name: str) -> Categories:
    """The named column, which has to be one of categories."""
    column = columns.get(name)
    if not isinstance(column, Categories):
        known = [key for key, value in columns.items() if isinstance(value, Categories)]
        raise ConfigError(unknown("column of categories", name, known))
    return column


def protect(
    columns: Mapping[str, Column], wanted: Sequence[str]
) -> tuple[Tensor, tuple[Attribute, ...], set[str]]:
    """Group codes [n, A], their attributes, and the columns used.

    An attribute is a column of categories, or the intersection of some: "sex*race" has a group
    for each pair, the last varying fastest.

    >>> sex = Categories(np.array([0, 1, 1]), ("Female", "Male"))
    >>> race = Categories(np.array([0, 0, 1]), ("Black", "White"))
    >>> groups, attributes, used = protect({"sex": sex, "race": race}, ["sex*race"])
    >>> [attributes[0].levels[g] for g in groups[:, 0]]
    ['Female & Black', 'Male & Black', 'Male & White']
    """
    rows = len(next(iter(columns.values())))
    codes, attributes, used = [], [], set[str]()
    for attribute in wanted:
        code, levels = np.zeros(rows, dtype=np.int64), [""]
        for name in (part.strip() for part in attribute.split("*")):
            column = categories(columns, name)
            code = code * len(column.levels) + column.codes
            levels = [f"{a} & {b}" if a else b for a in levels for b in column.levels]
            used.add(name)
        codes.append(code)
        attributes.append(Attribute(attribute, tuple(levels)))
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"protected is {list(wanted)}; name every attribute once.")
    groups = np.stack(codes, 1) if codes else np.zeros((rows, 0), dtype=np.int64)
    return torch.from_numpy(groups), tuple(attributes), used


def encode(columns: Mapping[str, Column], train: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Features [n, d] and their names: numbers standardised, categories as 0/1 indicators.

    Mean and standard deviation are those of the rows in `train`, over all clients, which a
    federation can have by adding up its clients' sums. A column that is constant there is only
    centred.
    """
    names: list[str] = []
    for name, column in columns.items():
        names += (
            [f"{name}={level}" for level in column.levels]
            if isinstance(column, Categories)
            else [name]
        )
    rows = len(next(iter(columns.values())))
    x = np.zeros((rows, len(names)), dtype=np.float32)
    at, every, seen = 0, np.arange(rows), train.numpy()
    for column in columns.values():
        if isinstance(column, Categories):
            x[every, at + column.codes] = 1
            at += len(column.levels)
        else:
            spread = column[seen].std()
            x[:, at] = (column - column[seen].mean()) / (spread if spread > 0 else 1)
            at += 1
    return torch.from_numpy(x), tuple(names)
