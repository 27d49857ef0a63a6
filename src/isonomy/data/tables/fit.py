"""What the server does to prepare tables: it asks clients, and fits from what they reply.

`fit` is given one function, `ask`, and never a table: whoever holds the tables runs the phases.
In a simulation that is `Asking` below, in a federation the network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isonomy.data.tables import phases
from isonomy.data.tables.files import Source
from isonomy.data.tables.phases import MOST, Client, Kept, Message, Phase, Reply
from isonomy.data.tables.preprocessing import (
    GONE,
    Category,
    Groups,
    Label,
    Number,
    Preprocessing,
    Schema,
    stretches,
)
from isonomy.data.tables.roles import Roles, listed
from isonomy.errors import ConfigError, DataError, did_you_mean

Ask = Callable[[Phase, Message], list[Reply]]
CLASSES = 20  # whole numbers with at most so many values are classes, unless the user says so
GROUPS = 12  # likewise groups


class Asking:
    """The clients of a simulation: runs phases on their tables and keeps what they keep.

    Messages and replies pass as JSON text, so what could not cross a network cannot pass here.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[Kept | None] = [None] * len(source.names)
        self.bytes = 0  # of replies

    def __call__(self, phase: Phase, message: Message) -> list[Reply]:
        """Every client's reply, in the clients' order."""
        sent = json.dumps(message, allow_nan=False)
        out = []
        for k in range(len(self._kept)):
            reply, kept = phase(json.loads(sent), self.client(k))
            self._kept[k] = kept if kept is not None else self._kept[k]
            text = json.dumps(reply, allow_nan=False)
            self.bytes += len(text)
            out.append(json.loads(text))
        return out

    def client(self, k: int) -> Client:
        """A client as it is now."""
        return Client(k, self._source.names[k], self._source.open(k), self._kept[k])


@dataclass
class Fitted:
    """What a federation agreed on: the preprocessing, split sizes, and things to know."""

    preprocessing: Preprocessing
    sizes: list[list[int]]  # of every client: train, validation, test
    warnings: list[str] = field(default_factory=list)


def fit(
    ask: Ask,
    names: Sequence[str],
    roles: Roles,
    *,
    seed: int,
    fractions: Sequence[float],
) -> Fitted:
    """Agree on the columns, survey the training rows, fit."""
    schema, warnings = agree(ask, names, roles)
    message = {
        "schema": schema.model_dump(mode="json"),
        "seed": seed,
        "fractions": list(fractions),
    }
    replies = ask(phases.survey, message)
    encoders: list[Number | Category] = []
    for name, kind in schema.features.items():
        if kind == "number":
            told = [reply["numbers"][name] for reply in replies]
            encoders.append(_number(ask, name, told, roles))
        else:
            told = [reply["categories"][name] for reply in replies]
            encoders.append(_category(name, told, roles.rare))
    warnings += _missing_values(schema, names, replies)
    warnings += _alike(encoders)
    unlabelled = sum(reply["unlabelled"] for reply in replies)
    if unlabelled:
        warnings.append(
            f"{unlabelled:,} rows have no '{schema.label.name}' and were left out; if they were "
            "lost in a way that depends on the group, what is measured is not what is there."
        )
    preprocessing = Preprocessing(table=schema, encoders=tuple(encoders))
    return Fitted(preprocessing, [reply["sizes"] for reply in replies], warnings)


# --- agreeing on columns -------------------------------------------------------------------------


def agree(ask: Ask, names: Sequence[str], roles: Roles) -> tuple[Schema, list[str]]:
    """What the columns are, from every client's; refuses what does not fit together."""
    replies = ask(phases.look, {})
    tables = [reply["columns"] for reply in replies]
    order = list(tables[0])
    every = list(dict.fromkeys([*order, *(name for table in tables for name in table)]))
    who = "the table" if len(names) == 1 else f"client '{names[0]}'"
    roles.check(every, "no table" if len(names) > 1 else who)
    _same_columns(tables, names, roles, every)
    kinds = {
        name: _kind(name, tables, names, roles) for name in every if name in _needed(every, roles)
    }
    warnings: list[str] = []
    asked = list(dict.fromkeys([roles.label, *roles.protected_columns]))
    told = ask(phases.values, {"columns": asked})
    label = _label(told, kinds[roles.label], roles)
    groups = [
        _groups(ask, name, kinds[name], [t[name] for t in told], roles)
        for name in roles.protected_columns
    ]
    warnings += _label_warnings(label, told, names)
    features: dict[str, Any] = {}
    for name in _candidates(every, roles):
        kind = kinds[name]
        refused = _unusable(name, kind, tables, roles)
        if not refused:
            features[name] = "number" if kind == "number" else "category"
        elif name in roles.features:
            raise DataError(f"feature '{name}' {refused}; take it out of features.")
        else:
            warnings.append(f"Column '{name}' {refused}, so it is no feature.")
    if not features:
        raise DataError(
            "no column is left to be a feature; the table needs at least one beside the label, "
            "the protected columns and what is dropped."
        )
    schema = Schema(
        label=label,
        protected=roles.protected,
        groups=tuple(groups),
        features=features,
        split=roles.split,
        missing=roles.missing,
    )
    for attribute in roles.protected:
        if len(schema.levels(attribute)) < 2:
            warnings.append(
                f"Everyone is in one group of '{attribute}', so there is no gap to measure."
            )
    return schema, warnings


