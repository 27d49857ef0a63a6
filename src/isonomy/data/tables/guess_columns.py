"""Guess the roles of columns other than the label: client, split, protected, drop, categorical."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from isonomy.data.tables.column_profile import MOST, ColumnProfile
from isonomy.data.tables.columns import Table, as_text, as_words
from isonomy.data.tables.known_columns import Known, codes_text
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


MOST_GROUPS = 12  # of a protected column without bins


MOST_PROTECTED = 4


FEW_CODES = 20  # numbers up to which values count more than a name such as "size"


def unusable(one: ColumnProfile) -> str:
    """Return why a column has to be dropped; empty if it may be used."""
    if one.absent:
        return f"not in the table of {listed(one.absent, 3)}"
    if one.kind == "empty":
        return "empty"
    if one.kind == "other":
        return "lists or bytes"
    if one.kind == "time" or one.dated:
        return "dates"
    if one.names_client:
        return "one value per file, so it only identifies the client"
    if one.distinct == 1 and one.held > 0.98 * one.rows:
        return "the same value everywhere"
    if one.held < 20:
        return ""
    share, number = one.distinct_share, one.kind == "number"
    if one.numbers_rows:
        return "numbers the rows"
    if not number and share > 0.5 and one.length > 30:
        return "free text"
    if share > 0.9 and (not number or _long_numbers(one)):
        return "a different value in nearly every row"
    if number and not one.whole:
        return ""
    words = name_words(one.name)
    named = words and (called(words[-1], IDENTIFIERS) or called(words[0], "id uuid guid"))
    if named and one.distinct > 20 and share > 0.2:
        return "an identifier, judging by its name"
    if called(one.name, PERSONS) and not number and one.distinct > 20 and share > 0.2:
        return "identifies a person"
    if not number and one.distinct > MOST:
        return f"more than {MOST:,} different texts"
    return ""


def _long_numbers(one: ColumnProfile) -> bool:
    """Whether all values are whole numbers of equal length, six digits or more."""
    if not one.whole or not one.percentiles or one.percentiles[0] <= 0:
        return False
    low, high = as_text(one.percentiles[0]), as_text(one.percentiles[-1])
    return len(low) == len(high) >= 6


def guess_split(seen: Sequence[ColumnProfile], tables: Sequence[Table] = ()) -> str:
    """Return the column that contains train, validation or test in every row."""
    for one in seen:
        parts = {part_of(value) for value in one.values}
        if one.held < one.rows or one.distinct > 3 or not {0, 2} <= parts <= {0, 1, 2}:
            continue
        held = [as_words(table.columns[one.name]) for table in tables]
        if all(0 in {part_of(w.levels[i]) for i in np.flatnonzero(w.counts())} for w in held):
            return one.name
    return ""


def rank_clients(seen: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """Return the columns that may identify clients, best first; at least five rows per client."""

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
    """Score how strongly a name suggests that a column identifies clients.

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
    seen: Sequence[ColumnProfile], known: Mapping[str, Known] | None = None
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...] | int], dict[str, str]]:
    """Return the protected columns, their bins, and other candidates, each with a doubt if any.

    `known` are columns of a survey, whose kind is certain.
    """
    surveyed = known or {}
    chosen: list[str] = []
    bins: dict[str, tuple[int, ...] | int] = {}
    others: dict[str, str] = {}
    for kind, words in PROTECTED.items():
        taken = False
        for one in seen:
            if one.name in surveyed:
                named = surveyed[one.name].kind == kind
            else:
                named = called(one.name, words) and not called(one.name, THINGS)
            if not named or one.name in (*chosen, *others) or "*" in one.name:
                continue
            if taken:
                others[one.name] = (
                    f"'{one.name}' also seems to be about {kind} and is used as a feature; drop it "
                    "if the model should not use it."
                )
            elif len(chosen) == MOST_PROTECTED:
                others[one.name] = ""
            elif one.kind == "number" and one.distinct > MOST_GROUPS and kind == "age":
                bins[one.name] = guess_bins(one.percentiles)
                chosen.append(one.name)
                taken = True
            elif one.kind == "number" and one.distinct > MOST_GROUPS and one.name not in surveyed:
                continue
            elif one.distinct > MOST_GROUPS:
                others[one.name] = (
                    f"'{one.name}' has {one.distinct:,} values, too many for groups, and is used "
                    "as a feature; merge values and add it to protected, or drop it."
                )
            elif one.distinct >= 2:
                chosen.append(one.name)
                taken = True
    return tuple(chosen), bins, others


