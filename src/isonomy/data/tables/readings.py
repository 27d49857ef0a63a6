"""How published values of a column are translated before they are used.

Published files contain codes instead of words (A11 for an account below 0), marks for missing
values (999 days), or two facts in one column. New rows to predict have the same form, so these
translations are saved with the model. Values that are already translated are left unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from isonomy.core.values import Coded, Values
from isonomy.data.tables.columns import (
    MISSING,
    Column,
    Numbers,
    Other,
    Table,
    Words,
    as_text,
    as_words,
    column,
    number,
    truth,
)


class Reading(BaseModel):
    """The translation of one column: what its values mean, and which of them mean missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    of: str = ""  # the column to read from if the table has none called `name`
    values: dict[str, str] = {}  # published values and their meanings
    below: float | None = None  # numbers below this are missing
    gone: tuple[str, ...] = ()  # values that mean missing

    def read(self, given: Column) -> Column:
        """Return the translated column."""
        if isinstance(given, Words) and self.gone:
            kept = np.array([*(level not in self.gone for level in given.levels), True])
            given = Words(np.where(kept[given.codes], given.codes, -1), given.levels)
        if isinstance(given, Numbers) and (self.below is not None or self.gone):
            values = given.values.astype(np.float64)
            gone = np.isin(values, [m for m in map(number, self.gone) if m is not None])
            if self.below is not None:
                gone |= values < self.below
            given = Numbers(np.where(gone, np.nan, values))
            if bool(given.missing().all()):
                return Other(len(given), "empty")
        if not self.values or isinstance(given, Other):
            return given
        if isinstance(given, Numbers) and None not in map(number, self.values.values()):
            values = given.values.astype(np.float64)
            for key, value in self.values.items():
                values = np.where(given.values == number(key), float(value), values)
            return Numbers(values)
        words = as_words(given)
        meant = [self.values.get(level, level) for level in words.levels]
        levels = tuple(sorted(set(meant)))
        rank = np.array([*(levels.index(word) for word in meant), -1], dtype=np.int32)
        return Words(rank[words.codes], levels)


def read(table: Table, readings: Sequence[Reading]) -> Table:
    """Return a table with its columns translated."""
    columns = dict(table.columns)
    for reading in readings:
        given = table.columns.get(reading.name, table.columns.get(reading.of))
        if given is not None:
            columns[reading.name] = reading.read(given)
    return Table(columns, table.rows, table.place)


def like(
    values: Values,
    known: Sequence[str],
    missing: Sequence[str] = MISSING,
    comma: bool = False,
) -> Column:
    """Convert values to a column of categories with known levels.

    A few rows do not show whether a column contains numbers or text: "01" alone would be read as a
    number, "true" as a truth value. So text stays text, and only a text that is not a level is
    tried as a number.

    >>> from isonomy.core.values import coded
    >>> like(coded(["01", "1.0", "x", None]), ["1", "x"]).levels
    ('1', 'x')
    """
    if not isinstance(values, Coded):
        return column(values, missing, comma)
    found = [word.strip() for word in values.texts]
    gone, levels = {"", *missing}, set(known)
    meant = [
        None if word in gone and word not in levels else _level(word, levels, comma)
        for word in found
    ]
    named = tuple(sorted({word for word in meant if word is not None}))
    if not named:
        return Other(len(values), "empty")
    place = {word: at for at, word in enumerate(named)}
    rank = np.array([*(-1 if w is None else place[w] for w in meant), -1], dtype=np.int32)
    return Words(rank[values.codes], named)


def _level(word: str, levels: set[str], comma: bool) -> str:
    for value in () if word in levels else (number(word, comma), truth(word)):
        if value is not None and np.isfinite(value) and as_text(value) in levels:
            return as_text(value)
    return word
