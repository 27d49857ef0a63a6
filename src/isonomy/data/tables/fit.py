"""The server side of table preparation: fit the preprocessing from what clients reply.

`fit` gets a function `ask` and never a table; the phases run where the tables are. In a simulation
`ask` is a `LocalClients`, in a real federation it goes over the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isonomy.data.tables import phases
from isonomy.data.tables.agreement import agree, case_warnings
from isonomy.data.tables.columns import numbers_first
from isonomy.data.tables.phases import Ask, Message
from isonomy.data.tables.preprocessing import (
    Category,
    Number,
    Preprocessing,
    Schema,
)
from isonomy.data.tables.quantiles import grid_median, order_statistics
from isonomy.data.tables.roles import Roles


@dataclass
class Fitted:
    """The outcome: the preprocessing, the sizes of splits, and warnings."""

    preprocessing: Preprocessing
    sizes: list[list[int]]  # for every client: train, validation, test
    warnings: list[str] = field(default_factory=list)


def fit(
    ask: Ask,
    names: Sequence[str],
    roles: Roles,
    *,
    seed: int,
    fractions: Sequence[float],
    schema: Schema | None = None,
    least: int = 0,
) -> Fitted:
    """Agree on the columns (unless a schema is given), survey the training rows, and fit.

    With `least`, as in a real federation, clients report no category of fewer rows, and medians
    are found from counts at even marks, so they are not exact.
    """
    warnings: list[str] = []
    if schema is None:
        schema, warnings = agree(ask, names, roles)
    replies = ask(phases.survey, survey_message(schema, seed, fractions, max(least, 1)))
    encoders: list[Number | Category] = []
    for name, kind in schema.features.items():
        if kind == "number":
            reports = [reply["numbers"][name] for reply in replies]
            encoders.append(_number(ask, name, reports, roles, least))
        else:
            reports = [reply["categories"][name] for reply in replies]
            encoders.append(_category(name, reports, roles.rare))
    warnings += _missing_value_warnings(encoders, names, replies)
    warnings += _level_warnings(encoders)
    unlabelled = sum(reply["unlabelled"] for reply in replies)
    if unlabelled:
        warnings.append(
            f"{unlabelled:,} rows have no '{schema.label.name}' and are not used; if labels are "
            "missing more often in some groups, the measured gaps between groups are biased."
        )
    preprocessing = Preprocessing(table=schema, encoders=tuple(encoders))
    return Fitted(preprocessing, [reply["sizes"] for reply in replies], warnings)


def survey_message(
    schema: Schema, seed: int, fractions: Sequence[float], least: int = 1
) -> Message:
    """Return the message of the phase `survey`."""
    plain = schema.model_dump(mode="json")
    return {"schema": plain, "seed": seed, "fractions": list(fractions), "least": least}


def _number(
    ask: Ask, name: str, reports: Sequence[Mapping[str, Any]], roles: Roles, least: int
) -> Number:
    """Combine the counts, means and squares of all clients into one encoder."""
    count, mean, squares = 0, 0.0, 0.0
    gone = sum(one["missing"] for one in reports)
    held = [one for one in reports if one["count"]]
    for one in held:
        total = count + one["count"]
        away = one["mean"] - mean
        squares += one["squares"] + away * away * count * one["count"] / total
        mean += away * one["count"] / total
        count = total
    if not held:
        return Number(name=name, fill=0.0, shift=0.0, scale=1.0)
    low, high = min(one["low"] for one in held), max(one["high"] for one in held)
    fill = min(max(mean, low), high)  # it lies between them except for rounding
    if roles.impute == "zero":
        fill = 0.0
    elif roles.impute == "median" and least:
        fill = grid_median(ask, name, low, high, count, least)
    elif roles.impute == "median":
        middle = order_statistics(ask, name, [(count + 1) // 2, count // 2 + 1], train=True)
        fill = sum(middle) / 2
    indicate = roles.indicate and gone > 0
    if roles.scale == "none":
        return Number(name=name, fill=fill, shift=0.0, scale=1.0, indicate=indicate)
    if gone:
        low, high = min(low, fill), max(high, fill)
    if roles.scale == "minmax":
        scale = high - low
        return Number(name=name, fill=fill, shift=low, scale=scale or 1.0, indicate=indicate)
    rows = count + gone
    centre = mean + (fill - mean) * gone / rows
    squares += count * (mean - centre) ** 2 + gone * (fill - centre) ** 2
    spread = math.sqrt(squares / rows)
    flat = low == high or spread <= 4 * np.finfo(float).eps * abs(centre)  # up to rounding
    return Number(
        name=name, fill=fill, shift=centre, scale=1.0 if flat else spread, indicate=indicate
    )


def _category(name: str, reports: Sequence[Mapping[str, Any]], rare: int) -> Category:
    counts: dict[str, int] = {}
    for one in reports:
        for value, count in one["values"].items():
            counts[value] = counts.get(value, 0) + count
    levels = sorted((value for value, n in counts.items() if n >= rare), key=numbers_first)
    gone = sum(one["missing"] for one in reports)
    return Category(name=name, levels=tuple(levels), missing=gone >= rare)


def _level_warnings(encoders: Sequence[Number | Category]) -> list[str]:
    return [
        text
        for encoder in encoders
        if isinstance(encoder, Category)
        for text in case_warnings(encoder.name, encoder.levels)
    ]


def _missing_value_warnings(
    encoders: Sequence[Number | Category],
    names: Sequence[str],
    replies: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return a warning about numbers that were filled in without an indicator feature."""
    shares = []
    for name in (e.name for e in encoders if isinstance(e, Number) and not e.indicate):
        gone = [reply["numbers"][name]["missing"] for reply in replies]
        rows = [reply["sizes"][0] for reply in replies]
        share = sum(gone) / max(sum(rows), 1)
        if share > 0.02:
            worst = max(range(len(names)), key=lambda k: gone[k] / max(rows[k], 1))
            shares.append((share, name, worst, gone[worst] / max(rows[worst], 1)))
    if not shares:
        return []
    shares.sort(reverse=True)
    texts = [
        f"'{name}' in {share:.0%} of training rows ({worst:.0%} at '{names[k]}')"
        for share, name, k, worst in shares[:5]
    ]
    more = f" and {len(shares) - 5} more columns" if len(shares) > 5 else ""
    return [
        f"Missing numbers were filled in: {', '.join(texts)}{more}; if missing values carry "
        "information, set indicate = true to add a feature that marks them."
    ]
