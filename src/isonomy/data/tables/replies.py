"""Checks of what clients of a real federation reply about their tables, before it is used or saved.

A reply is data from somebody else's machine. Each function returns what is wrong with one, in words
that name no value of it, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isonomy.data.tables.phases import MARKS, MOST
from isonomy.data.tables.preprocessing import LARGEST, Schema

LONGEST = 200  # letters of a category's value
ROWS = 10**9  # rows of one client

Count = Annotated[int, Field(ge=0, le=ROWS)]
Real = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Moments(_Reply):
    count: Count
    missing: Count
    mean: Real | None = None
    squares: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    low: Real | None = None
    high: Real | None = None


class _Values(_Reply):
    missing: Count
    values: Annotated[
        dict[
            Annotated[str, Field(max_length=LONGEST)],
            Annotated[int, Field(ge=1, le=ROWS)],
        ],
        Field(max_length=MOST),
    ]
    rest: Count


class _Survey(_Reply):
    sizes: Annotated[list[Count], Field(min_length=3, max_length=3)]
    unlabelled: Count
    numbers: dict[str, _Moments]
    categories: dict[str, _Values]


class _Grid(_Reply):
    counts: Annotated[list[Count], Field(min_length=MARKS, max_length=MARKS)]


def wrong_survey(reply: Any, schema: Schema) -> str | None:
    """What is wrong with a reply to `survey`."""
    try:
        got = _Survey.model_validate(reply)
    except ValidationError as error:
        return _sentence(error)
    rows = got.sizes[0]
    if not rows:
        return "it has no training rows"
    described = {"number": set(got.numbers), "category": set(got.categories)}
    for kind, found in described.items():
        if found != {name for name, of in schema.features.items() if of == kind}:
            return f"it describes other {kind} columns than the charter's"
    for name, one in got.numbers.items():
        if one.count + one.missing != rows:
            return f"the counts of '{name}' are not those of its {rows:,} training rows"
        if one.count and _impossible(one):
            return f"the moments of '{name}' contradict each other"
    for name, held in got.categories.items():
        if sum(held.values.values()) + held.rest + held.missing != rows:
            return f"the counts of '{name}' are not those of its {rows:,} training rows"
    return None


def _impossible(one: _Moments) -> bool:
    """Whether no column has this mean, spread, smallest and largest number."""
    if one.mean is None or one.squares is None or one.low is None or one.high is None:
        return True
    slack = 1e-6 * (1 + abs(one.low) + abs(one.high))
    if not one.low - slack <= one.mean <= one.high + slack:
        return True
    return math.sqrt(one.squares / one.count) > one.high - one.low + slack


def wrong_grid(reply: Any, count: int) -> str | None:
    """What is wrong with a reply to `grid` of a client with so many numbers."""
    try:
        counts = _Grid.model_validate(reply).counts
    except ValidationError as error:
        return _sentence(error)
    if counts != sorted(counts) or counts[-1] > count:
        return "its counts do not rise to the number of its rows"
    return None


def _sentence(error: ValidationError) -> str:
    first: Mapping[str, Any] = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"][:3])
    return f"{where or 'it'}: {str(first['msg']).lower()}"
