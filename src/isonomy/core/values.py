"""Columns as they are read from a file or given in memory, before it is known what they mean.

A column is `Plain` (numbers and truths), `Coded` (text, as codes of its different values) or
`Opaque` (dates, lists, bytes; only how many rows there are is kept).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Plain:
    """Numbers or truths; `null` is true where a value is missing, None if none is."""

    values: NDArray[Any]
    null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def has_null(self) -> bool:
        """Whether a value is missing."""
        return self.null is not None and bool(self.null.any())

    def take(self, rows: Any) -> Plain:
        """Return the values of some rows."""
        return Plain(self.values[rows], None if self.null is None else self.null[rows])

    def numbers(self) -> NDArray[Any]:
        """Return the numbers, in their type, or as reals with NaN if one is missing."""
        if self.null is None or not self.has_null:
            return self.values
        kind = self.values.dtype if self.values.dtype.kind == "f" else np.float64
        return np.where(self.null, np.array(np.nan, kind), self.values.astype(kind))

    def listed(self) -> list[Any]:
        """Return the values as a list, with None for missing ones."""
        out: list[Any] = self.values.tolist()
        for row in () if self.null is None else np.flatnonzero(self.null).tolist():
            out[row] = None
        return out


@dataclass(frozen=True, eq=False)
class Coded:
    """Text: the index of each row's value in `texts`, or -1 if it is missing."""

    codes: NDArray[np.int32]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Any) -> Coded:
        """Return the values of some rows."""
        return Coded(self.codes[rows], self.texts)

    def objects(self) -> NDArray[Any]:
        """Return the texts as an array of str, with None for missing ones."""
        found = np.empty(len(self.texts) + 1, dtype=object)  # index -1 is the last entry
        found[:-1] = self.texts
        out: NDArray[Any] = found[self.codes]
        return out

    def listed(self) -> list[Any]:
        """Return the texts as a list, with None for missing ones."""
        out: list[Any] = self.objects().tolist()
        return out

    def mapped(self, meaning: Sequence[str | None]) -> Coded:
        """Return the column with another text, or none, for each of `texts`."""
        texts = list(dict.fromkeys(text for text in meaning if text is not None))
        place = {text: at for at, text in enumerate(texts)}
        codes = [-1 if text is None else place[text] for text in meaning]
        return Coded(np.array([*codes, -1], dtype=np.int32)[self.codes], texts)


@dataclass(frozen=True, eq=False)
class Opaque:
    """Values that cannot be used, or no values at all: only their number is kept."""

    rows: int
    kind: Literal["time", "other", "empty"]

    def __len__(self) -> int:
        return self.rows

    def take(self, rows: Any) -> Opaque:
        """Return the values of some rows."""
        return Opaque(len(np.empty(self.rows, dtype=np.bool_)[rows]), self.kind)

    def listed(self) -> list[Any]:
        """Return a list of None."""
        return [None] * self.rows


Values = Plain | Coded | Opaque


def coded(texts: Iterable[str | None]) -> Coded:
    """Return the codes of texts, in the order in which these occur.

    >>> made = coded(["b", "a", None, "b"])
    >>> made.codes.tolist(), made.texts
    ([0, 1, -1, 0], ['b', 'a'])
    """
    given = texts if isinstance(texts, list | tuple) else list(texts)
    place: dict[str | None, int] = {}
    for text in dict.fromkeys(given):
        if text is not None:
            place[text] = len(place)
    named = [text for text in place if text is not None]
    place[None] = -1
    return Coded(np.fromiter(map(place.__getitem__, given), np.int32, len(given)), named)


