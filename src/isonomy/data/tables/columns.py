"""Columns as they are read: numbers or words, and what is missing in them.

A column is one of four kinds: `number` (whole numbers, reals and true/false), `text`, `time`
(dates and times) and `empty` (nothing in it). Texts that all read as numbers are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Kind = Literal["number", "text", "time", "empty"]

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "?")
"""Texts that stand for a missing value unless the user says otherwise."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers in the type it was read in; NaN is a missing value."""

    values: NDArray[Any]
    kind: Literal["number"] = "number"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: slice) -> Numbers:
        return Numbers(self.values[at])

    def missing(self) -> NDArray[np.bool_]:
        """True where there is no value."""
        if self.values.dtype.kind != "f":
            return np.zeros(len(self.values), dtype=np.bool_)
        out: NDArray[np.bool_] = np.isnan(self.values)
        return out

    def whole(self) -> bool:
        """Whether every value is a whole number."""
        if self.values.dtype.kind != "f":
            return True
        there = self.values[~self.missing()]
        return bool(np.isfinite(there).all() and (there == np.round(there)).all())


@dataclass(frozen=True, eq=False)
class Words:
    """A column of texts: each row's number in `levels`, or -1 for a missing value."""

    codes: NDArray[np.int32]
    levels: tuple[str, ...]
    kind: Literal["text"] = "text"

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, at: slice) -> Words:
        return Words(self.codes[at], self.levels)

    def missing(self) -> NDArray[np.bool_]:
        """True where there is no value."""
        out: NDArray[np.bool_] = self.codes < 0
        return out

    def counts(self) -> NDArray[np.int64]:
        """How many rows hold each level."""
        there = self.codes[self.codes >= 0]
        return np.bincount(there, minlength=len(self.levels)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Other:
    """A column that cannot be used as it is: dates and times, or nothing at all."""

    rows: int
    kind: Literal["time", "empty"]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, at: slice) -> Other:
        return Other(len(range(*at.indices(self.rows))), self.kind)

    def missing(self) -> NDArray[np.bool_]:
        """True where there is no value."""
        return np.full(self.rows, self.kind == "empty")


Column = Numbers | Words | Other


@dataclass(frozen=True, eq=False)
class Table:
    """One client's rows: columns of one length, and where they came from."""

    columns: Mapping[str, Column]
    rows: int
    place: str = ""

    @property
    def size(self) -> int:
        """Bytes of its values."""
        held = self.columns.values()
        return sum(
            c.values.nbytes if isinstance(c, Numbers) else c.codes.nbytes
            for c in held
            if not isinstance(c, Other)
        )


def column(values: Any, missing: Sequence[str] = MISSING, comma: bool = False) -> Column:
    """An arrow array as a column. `comma`: whether 3,14 may be a number.

    >>> column(pa.array(["1", " 2.5", "NA"])).values.tolist()
    [1.0, 2.5, nan]
    >>> column(pa.array(["yes", "no ", None, "yes"])).levels
    ('no', 'yes')
    """
    if isinstance(values, pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            values = values.unify_dictionaries()
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # an older pyarrow, or no chunk at all
            values = pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)
    rows, kind = len(values), values.type
    if pa.types.is_dictionary(kind) and not pa.types.is_string(kind.value_type):
        values = values.dictionary_decode()
        kind = values.type
    if values.null_count == rows or pa.types.is_null(kind):
        return Other(rows, "empty")
    if pa.types.is_boolean(kind):
        values, kind = values.cast(pa.int8()), pa.int8()
    if pa.types.is_decimal(kind):
        values, kind = values.cast(pa.float64()), pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if values.null_count and pa.types.is_integer(kind):
            values = values.cast(pa.float64())
        elif pa.types.is_float16(kind):
            values = values.cast(pa.float32())
        numbers = values.to_numpy(zero_copy_only=False)
        empty = numbers.dtype.kind == "f" and bool(np.isnan(numbers).all())
        return Other(rows, "empty") if empty else Numbers(numbers)
    if pa.types.is_temporal(kind):
        return Other(rows, "time")
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _texts(values, missing, comma)
    return _texts(pc.cast(values, pa.string()), missing, comma)


def _texts(values: Any, missing: Sequence[str], comma: bool) -> Column:
    coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    words = [word.strip() for word in coded.dictionary.to_pylist()]
    gone = set(missing)
    there = [word not in gone for word in words]
    indices = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    used = np.zeros(len(words) + 1, dtype=np.bool_)  # the last place takes -1
    used[indices] = True
    kept = [i for i, word in enumerate(words) if there[i] and used[i]]
    if not kept:
        return Other(len(indices), "empty")
    numbers = [_number(words[i], comma) for i in kept]
    if None not in numbers:
        table = np.full(len(words) + 1, np.nan)
        table[kept] = np.array(numbers, dtype=np.float64)
        return Numbers(table[indices])
    levels = sorted({words[i] for i in kept})
    rank = {word: r for r, word in enumerate(levels)}
    codes = np.full(len(words) + 1, -1, dtype=np.int32)
    codes[kept] = [rank[words[i]] for i in kept]
    return Words(codes[indices], tuple(levels))


_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|Inf|INF|[Ii]nfinity)")


def _number(word: str, comma: bool) -> float | None:
    if comma and "." not in word:
        word = word.replace(",", ".")
    return float(word) if _PLAIN.fullmatch(word) else None


def as_words(of: Column) -> Words:
    """Any column as texts, so that whole numbers read alike whatever type held them.

    >>> as_words(Numbers(np.array([1.0, 2.5, np.nan]))).levels
    ('1', '2.5')
    """
    if isinstance(of, Words):
        return of
    if isinstance(of, Other):
        return Words(np.full(len(of), -1, dtype=np.int32), ())
    gone = of.missing()
    distinct, codes = np.unique(of.values[~gone], return_inverse=True)
    out = np.full(len(of), -1, dtype=np.int32)
    out[~gone] = codes
    return Words(out, tuple(as_text(value) for value in distinct.tolist()))


def as_text(value: float) -> str:
    """A number as a person would write it."""
    return str(int(value)) if np.isfinite(value) and value == int(value) else repr(value)
