"""The columns of a table: numbers or text, with missing values.

A column is of one of five kinds: `number` (whole numbers, reals and true/false), `text`, `time`
(dates and times), `other` (lists, bytes) and `empty` (no value at all). A column of text whose
values are all numbers, true/false or dates is read as such, so the kind of file does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.core.values import Coded, Opaque, Plain, Values

Kind = Literal["number", "text", "time", "other", "empty"]

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "?")
"""Texts that mean a missing value by default; an empty text always does."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers, in the type in which it was read; NaN is a missing value.

    `truths`: the numbers 1 and 0 were written as true and false.
    """

    values: NDArray[Any]
    kind: Literal["number"] = "number"
    truths: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: slice) -> Numbers:
        return Numbers(self.values[at], truths=self.truths)

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
    """A column of text: the index of each row's value in `levels`, or -1 if it is missing."""

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
        """Return the number of rows of each level."""
        there = self.codes[self.codes >= 0]
        return np.bincount(there, minlength=len(self.levels)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Other:
    """A column that cannot be used directly: dates and times, lists, or no values at all."""

    rows: int
    kind: Literal["time", "other", "empty"]

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
    """The rows of one client: columns of equal length, and the place they were read from."""

    columns: Mapping[str, Column]
    rows: int
    place: str = ""

    @property
    def size(self) -> int:
        """Size of the values in bytes."""
        held = self.columns.values()
        return sum(
            c.values.nbytes if isinstance(c, Numbers) else c.codes.nbytes
            for c in held
            if not isinstance(c, Other)
        )


def column(values: Values, missing: Sequence[str] = MISSING, comma: bool = False) -> Column:
    """Convert values that were read to a column. `comma`: whether 3,14 may be a number.

    >>> from isonomy.core.values import coded
    >>> column(coded(["1", " 2.5", "NA"])).values.tolist()
    [1.0, 2.5, nan]
    >>> column(coded(["yes", "no ", None, "yes"])).levels
    ('no', 'yes')
    """
    if isinstance(values, Opaque):
        return Other(values.rows, values.kind)
    return (
        _texts(values, missing, comma) if isinstance(values, Coded) else _numbers(values, missing)
    )


def _numbers(values: Plain, missing: Sequence[str]) -> Column:
    if not len(values) or (values.null is not None and values.null.all()):
        return Other(len(values), "empty")
    truths, numbers = values.values.dtype.kind == "b", values.numbers()
    if truths:
        return _unless_empty(numbers if numbers.dtype.kind == "f" else numbers.view(np.int8), True)
    if numbers.dtype == np.float16:
        numbers = numbers.astype(np.float32)
    marks = [m for m in (number(word, False) for word in missing) if m is not None and m == m]
    if marks and (gone := np.isin(numbers, marks)).any():
        numbers = np.where(gone, np.nan, numbers)
    return _unless_empty(numbers)


def _unless_empty(numbers: NDArray[Any], truths: bool = False) -> Column:
    empty = numbers.dtype.kind == "f" and bool(np.isnan(numbers).all())
    return Other(len(numbers), "empty") if empty else Numbers(numbers, truths=truths)


def _texts(values: Coded, missing: Sequence[str], comma: bool) -> Column:
    words = [word.strip() for word in values.texts]
    gone = {"", *missing}
    there = [word not in gone for word in words]
    indices = values.codes
    used = np.zeros(len(words) + 1, dtype=np.bool_)  # index -1 is the last entry
    used[indices] = True
    kept = [i for i, word in enumerate(words) if there[i] and used[i]]
    if not kept:
        return Other(len(indices), "empty")
    found = [words[i] for i in kept]
    plain = _all(found, lambda word: number(word, comma))
    numbers = plain or _all(found, truth)
    if numbers is not None:
        table = np.full(len(words) + 1, np.nan)
        table[kept] = np.array(numbers, dtype=np.float64)
        return _unless_empty(table[indices], truths=plain is None)
    if _all(found, _time) is not None:
        return Other(len(indices), "time")
    levels = sorted({words[i] for i in kept})
    rank = {word: r for r, word in enumerate(levels)}
    codes = np.full(len(words) + 1, -1, dtype=np.int32)
    codes[kept] = [rank[words[i]] for i in kept]
    return Words(codes[indices], tuple(levels))


# What is a number or a time in CSV files; text in Parquet is read in the same way.
_PLAIN = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(?i:inf|infinity|nan)|(0[xX][0-9a-fA-F]{1,15})"
)
_HOUR = r"\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?"
_DAY = re.compile(rf"\d{{4}}-\d\d-\d\d([ T]{_HOUR}(Z|[+-]\d\d(:?\d\d)?)?)?")
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d)?")
_TRUTHS = {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}


def _all(words: Sequence[str], read: Callable[[str], float | None]) -> list[float] | None:
    """Convert every word; return None if one cannot be converted."""
    out = []
    for word in words:
        value = read(word)
        if value is None:
            return None
        out.append(value)
    return out


def number(word: str, comma: bool = False) -> float | None:
    """Return the number that a text represents, or None."""
    if comma and "." not in word:
        word = word.replace(",", ".")
    plain = _PLAIN.fullmatch(word)
    if plain is None:
        return None
    return float(int(word, 16)) if plain[3] else float(word)


def truth(word: str) -> float | None:
    """Return 1 or 0 for the texts true and false, otherwise None."""
    return _TRUTHS.get(word.casefold())


def _time(word: str) -> float | None:
    try:
        if _DAY.fullmatch(word):
            datetime.fromisoformat(word)
        elif _CLOCK.fullmatch(word):
            time.fromisoformat(word)
        else:
            return None
    except ValueError:
        return None
    return 0.0


def as_words(of: Column) -> Words:
    """Convert any column to text; whole numbers are written in the same way whatever their type.

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
    if distinct.dtype == np.float32:  # so that 0.1 is not written as 0.10000000149011612
        distinct = distinct.astype(str).astype(np.float64)
    return Words(out, tuple(as_text(value) for value in distinct.tolist()))


def as_text(value: float) -> str:
    """Write a number as a person would."""
    return str(int(value)) if abs(value) < 2**64 and value == int(value) else repr(value)


def is_number(text: str) -> bool:
    """Whether Python reads a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def numbers_first(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers in their order, then other texts."""
    return (False, float(text), text) if is_number(text) else (True, 0.0, text)
