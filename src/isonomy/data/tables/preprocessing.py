"""How a table becomes tensors: fitted once, the same at every client, saved with the model.

A `Schema` describes the columns; a `Preprocessing` adds the numbers found by `fit`. Both are plain
JSON and contain no rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isonomy.data.tables.columns import (
    MISSING,
    Column,
    Numbers,
    Other,
    Table,
    Words,
    as_text,
    as_words,
    number,
)
from isonomy.data.tables.readings import Reading, read
from isonomy.data.tables.roles import parts
from isonomy.errors import DataError, did_you_mean

CONTENT = {"number": "numbers", "text": "text", "time": "dates", "other": "lists or bytes"}
OTHER, GONE = "other", "missing"
LARGEST = float(np.finfo(np.float32).max)  # the largest feature or target
Codes = NDArray[np.int64]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Label(_Model):
    """The column to predict; without classes it is a number."""

    name: str
    classes: tuple[str, ...] = ()


class Groups(_Model):
    """The groups of a protected column: its values, or the intervals between edges."""

    name: str
    levels: tuple[str, ...]
    edges: tuple[float, ...] = ()


class Schema(_Model):
    """The columns of all clients' tables."""

    label: Label
    protected: tuple[str, ...] = ()
    groups: tuple[Groups, ...] = ()
    features: dict[str, Literal["number", "category"]] = {}
    split: str = ""
    missing: tuple[str, ...] = MISSING

    def levels(self, attribute: str) -> tuple[str, ...]:
        """Return the groups of an attribute; in an intersection the last column varies fastest."""
        known = {group.name: group.levels for group in self.groups}
        out = [""]
        for name in parts(attribute):
            out = [f"{a} & {b}" if a else b for a in out for b in known[name]]
        return tuple(out)

    def target(self, table: Table) -> tuple[Codes | NDArray[np.float32], NDArray[np.bool_]]:
        """Return each row's class (or number), and whether it has one."""
        column = table.columns[self.label.name]
        if not self.label.classes:
            if not isinstance(column, Numbers):
                return np.zeros(len(column), dtype=np.float32), ~column.missing()
            check_finite(table, self.label.name)
            values = column.values.astype(np.float64)
            return np.nan_to_num(values).astype(np.float32), ~np.isnan(values)
        codes = recode(as_words(column), self.label.classes)
        return np.maximum(codes, 0), codes >= 0

    def group_codes(self, table: Table) -> Codes:
        """Return each row's group of every attribute, [rows, attributes]."""
        known = {group.name: group for group in self.groups}
        single = {name: _group(group, table.columns[name]) for name, group in known.items()}
        out = np.zeros((table.rows, len(self.protected)), dtype=np.int64)
        for a, attribute in enumerate(self.protected):
            for name in parts(attribute):
                out[:, a] = out[:, a] * len(known[name].levels) + single[name]
        return out

    def known_groups(self, table: Table) -> NDArray[np.bool_]:
        """Return whether every protected column of a row has a value that is in the schema."""
        out = np.ones(table.rows, dtype=np.bool_)
        for group in self.groups:
            column = table.columns[group.name]
            known = GONE in group.levels
            if group.edges:
                out &= ~column.missing() | known
            else:
                words = as_words(column)
                found = recode(words, group.levels) >= 0
                out &= np.where(words.missing(), known, found)
        return out


def _group(group: Groups, column: Column) -> Codes:
    known = dict(zip(group.levels, range(len(group.levels)), strict=True))
    gone = known.get(GONE, len(known) - 1)
    if not group.edges:
        codes = recode(as_words(column), group.levels)
        return np.where(codes < 0, gone, codes)
    if not isinstance(column, Numbers):
        return np.full(len(column), gone, dtype=np.int64)
    values = column.values.astype(np.float64)
    at = np.searchsorted(np.array(group.edges), values, side="right").astype(np.int64)
    return np.where(np.isnan(values), gone, at)


def intervals(edges: tuple[float, ...]) -> tuple[str, ...]:
    """Return the names of the intervals between edges.

    >>> intervals((25, 60))
    ('below 25', '25 to below 60', '60 and above')
    """
    texts = [as_text(edge) for edge in edges]
    inner = [f"{a} to below {b}" for a, b in itertools.pairwise(texts)]
    return (f"below {texts[0]}", *inner, f"{texts[-1]} and above")