def _candidates(every: Sequence[str], roles: Roles) -> list[str]:
    out = {roles.label, roles.split, *roles.drop}
    if not roles.keep_protected:
        out |= set(roles.protected_columns)
    return [name for name in (roles.features or every) if name not in out]


def _needed(every: Sequence[str], roles: Roles) -> set[str]:
    named = {roles.label, *roles.protected_columns, *_candidates(every, roles)}
    return named | ({roles.split} if roles.split else set())


def _same_columns(
    tables: Sequence[Mapping[str, Any]], names: Sequence[str], roles: Roles, every: Sequence[str]
) -> None:
    for name in every:
        if name not in _needed(every, roles):
            continue
        without = [k for k, table in enumerate(tables) if name not in table]
        if not without:
            continue
        k = without[0]
        own = [other for other in tables[k] if any(other not in table for table in tables)]
        others = f" and {len(without) - 1} more clients" if len(without) > 1 else ""
        raise DataError(
            f"client '{names[k]}'{others} has no column '{name}', which others have; add it there "
            f'(it may be empty), or leave it out everywhere with drop = ["{name}"].'
            f"{did_you_mean(name, own)}"
        )


def _kind(
    name: str, tables: Sequence[Mapping[str, Any]], names: Sequence[str], roles: Roles
) -> str:
    """A column's kind, the same at every client that has values in it."""
    held = {table[name]["kind"] for table in tables} - {"empty"}
    if not held:
        return "empty"
    if name in roles.categorical:
        return "text"
    if name in roles.numeric and held != {"number"}:
        k = next(
            k for k, table in enumerate(tables) if table[name]["kind"] not in ("number", "empty")
        )
        row = tables[k][name].get("strange")
        raise DataError(
            f"column '{name}' is said to be numeric and client '{names[k]}' holds "
            f"{_held(tables[k][name]['kind'])}{f' (row {row})' if row else ''}; mend it, or list "
            "that text under missing."
        )
    if len(held) == 1:
        return str(held.pop())
    odd, usual = _odd_one(name, tables, held)
    row = tables[odd][name].get("strange")
    other = next(k for k, table in enumerate(tables) if table[name]["kind"] == usual)
    raise DataError(
        f"column '{name}' holds {_held(tables[odd][name]['kind'])} at client '{names[odd]}'"
        f"{f' (row {row})' if row else ''} and {_held(usual)} at client '{names[other]}'; mend it, "
        f'list a text that stands for nothing under missing, or say categorical = ["{name}"].'
    )


def _odd_one(name: str, tables: Sequence[Mapping[str, Any]], held: set[str]) -> tuple[int, str]:
    """A client whose kind is the rarer one, and the usual kind."""
    kinds = [table[name]["kind"] for table in tables]
    usual = max(sorted(held), key=lambda kind: (kinds.count(kind), kind == "number"))
    return next(k for k, kind in enumerate(kinds) if kind not in (usual, "empty")), usual


def _held(kind: str) -> str:
    return {"number": "numbers", "text": "texts", "time": "dates"}[kind]


def _unusable(name: str, kind: str, tables: Sequence[Mapping[str, Any]], roles: Roles) -> str:
    """Why a column can be no feature; nothing if it can."""
    if kind == "empty":
        return "is empty at every client"
    if kind == "time":
        return "holds dates, which have to be made numbers first"
    if name in (*roles.categorical, *roles.numeric, *roles.features):
        return ""
    told = [table[name] for table in tables if table[name]["held"]]
    if all("distinct" in one for one in told):
        distinct, held = (sum(one[key] for one in told) for key in ("distinct", "held"))
        if held >= 20 and distinct > 0.9 * held:
            return "has another value in nearly every row, as an identifier has"
        if kind == "text" and max(one["distinct"] for one in told) > MOST:
            return f"holds more than {MOST:,} different texts at one client"
    return ""