def guess_bins(steps: Sequence[float]) -> tuple[int, ...] | int:
    """Return typical ages that give every group a tenth of the rows or more; else three groups.

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
    """Return a mixed column as a column of numbers if all its texts mean a missing value."""
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
    """Return the texts in columns of numbers that mean a missing value."""
    found: dict[str, None] = {}
    for one in seen:
        if one.kind == "mixed" and one.odd and all(is_nothing(text) for text in one.odd):
            found |= dict.fromkeys(one.odd)
    return tuple(found)


def guess_categorical(
    seen: Sequence[ColumnProfile],
    missing: Sequence[str] = (),
    keep: Iterable[str] = (),
    known: Mapping[str, Known] | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns whose numbers are codes, and those to drop, each with its reason.

    Columns in `keep` are never dropped. `known` are columns of a survey.
    """
    surveyed = known or {}
    codes: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for one in seen:
        if one.kind == "mixed" and not set(one.odd) <= set(missing):
            text = next(text for text in one.odd if text not in missing)
            if one.name in keep or (one.distinct <= MOST and one.distinct_share < 0.5):
                codes[one.name] = f"numbers and texts such as '{text}'"
            else:
                unfit[one.name] = f"numbers and texts such as '{text}'"
        elif one.name in keep or one.kind != "number" or not one.whole or one.distinct < 3:
            continue
        elif one.name in surveyed:
            if surveyed[one.name].numbered:
                codes[one.name] = f"codes of {surveyed[one.name].meaning}"
        elif digits := code_digits(one):
            codes[one.name] = f"{one.distinct} whole numbers of {digits} digits with large gaps"
        elif called(one.name, CODES) and not called(one.name, COUNTS):
            if one.distinct <= MOST:
                codes[one.name] = "codes, judging by its name"
            else:
                unfit[one.name] = f"codes, judging by its name, with more than {MOST:,} values"
    return codes, unfit


def code_digits(one: ColumnProfile) -> int:
    """Return the number of digits of whole numbers that look like codes; 0 if they do not.

    Codes have the same number of digits, three or more, and leave out most of the numbers between
    the smallest and the largest, also after dividing by the unit in which they rise.
    """
    if one.distinct > MOST or not one.values or not 3 <= one.distinct <= 0.2 * one.held:
        return 0
    numbers = sorted(int(float(value.replace(",", "."))) for value in one.values)
    digits = len(str(numbers[0]))
    if numbers[0] <= 0 or digits < 3 or len(str(numbers[-1])) != digits:
        return 0
    if one.distinct > FEW_CODES and called(one.name, COUNTS):
        return 0
    unit = math.gcd(*(b - a for a, b in itertools.pairwise(numbers)))
    places = (numbers[-1] - numbers[0]) // unit + 1
    return digits if 2 * len(numbers) < places else 0


def categorical_reason(features: Sequence[ColumnProfile], categorical: Mapping[str, str]) -> str:
    """Return the reason, and which whole numbers with few values are used as numbers."""
    few = [
        one.name
        for one in features
        if one.name not in categorical and one.kind == "number" and one.few and one.distinct > 2
    ]
    stay = f"few whole numbers, used as numbers: {listed(few, 8)}" if few else ""
    said = "numbers that are codes" if categorical else "none" if few else ""
    return "; ".join(text for text in (said, stay) if text)


def protected_reason(
    protected: Sequence[str], others: Iterable[str], survey: str = "", codes: Sequence[str] = ()
) -> str:
    """Return why these columns are protected, and what their codes mean in a survey."""
    rest = list(others)
    shown = f"; others: {listed(rest, 6)}" if rest else ""
    how = f"columns of {survey}" if survey else "judging by their names"
    meanings = f"; in {survey}, {'; '.join(codes)}" if codes else ""
    return (how if protected else "none found") + shown + meanings


def known_codes(seen: Iterable[ColumnProfile], known: Mapping[str, Known]) -> list[str]:
    """Return what the values of columns mean, for those whose codes are all known."""
    out = []
    for one in seen:
        text = codes_text(known[one.name], one.values) if one.name in known else ""
        if text:
            out.append(f"{one.name} is {text}")
    return out


def bins_reason(bins: Mapping[str, tuple[int, ...] | int]) -> str:
    """Return what the bins mean."""
    texts = []
    for name, cut in bins.items():
        if isinstance(cut, int):
            texts.append(f"{name} in {cut} groups of similar size")
        else:
            edges = " and ".join(str(edge) for edge in cut)
            texts.append(f"groups of {name} begin at {edges}")
    return "; ".join(texts)