class Number(_Model):
    """A numeric feature: missing values are filled in, then (value - shift) / scale."""

    kind: Literal["number"] = "number"
    name: str
    fill: float | None  # None: no value may be missing
    shift: float
    scale: float
    indicate: bool = False  # adds a feature that is 1 where the value is missing
    within: tuple[float, float] | None = None  # other values count as the nearer end

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it is computed from."""
        return (self.name,)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the resulting features."""
        return (self.name, f"{self.name} is missing") if self.indicate else (self.name,)

    def write(self, column: Column, x: NDArray[np.float32], at: int) -> None:
        """Write the features into the columns of `x`, beginning at `at`."""
        gone = column.missing()
        if isinstance(column, Numbers):
            values = column.values.astype(np.float64)
        else:
            values = np.full(len(column), np.nan)
        if gone.any():
            values[gone] = np.nan if self.fill is None else self.fill
        if self.within is not None:
            values = values.clip(*self.within)
        with np.errstate(over="ignore"):  # `transform` checks for it
            x[:, at] = (values - self.shift) / self.scale
        if self.indicate:
            x[:, at + 1] = gone


class Category(_Model):
    """A categorical feature: one indicator per level, and one for all other values.

    Missing values have their own indicator if there are enough of them in training rows; otherwise
    they count as other values. Without an indicator for other values, all indicators are 0.
    """

    kind: Literal["category"] = "category"
    name: str
    levels: tuple[str, ...]
    missing: bool = False  # an indicator for missing values
    other: bool = True  # an indicator for all other values
    gone: str | None = None  # the level that replaces a missing value

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it is computed from."""
        return (self.name,)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the resulting features."""
        shown = [f"{self.name}={level}" for level in self._shown]
        shown += [f"{self.name} is missing"] if self.missing else []
        return (*shown, f"{self.name}={OTHER}") if self.other else tuple(shown)

    @property
    def _shown(self) -> tuple[str, ...]:
        return tuple(level for level in self.levels if level != OTHER or not self.other)

    def write(self, column: Column, x: NDArray[np.float32], at: int) -> None:
        """Write the features into the columns of `x`, beginning at `at`."""
        words = as_words(column)
        levels = self._shown
        codes = recode(words, levels)
        if self.gone is not None:
            codes[words.missing()] = levels.index(self.gone)
        if self.other:
            codes = np.where(codes < 0, len(levels) + self.missing, codes)
        if self.missing:
            codes[words.missing()] = len(levels)
        there = np.flatnonzero(codes >= 0)
        x[there, at + codes[there]] = 1


class Share(_Model):
    """What a column adds to a sum: a number for some values, or the number of edges below it."""

    column: str
    values: dict[str, float] = {}
    edges: tuple[float, ...] = ()


