"""What was seen of each column: its kind, its values, where it stands. `guess` goes by it."""

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

MOST = 1_000  # values that are kept, with their counts
_DATE = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[- .][A-Za-z]{3,9}[- .,]+\d{2,4}"
)


@dataclass(frozen=True)
class ColumnProfile:
    """One column of all tables together.

    `kind` is mixed where most values are numbers and `odd` are the texts among them, or where some
    tables hold numbers and others texts. `values` are the most frequent ones with their counts,
    `steps` the smallest number, the 100 percentiles. `absent` are the clients without the column,
    `alone` is whether every table has one value of its own, `last` whether it is the last column
    in most tables, and `dated` whether the texts look like dates.
    """

    name: str
    kind: Literal["number", "text", "time", "other", "empty", "mixed"]
    at: int = 0
    last: bool = False
    absent: tuple[str, ...] = ()
    rows: int = 0
    held: int = 0
    distinct: int = 0
    apart: float = 0.0  # different values in a table, as a share of its rows that have one
    values: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False
    steps: tuple[float, ...] = ()
    odd: tuple[str, ...] = ()
    length: float = 0.0
    dated: bool = False
    alone: bool = False
    counted: bool = False  # 1, 2, 3, ... as rows are numbered

    @property
    def few(self) -> bool:
        """Whether the values are few enough to be classes or groups."""
        return 2 <= self.distinct <= 20 and (self.kind in ("text", "mixed") or self.whole)


def profile_columns(look: Look) -> list[ColumnProfile]:
    """Every column, in the order in which the first tables have them."""
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
    numbers = np.concatenate([_plain(column) for column in columns])
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
    own = [_only(column) for column in columns]
    return _with(
        base,
        kind=kind,
        held=held,
        distinct=len(counts),
        apart=sum(int((as_words(c).counts() > 0).sum()) for c in columns) / max(held, 1),
        values=dict(counts.most_common(MOST)),
        whole=kind == "number" and bool((numbers == np.round(numbers)).all()),
        steps=tuple(np.percentile(numbers, range(101)).tolist()) if len(numbers) else (),
        odd=odd[:MOST] if kind == "mixed" else (),
        length=sum(len(w) * n for w, n in counts.items()) / max(held, 1),
        dated=kind != "number" and all(_DATE.fullmatch(w) for w in texts),
        alone=len(own) > 1 and None not in own and len(set(own)) == len(own),
        counted=all(_counted(column) for column in columns),
    )


def _with(base: ColumnProfile, **changes: object) -> ColumnProfile:
    return replace(base, **changes)  # type: ignore[arg-type]


def _plain(column: Column) -> np.ndarray:
    """The finite numbers of a column, also those among texts."""
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


def _only(column: Column) -> str | None:
    """The one value that a column holds in every row, if so."""
    words = as_words(column)
    there = np.flatnonzero(words.counts())
    return words.levels[there[0]] if len(there) == 1 and not words.missing().any() else None


def _counted(column: Column) -> bool:
    if not isinstance(column, Numbers) or len(column) < 3 or column.missing().any():
        return False
    return column.whole() and bool((np.diff(column.values.astype(np.float64)) == 1).all())


def same(tables: Sequence[Table], one: str, other: str) -> bool:
    """Whether each value of a column goes with one value of another, and the other way round."""
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