def values_of(given: Any) -> Values:
    """Return a column of Python's values, or of an array of numpy; None is a missing value.

    Raises a ValueError for values of several kinds.

    >>> values_of([1, None, 3]).listed(), values_of(["a", None]).listed()
    ([1, None, 3], ['a', None])
    """
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf":
        return Plain(given)
    plain = given.tolist() if isinstance(given, np.ndarray | np.generic) else list(given)
    kinds = {type(value) for value in plain} - {type(None)}
    if not kinds:
        return Opaque(len(plain), "empty")
    if all(issubclass(kind, str) for kind in kinds):
        return coded(plain)
    null = np.array([value is None for value in plain], dtype=np.bool_)
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return _plain([bool(value) for value in plain], null, np.bool_)
    if any(issubclass(kind, bool | np.bool_) for kind in kinds):
        raise ValueError("it has truth values and other values")
    if all(issubclass(kind, int | np.integer) for kind in kinds):
        filled = [0 if value is None else int(value) for value in plain]
        whole = np.int64 if max(filled) < 2**63 else np.uint64
        return _plain(filled, null, whole)
    if all(issubclass(kind, int | float | np.number) for kind in kinds):
        filled_reals = [0.0 if value is None else float(value) for value in plain]
        return _plain(filled_reals, null, np.float64)
    if kinds & {str, bool, int, float}:
        raise ValueError("it has values of several kinds")
    return Opaque(len(plain), "other")


def _plain(values: list[Any], null: NDArray[np.bool_], kind: Any) -> Plain:
    try:
        return Plain(np.array(values, dtype=kind), null if null.any() else None)
    except OverflowError:
        raise ValueError("it has a whole number that is too large") from None


@dataclass(frozen=True, eq=False)
class Frame:
    """Columns of equal length by their names."""

    columns: Mapping[str, Values]

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.columns.values()}
        if len(lengths) > 1:
            raise ValueError("its columns have different lengths")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Values:
        return self.columns[name]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def take(self, rows: Any) -> Frame:
        """Return some rows: their numbers, a mask, or a slice."""
        return Frame({name: values.take(rows) for name, values in self.columns.items()})

    def having(self, name: str, values: Values) -> Frame:
        """Return the frame with other values in a column, or with a new last column."""
        return Frame({**self.columns, name: values})

    def listed(self) -> dict[str, list[Any]]:
        """Return the columns as lists."""
        return {name: values.listed() for name, values in self.columns.items()}


def joined(parts: Sequence[Frame]) -> Frame:
    """Return the rows of several frames with the same columns, one below the other."""
    if len(parts) == 1:
        return parts[0]
    return Frame({name: join([part[name] for part in parts]) for name in parts[0].names})


def join(parts: Sequence[Values]) -> Values:
    """Return the values of several columns, one below the other."""
    there = [part for part in parts if not isinstance(part, Opaque) or part.kind != "empty"]
    if all(isinstance(part, Plain) for part in there) and there:
        kind = np.result_type(*(part.values.dtype for part in there if isinstance(part, Plain)))
        plain = [
            part if isinstance(part, Plain) else _no_numbers(len(part), kind) for part in parts
        ]
        gone = [np.zeros(len(p), np.bool_) if p.null is None else p.null for p in plain]
        null = np.concatenate(gone) if any(p.null is not None for p in plain) else None
        return Plain(np.concatenate([p.values for p in plain]), null)
    if all(isinstance(part, Coded) for part in there) and there:
        place: dict[str, int] = {}
        codes = []
        for part in parts:
            if isinstance(part, Coded):
                own = [place.setdefault(text, len(place)) for text in part.texts]
                codes.append(np.array([*own, -1], dtype=np.int32)[part.codes])
            else:
                codes.append(np.full(len(part), -1, dtype=np.int32))
        return Coded(np.concatenate(codes), list(place))
    kinds = {part.kind for part in there if isinstance(part, Opaque)}
    if there and not all(isinstance(part, Opaque) for part in there):
        raise ValueError("a column has different types in its parts")
    rows = sum(len(part) for part in parts)
    return Opaque(rows, "empty" if not kinds else kinds.pop() if len(kinds) == 1 else "other")


def _no_numbers(rows: int, kind: Any) -> Plain:
    return Plain(np.zeros(rows, dtype=kind), np.ones(rows, dtype=np.bool_))
