"""A summary of each column: its kind, its values, its position. `guess` works with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from isonomy.data.tables.columns import Column, Numbers, Table, Words, as_words
from isonomy.data.tables.files import client_name
from isonomy.data.tables.sample import Look

MOST = 1_000  # values that are kept with their counts
_DATE = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[- .][A-Za-z]{3,9}[- .,]+\d{2,4}"
)


@dataclass(frozen=True)
class ColumnProfile:
    """One column of all tables together.

    `kind` is "mixed" if most values are numbers, with `odd` the texts among them, or if the column
    contains numbers in some tables and text in others. `values` are the most frequent values with
    their counts. `percentiles` are the smallest number and the 100 percentiles. `absent` are the
    clients without the column. `names_client`: every table has one value, different from the
    others. `last`: it is the last column of most tables. `dated`: the texts look like dates.
    `truths`: the numbers 1 and 0 were written as true and false.
    """

    name: str
    kind: Literal["number", "text", "time", "other", "empty", "mixed"]
    at: int = 0
    last: bool = False
    absent: tuple[str, ...] = ()
    rows: int = 0
    held: int = 0
    distinct: int = 0
    distinct_share: float = 0.0  # different values of a table, as a share of its filled rows
    values: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False
    percentiles: tuple[float, ...] = ()
    odd: tuple[str, ...] = ()
    length: float = 0.0
    dated: bool = False
    names_client: bool = False
    numbers_rows: bool = False  # 1, 2, 3, ...
    truths: bool = False

    @property
    def few(self) -> bool:
        """Whether there are few enough values for classes or groups."""
        return 2 <= self.distinct <= 20 and (self.kind in ("text", "mixed") or self.whole)

    def written(self, value: str) -> str:
        """A value as the tables write it: true and false are read as 1 and 0."""
        return {"1": "True", "0": "False"}.get(value, value) if self.truths else value


def profile_columns(look: Look) -> list[ColumnProfile]:
    """Summarise every column, in the order of the first tables."""
    every = list(dict.fromkeys(name for header in look.headers for name in header))
    return [_profile(name, look) for name in every]


def _profile(name: str, look: Look) -> ColumnProfile:
    positions = [header.index(name) for header in look.headers if name in header]
    last = sum(header[-1] == name for header in look.headers)
    absent = tuple(
        client_name(path)
        for path, header in zip(look.paths, look.headers, strict=True)
        if name not in header
    )
    columns = [table.columns[name] for table in look.tables.values() if name in table.columns]
    base = ColumnProfile(
        name=name,
        kind="empty",
        at=positions[0],
        last=2 * last > len(look.headers),
        absent=absent,
        rows=sum(map(len, columns)),
    )
    return _values(base, [column for column in columns if column.kind != "empty"])


def _values(base: ColumnProfile, columns: Sequence[Column]) -> ColumnProfile:
    if not columns:
        return base
    held = sum(int((~column.missing()).sum()) for column in columns)
    kinds = {column.kind for column in columns}
    for unread in ("other", "time"):
        if unread in kinds:
            return _with(base, kind=unread, held=held)
    counts: Counter[str] = Counter()
    for column in columns:
        words = as_words(column)
        counts.update(dict(zip(words.levels, words.counts().tolist(), strict=True)))
    counts = +counts
    numbers = np.concatenate([_finite_numbers(column) for column in columns])
    odd = (
        tuple(w for w, _ in counts.most_common() if not _is_number(w))
        if kinds != {"number"}
        else ()
    )
    share = 1 - sum(counts[word] for word in odd) / max(held, 1)
    kind: Literal["number", "text", "mixed"]
    if not odd:
        kind = "number"
    elif share >= 0.5 or len(kinds) > 1:
        kind = "mixed"
    else:
        kind = "text"
    texts = [word for word, _ in counts.most_common(200)]
    own = [_single_value(column) for column in columns]
    return _with(
        base,
        kind=kind,
        held=held,
        distinct=len(counts),
        distinct_share=sum(int((as_words(c).counts() > 0).sum()) for c in columns) / max(held, 1),
        values=dict(counts.most_common(MOST)),
        whole=kind == "number" and bool((numbers == np.round(numbers)).all()),
        # halves, so that the difference of two large numbers is finite
        percentiles=tuple((2 * np.percentile(numbers / 2, range(101))).tolist())
        if len(numbers)
        else (),
        odd=odd[:MOST] if kind == "mixed" else (),
        length=sum(len(w) * n for w, n in counts.items()) / max(held, 1),
        dated=kind != "number" and all(_DATE.fullmatch(w) for w in texts),
        names_client=len(own) > 1 and None not in own and len(set(own)) == len(own),
        numbers_rows=all(_numbers_rows(column) for column in columns),
        truths=all(isinstance(column, Numbers) and column.truths for column in columns),
    )


def _with(base: ColumnProfile, **changes: object) -> ColumnProfile:
    return replace(base, **changes)  # type: ignore[arg-type]


def _finite_numbers(column: Column) -> np.ndarray:
    """Return the finite numbers of a column, including those written as text."""
    if isinstance(column, Numbers):
        values = column.values.astype(np.float64)
    elif isinstance(column, Words):
        table = np.array([_number(level) for level in column.levels] + [np.nan])
        values = table[column.codes]
    else:
        return np.zeros(0)
    return values[np.isfinite(values)]


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return float("nan")


def _is_number(text: str) -> bool:
    return not np.isnan(_number(text))


def _single_value(column: Column) -> str | None:
    """Return the value of a column if it is the same in every row."""
    words = as_words(column)
    there = np.flatnonzero(words.counts())
    return words.levels[there[0]] if len(there) == 1 and not words.missing().any() else None


def _numbers_rows(column: Column) -> bool:
    if not isinstance(column, Numbers) or len(column) < 3 or column.missing().any():
        return False
    return column.whole() and bool((np.diff(column.values.astype(np.float64)) == 1).all())


def one_to_one(tables: Sequence[Table], one: str, other: str) -> bool:
    """Whether the values of two columns correspond one to one."""
    pairs: set[tuple[str, str]] = set()
    both = rows = 0
    for table in tables:
        if one not in table.columns or other not in table.columns:
            continue
        a, b = as_words(table.columns[one]), as_words(table.columns[other])
        there = ~(a.missing() | b.missing())
        both, rows = both + int(there.sum()), rows + table.rows
        codes = np.unique(np.stack([a.codes[there], b.codes[there]]), axis=1)
        pairs |= {(a.levels[i], b.levels[j]) for i, j in codes.T.tolist()}
        if len(pairs) > MOST:
            return False
    left, right = {a for a, _ in pairs}, {b for _, b in pairs}
    return len(left) > 1 and len(pairs) == len(left) == len(right) and both > 0.9 * rows