def _label(told: Sequence[Mapping[str, Any]], kind: str, roles: Roles) -> Label:
    name = roles.label
    if kind == "empty":
        raise DataError(f"the label '{name}' is empty in every row; name another column.")
    if kind == "time":
        raise DataError(f"the label '{name}' holds dates; name a column of classes or numbers.")
    found = _union([t[name] for t in told])
    whole = all(t[name].get("whole", True) for t in told)
    few = found is not None and len(found) <= CLASSES
    classes = roles.task == "classification" or (
        roles.task == "auto" and (kind == "text" or (whole and few))
    )
    if not classes:
        if kind == "text":
            raise DataError(
                f"the label '{name}' holds texts, which regression cannot predict; set task = "
                '"classification", or name a column of numbers.'
            )
        return Label(name=name)
    if found is None or len(found) > MOST:
        raise DataError(
            f"the label '{name}' has more than {MOST:,} different values, too many for classes; "
            'name another column, or set task = "regression" if it is a number.'
        )
    levels = sorted(found, key=_numbers_first)
    if len(levels) < 2:
        raise DataError(
            f"the label '{name}' is '{levels[0]}' in every row of every client; there is nothing "
            "to learn, so name another column."
        )
    if roles.positive:
        if roles.positive not in levels:
            raise ConfigError(
                f"positive is '{roles.positive}', which is no value of '{name}': these are "
                f"{listed(levels)}.{did_you_mean(roles.positive, levels)}"
            )
        if len(levels) == 2:
            levels = sorted(levels, key=lambda level: level == roles.positive)
    return Label(name=name, classes=tuple(levels))