class Sum(_Model):
    """A feature that is a sum over columns, such as the number of a group."""

    kind: Literal["sum"] = "sum"
    name: str
    shares: tuple[Share, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it is computed from."""
        return tuple(share.column for share in self.shares)

    @property
    def features(self) -> tuple[str, ...]:
        """The name of the resulting feature."""
        return (self.name,)

    def write(self, columns: Sequence[Column], x: NDArray[np.float32], at: int) -> None:
        """Write the feature into column `at` of `x`."""
        for share, column in zip(self.shares, columns, strict=True):
            if share.edges:
                values = column.values if isinstance(column, Numbers) else np.full(len(column), 0.0)
                x[:, at] += np.searchsorted(np.array(share.edges), values)
            else:
                words = as_words(column)
                worth = np.array([*(share.values.get(level, 0.0) for level in words.levels), 0.0])
                x[:, at] += worth[words.codes]  # index -1 is the last entry


def recode(words: Words, levels: tuple[str, ...]) -> Codes:
    """Return the index of each row's value in `levels`; -1 if it is not there or missing."""
    return _ranks(words.levels, levels)[words.codes]  # index -1 is the last entry


@lru_cache(maxsize=64)
def _ranks(levels: tuple[str, ...], wanted: tuple[str, ...]) -> Codes:
    """Return the index of each level among the wanted; cached for clients of one table."""
    rank = {level: r for r, level in enumerate(wanted)}
    return np.array([*(rank.get(level, -1) for level in levels), -1], dtype=np.int64)


Encoder = Annotated[Number | Category | Sum, Field(discriminator="kind")]


class Preprocessing(_Model):
    """A schema and the fitted encoders of its features."""

    version: Literal[1] = 1
    table: Schema
    encoders: tuple[Encoder, ...]
    readings: tuple[Reading, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, made unique."""
        out: dict[str, None] = {}
        for name in (name for encoder in self.encoders for name in encoder.features):
            times = itertools.count(2)
            free = name
            while free in out:
                free = f"{name} ({next(times)})"
            out[free] = None
        return tuple(out)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that features are computed from."""
        found = dict.fromkeys(name for encoder in self.encoders for name in encoder.columns)
        return tuple(found)

    def categories(self) -> dict[str, tuple[str, ...]]:
        """Return the categorical columns with all values that have a meaning."""
        known: dict[str, tuple[str, ...]] = {}
        for encoder in self.encoders:
            if isinstance(encoder, Category):
                known[encoder.name] = encoder.levels
            elif isinstance(encoder, Sum):
                for share in encoder.shares:
                    if not share.edges:
                        known[share.column] = tuple(share.values)
        for reading in self.readings:
            if reading.name in known:
                known[reading.name] += tuple(reading.values)
                if reading.of:
                    known.setdefault(reading.of, known[reading.name])
        return known

    def read(self, table: Table) -> Table:
        """Translate the columns of a published table to the values that the encoders expect."""
        return read(table, self.readings)

    def transform(self, table: Table) -> NDArray[np.float32]:
        """Return the features [rows, features]; label and protected columns are not needed."""
        table = self.read(table)
        x = np.zeros((table.rows, len(self.features)), dtype=np.float32)
        at = 0
        for encoder in self.encoders:
            columns = [self._column(name, table) for name in encoder.columns]
            if isinstance(encoder, Sum):
                for share, column in zip(encoder.shares, columns, strict=True):
                    if share.edges:
                        self._fits(share.column, column, table)
                encoder.write(columns, x, at)
            else:
                if isinstance(encoder, Number):
                    self._fits(encoder.name, columns[0], table)
                encoder.write(columns[0], x, at)
            if encoder.kind == "number":
                self._finite(encoder, columns[0], x[:, at], table)
            at += len(encoder.features)
        return x

    def _column(self, name: str, table: Table) -> Column:
        found = table.columns.get(name)
        if found is None:
            same = [other for other in table.columns if other.casefold() == name.casefold()]
            raise DataError(
                f"{table.place or 'the table'} has no column '{name}', which the model needs; "
                f"add it (it may be empty).{did_you_mean(name, table.columns)}"
                if not same
                else f"{table.place or 'the table'} has a column '{same[0]}', but the model "
                f"expects '{name}'; rename it."
            )
        return found

    def _finite(
        self, encoder: Number, column: Column, x: NDArray[np.float32], table: Table
    ) -> None:
        wrong = np.flatnonzero(~np.isfinite(x))
        if not len(wrong):
            return
        where = f"column '{encoder.name}' of {table.place or 'the table'}"
        if encoder.fill is None and column.missing()[wrong[0]]:
            raise DataError(
                f"{where} has no number in row {wrong[0] + 1} and the model has no default for it; "
                "fill it in."
            )
        raise DataError(
            f"{where} contains a number in row {wrong[0] + 1} that is too far from those in "
            "training rows; fix it, or leave that value empty."
        )

    def _fits(self, name: str, column: Column, table: Table) -> None:
        if isinstance(column, Other) and column.kind == "empty":
            return
        where = f"column '{name}' of {table.place or 'the table'}"
        if isinstance(column, Words):
            wrong = [i for i, level in enumerate(column.levels) if number(level) is None]
            row = int(np.flatnonzero(np.isin(column.codes, wrong))[0])
            raise DataError(
                f"{where} contains text instead of a number in row {row + 1} "
                f"('{_cut(column, row)}'); fix it, or leave that value empty."
            )
        if not isinstance(column, Numbers):
            found = CONTENT[column.kind]
            raise DataError(f"{where} contains {found} instead of numbers; fix the column.")
        check_finite(table, name)

    def dump(self) -> str:
        """Return the preprocessing as JSON text."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def _cut(column: Words, row: int) -> str:
    """Return a value, shortened for a message."""
    word = column.levels[int(column.codes[row])]
    return word if len(word) <= 30 else word[:27] + "..."


def load(path: str | Path) -> Preprocessing:
    """Read a saved preprocessing."""
    try:
        return Preprocessing.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); check the path.") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a valid preprocessing file; use the one in the folder of the model."
        ) from error


def of(values: Mapping[str, object]) -> Preprocessing:
    """Build a preprocessing from plain values, as stored in a federation or a model card."""
    return Preprocessing.model_validate(dict(values))


def check_finite(table: Table, name: str) -> None:
    """Raise DataError if a number is infinite or too large for a feature or a target."""
    column = table.columns[name]
    if not isinstance(column, Numbers) or column.values.dtype.kind != "f":
        return
    wrong = np.flatnonzero(np.abs(column.values) > LARGEST)
    if len(wrong):
        value = column.values[wrong[0]]
        size = "an infinite number" if np.isinf(value) else f"a number as large as {value:.0e}"
        raise DataError(
            f"column '{name}' of {table.place or 'the table'} contains {size} in row "
            f"{wrong[0] + 1}; fix it, or leave that value empty."
        )
