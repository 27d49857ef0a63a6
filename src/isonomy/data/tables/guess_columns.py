"""Guess the roles of columns other than the label: client, split, protected, dropped, categorical."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from isonomy.data.tables.column_profile import MOST, ColumnProfile
from isonomy.data.tables.columns import Table, as_text, as_words
from isonomy.data.tables.name_hints import (
    CLIENT_ENDS,
    CLIENTS,
    CODES,
    COUNTS,
    IDENTIFIERS,
    NO_CLIENT,
    PERSONS,
    PROTECTED,
    SUFFIXES,
    THINGS,
    called,
    is_nothing,
    name_words,
    rank,
)
from isonomy.data.tables.phases import part_of
from isonomy.data.tables.roles import listed

AGES = ((30, 60), (30, 50), (30, 45), (40, 65), (50, 70), (60, 75), (70, 80), (18, 40), (6, 12))


MOST_GROUPS = 12  # of a protected column that is not cut


MOST_PROTECTED = 4


def unusable(one: ColumnProfile) -> str:
    """Why a column can be nothing but dropped; nothing if it can be of use."""
    if one.absent:
        return f"not at {listed(one.absent, 3)}"
    if one.kind == "empty":
        return "empty"
    if one.kind == "other":
        return "lists or bytes"
    if one.kind == "time" or one.dated:
        return "dates"
    if one.alone:
        return "one value in each file, so it only names the client"
    if one.distinct == 1 and one.held > 0.98 * one.rows:
        return "the same value everywhere"
    if one.held < 20:
        return ""
    share, number = one.apart, one.kind == "number"
    if one.counted:
        return "numbers the rows"
    if not number and share > 0.5 and one.length > 30:
        return "free text"
    if share > 0.9 and (not number or _long_numbers(one)):
        return "another value in nearly every row"
    if number and not one.whole:
        return ""
    words = name_words(one.name)
    named = words and (called(words[-1], IDENTIFIERS) or called(words[0], "id uuid guid"))
    if named and one.distinct > 20 and share > 0.2:
        return "an identifier by its name"
    if called(one.name, PERSONS) and not number and one.distinct > 20 and share > 0.2:
        return "tells who a person is"
    if not number and one.distinct > MOST:
        return f"more than {MOST:,} different texts"
    return ""


def _long_numbers(one: ColumnProfile) -> bool:
    """Whole numbers of six or more digits, as many in each: account and phone numbers."""
    if not one.whole or not one.steps:
        return False
    low, high = as_text(one.steps[0]), as_text(one.steps[-1])
    return len(low) == len(high) >= 6


def guess_split(seen: Sequence[ColumnProfile], tables: Sequence[Table] = ()) -> str:
    """The column that says train, validation or test in every row, and train in every table."""
    for one in seen:
        parts = {part_of(value) for value in one.values}
        if one.held < one.rows or one.distinct > 3 or not {0, 2} <= parts <= {0, 1, 2}:
            continue
        held = [as_words(table.columns[one.name]) for table in tables]
        if all(0 in {part_of(w.levels[i]) for i in np.flatnonzero(w.counts())} for w in held):
            return one.name
    return ""


def rank_clients(seen: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """The columns that may tell clients apart, best first: five rows a client, at the least."""

    def fits(one: ColumnProfile) -> bool:
        return (
            (one.kind in ("text", "mixed") or one.whole)
            and 2 <= one.distinct <= one.rows / 5
            and not (one.dated or one.absent)
            and one.held > 0.9 * one.rows
            and client_rank(one.name) > 0
        )

    return sorted(
        (one for one in seen if fits(one)),
        key=lambda one: (-client_rank(one.name), one.held < one.rows, one.at),
    )


def client_rank(name: str) -> int:
    """How much a name says that a column tells clients apart.

    >>> client_rank("hospital_id"), client_rank("home_hospital"), client_rank("time_in_hospital")
    (80, 30, 0)
    """
    if called(name, NO_CLIENT) or any(called(name, words) for words in PROTECTED.values()):
        return 0
    words = name_words(name)
    while len(words) > 1 and called(words[-1], SUFFIXES):
        words = words[:-1]
    if len(words) == 1:
        return rank(words[0], CLIENTS)
    return 30 if words and called(words[-1], CLIENT_ENDS) else 0


def guess_protected(
    seen: Sequence[ColumnProfile],
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...] | int], dict[str, str]]:
    """Protected columns, where to cut numbers, and others that might be, with a doubt if any."""
    chosen: list[str] = []
    bins: dict[str, tuple[int, ...] | int] = {}
    others: dict[str, str] = {}
    for kind, words in PROTECTED.items():
        taken = False
        for one in seen:
            named = called(one.name, words) and not called(one.name, THINGS)
            if not named or one.name in (*chosen, *others) or "*" in one.name:
                continue
            if taken:
                others[one.name] = (
                    f"'{one.name}' seems to tell the {kind} too and is a feature; drop it if the "
                    "model should not know."
                )
            elif len(chosen) == MOST_PROTECTED:
                others[one.name] = ""
            elif one.kind == "number" and one.distinct > MOST_GROUPS:
                if kind == "age":
                    bins[one.name] = guess_bins(one.steps)
                    chosen.append(one.name)
                    taken = True
            elif one.distinct > MOST_GROUPS:
                others[one.name] = (
                    f"'{one.name}' has {one.distinct:,} values, too many for groups; join them "
                    "into fewer and name it under protected, or drop it: it is a feature now."
                )
            elif one.distinct >= 2:
                chosen.append(one.name)
                taken = True
    return tuple(chosen), bins, others


def guess_bins(steps: Sequence[float]) -> tuple[int, ...] | int:
    """Usual ages at which every group has at least a tenth of the rows; else three groups.

    >>> guess_bins([float(age) for age in range(101)])
    (30, 60)
    >>> guess_bins([1920.0 + i for i in range(101)])
    3
    """
    for edges in AGES if steps and steps[-1] <= 130 else ():
        shares = [sum(step < edge for step in steps) / len(steps) for edge in edges]
        if all(b - a >= 0.1 for a, b in itertools.pairwise([0.0, *shares, 1.0])):
            return edges
    return 3


def as_number(one: ColumnProfile) -> ColumnProfile:
    """A column of numbers as such, where all texts in it stand for nothing."""
    if one.kind != "mixed" or not one.odd or not all(is_nothing(text) for text in one.odd):
        return one
    values = {value: n for value, n in one.values.items() if value not in one.odd}
    return replace(
        one,
        kind="number",
        held=one.held - sum(one.values.get(text, 0) for text in one.odd),
        distinct=one.distinct - len(one.odd),
        values=values,
        whole=all(float(value.replace(",", ".")).is_integer() for value in values),
        odd=(),
    )


def guess_missing(seen: Iterable[ColumnProfile]) -> tuple[str, ...]:
    """Texts in columns of numbers that stand for nothing."""
    found: dict[str, None] = {}
    for one in seen:
        if one.kind == "mixed" and one.odd and all(is_nothing(text) for text in one.odd):
            found |= dict.fromkeys(one.odd)
    return tuple(found)


def guess_categorical(
    seen: Sequence[ColumnProfile], missing: Sequence[str] = (), keep: Iterable[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Columns whose numbers are codes, and columns that fit nothing, each with its reason.

    `keep` are columns that are not dropped, whatever they hold.
    """
    codes: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for one in seen:
        if one.kind == "mixed" and not set(one.odd) <= set(missing):
            text = next(text for text in one.odd if text not in missing)
            if one.name in keep or (one.distinct <= MOST and one.apart < 0.5):
                codes[one.name] = f"numbers, and texts such as '{text}'"
            else:
                unfit[one.name] = f"numbers, and texts such as '{text}'"
        elif one.name in keep or one.kind != "number" or not one.whole or one.distinct < 3:
            continue
        elif called(one.name, CODES) and not called(one.name, COUNTS):
            if one.distinct <= MOST:
                codes[one.name] = "codes by its name"
            else:
                unfit[one.name] = f"codes by its name, more than {MOST:,}"
    return codes, unfit


def categorical_reason(features: Sequence[ColumnProfile], categorical: Mapping[str, str]) -> str:
    """Why these, and which whole numbers with few values stay numbers."""
    few = [
        one.name
        for one in features
        if one.name not in categorical and one.kind == "number" and one.few and one.distinct > 2
    ]
    stay = f"few whole numbers, taken as numbers: {listed(few, 8)}" if few else ""
    said = "numbers that are codes" if categorical else "none" if few else ""
    return "; ".join(text for text in (said, stay) if text)


def protected_reason(protected: Sequence[str], others: Iterable[str]) -> str:
    """Why these columns are protected."""
    rest = list(others)
    shown = f"; others: {listed(rest, 6)}" if rest else ""
    return ("by their names" if protected else "none found") + shown


def bins_reason(bins: Mapping[str, tuple[int, ...] | int]) -> str:
    """What the cuts mean."""
    texts = []
    for name, cut in bins.items():
        if isinstance(cut, int):
            texts.append(f"{name} in {cut} groups of about the same number of rows")
        else:
            edges = " and ".join(str(edge) for edge in cut)
            texts.append(f"groups of {name} begin at {edges}")
    return "; ".join(texts)