def _union(told: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """All clients' values with their counts; None where a client had too many to tell."""
    out: dict[str, int] = {}
    for one in told:
        if "values" not in one:
            return None
        for value, count in one["values"].items():
            out[value] = out.get(value, 0) + count
    return out


def _numbers_first(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _groups(
    ask: Ask, name: str, kind: str, told: Sequence[Mapping[str, Any]], roles: Roles
) -> Groups:
    gone = sum(one["missing"] for one in told)
    if kind == "empty":
        raise DataError(f"protected column '{name}' is empty in every row; name another.")
    if kind == "time":
        raise DataError(
            f"protected column '{name}' holds dates; turn them into numbers, such as an age."
        )
    cut = roles.bins.get(name)
    if cut is not None and kind != "number":
        raise ConfigError(f"bins cuts '{name}', which holds texts; take it out of bins.")
    if cut is not None:
        edges = _edges(ask, name, cut)
        return Groups(
            name=name, levels=(*stretches(edges), *((GONE,) if gone else ())), edges=edges
        )
    found = _union(told)
    if kind == "number" and (found is None or len(found) > GROUPS):
        raise ConfigError(
            f"protected column '{name}' holds numbers; say where groups begin, e.g. bins = "
            f"{{ {name} = [25, 60] }}, or how many equally large groups there are."
        )
    if found is None or len(found) > MOST:
        raise DataError(
            f"protected column '{name}' has more than {MOST:,} different values; a group needs "
            "many people, so name another column."
        )
    levels = sorted(found, key=_numbers_first)
    return Groups(name=name, levels=(*levels, *((GONE,) if gone and GONE not in levels else ())))


def _edges(ask: Ask, name: str, cut: Sequence[float] | int) -> tuple[float, ...]:
    if not isinstance(cut, int):
        return tuple(float(edge) for edge in cut)
    total = sum(reply["count"] for reply in ask(phases.span, {"column": name, "train": False}))
    ranks = [math.floor(total * i / cut) + 1 for i in range(1, cut)]
    found = order_statistics(ask, name, ranks, train=False)
    lowest = min(
        reply["low"]
        for reply in ask(phases.span, {"column": name, "train": False})
        if reply["count"]
    )
    edges = tuple(sorted({edge for edge in found if edge > lowest}))
    if not edges:
        raise DataError(
            f"protected column '{name}' cannot be cut into {cut} groups: most rows have the same "
            "value; give the edges yourself."
        )
    return edges


def order_statistics(ask: Ask, column: str, ranks: Sequence[int], *, train: bool) -> list[float]:
    """The numbers at these ranks (from 1) among all clients', found by counting.

    Each phase counts at marks that cut every open stretch in 64; when a stretch is as narrow as
    numbers get, or its lower end is only just below, the next number above it is the answer.
    """
    message: Message = {"column": column, "train": train}
    spans = [reply for reply in ask(phases.span, message) if reply["count"]]
    low, high = min(s["low"] for s in spans), max(s["high"] for s in spans)
    if low == high:
        return [low] * len(ranks)
    floor = np.nextafter(low, -np.inf)
    stretch = {rank: (float(floor), float(high)) for rank in ranks}  # answer in (a, b]
    for _ in range(12):
        marks = sorted(
            {
                float(m)
                for a, b in stretch.values()
                for m in np.linspace(a, b, 65)[1:-1]
                if a < m < b
            }
        )
        if not marks:
            break
        replies = ask(phases.below, message | {"marks": marks})
        counts = np.sum([reply["counts"] for reply in replies], axis=0)
        for rank, (a, b) in stretch.items():
            for mark, count in zip(marks, counts.tolist(), strict=True):
                if count >= rank:
                    b = min(b, mark)
                else:
                    a = max(a, mark)
            stretch[rank] = (a, b)
    marks = sorted({a for a, _ in stretch.values()})
    replies = ask(phases.above, message | {"marks": marks})
    nexts = {
        mark: min(reply["next"][i] for reply in replies if reply["next"][i] is not None)
        for i, mark in enumerate(marks)
    }
    return [nexts[stretch[rank][0]] for rank in ranks]


# --- fitting -------------------------------------------------------------------------------------


def _number(ask: Ask, name: str, told: Sequence[Mapping[str, Any]], roles: Roles) -> Number:
    """Mean and spread of all clients' numbers, from each one's count, mean and squares."""
    count, mean, squares = 0, 0.0, 0.0
    gone = sum(one["missing"] for one in told)
    held = [one for one in told if one["count"]]
    for one in held:
        total = count + one["count"]
        away = one["mean"] - mean
        squares += one["squares"] + away * away * count * one["count"] / total
        mean += away * one["count"] / total
        count = total
    fill = mean
    if roles.impute == "zero" or not held:
        fill = 0.0
    elif roles.impute == "median" and gone:
        middle = order_statistics(ask, name, [(count + 1) // 2, count // 2 + 1], train=True)
        fill = sum(middle) / 2
    if not held:
        return Number(name=name, fill=0.0, shift=0.0, scale=1.0)
    indicate = roles.indicate and gone > 0
    if roles.scale == "none":
        return Number(name=name, fill=fill, shift=0.0, scale=1.0, indicate=indicate)
    if roles.scale == "minmax":
        low = min([one["low"] for one in held] + ([fill] if gone else []))
        high = max([one["high"] for one in held] + ([fill] if gone else []))
        scale = high - low
        return Number(name=name, fill=fill, shift=low, scale=scale or 1.0, indicate=indicate)
    rows = count + gone
    centre = mean + (fill - mean) * gone / rows
    squares += count * (mean - centre) ** 2 + gone * (fill - centre) ** 2
    spread = math.sqrt(squares / rows)
    flat = spread <= 1e-9 * max(abs(centre), 1e-300)  # a constant column, but for rounding
    return Number(
        name=name, fill=fill, shift=centre, scale=1.0 if flat else spread, indicate=indicate
    )


def _category(name: str, told: Sequence[Mapping[str, Any]], rare: int) -> Category:
    counts: dict[str, int] = {}
    for one in told:
        for value, count in one["values"].items():
            counts[value] = counts.get(value, 0) + count
    levels = sorted((value for value, n in counts.items() if n >= rare), key=_numbers_first)
    gone = sum(one["missing"] for one in told)
    return Category(name=name, levels=tuple(levels), missing=gone >= rare)


# --- things to know ------------------------------------------------------------------------------


def _label_warnings(
    label: Label, told: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[str]:
    out = []
    for level in label.classes:
        holders = [k for k, t in enumerate(told) if level in t[label.name]["values"]]
        if len(holders) == 1 and len(names) > 2:
            count = told[holders[0]][label.name]["values"][level]
            out.append(
                f"Label '{level}' occurs at client '{names[holders[0]]}' alone ({count:,} rows); "
                "check that it is no misspelling."
            )
    return out + _same_but_for_case(label.name, label.classes)


def _alike(encoders: Sequence[Number | Category]) -> list[str]:
    return [
        text
        for encoder in encoders
        if isinstance(encoder, Category)
        for text in _same_but_for_case(encoder.name, encoder.levels)
    ]


def _same_but_for_case(name: str, levels: Sequence[str]) -> list[str]:
    seen: dict[str, list[str]] = {}
    for level in levels:
        seen.setdefault(" ".join(level.casefold().split()), []).append(level)
    twins = [one for one in seen.values() if len(one) > 1]
    if not twins:
        return []
    return [
        f"Column '{name}' holds '{twins[0][0]}' and '{twins[0][1]}', which count as different; "
        "write them alike if they are the same."
    ]


def _missing_values(
    schema: Schema, names: Sequence[str], replies: Sequence[Mapping[str, Any]]
) -> list[str]:
    """One sentence on the columns with the most missing values."""
    shares = []
    for name, kind in schema.features.items():
        table = "numbers" if kind == "number" else "categories"
        gone = [reply[table][name]["missing"] for reply in replies]
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
        f"Values are missing: {', '.join(texts)}{more}; numbers were filled in, which hides "
        "whatever made them be missing."
    ]
