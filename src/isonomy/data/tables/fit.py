"""What the server does to prepare tables: it asks clients, and fits from what they reply.

`fit` is given one function, `ask`, and never a table: whoever holds the tables runs the phases.
In a simulation that is `Asking` below, in a federation the network.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from isonomy.data.tables import phases
from isonomy.data.tables.files import Source
from isonomy.data.tables.phases import MOST, Client, Kept, Message, Phase, Reply
from isonomy.data.tables.preprocessing import (
    GONE,
    HELD,
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
    schema: Schema | None = None,
) -> Fitted:
    """Agree on the columns (unless a schema is given), survey the training rows, fit."""
    warnings: list[str] = []
    if schema is None:
        schema, warnings = agree(ask, names, roles)
    replies = ask(phases.survey, survey_message(schema, seed, fractions))
    encoders: list[Number | Category] = []
    for name, kind in schema.features.items():
        if kind == "number":
            told = [reply["numbers"][name] for reply in replies]
            encoders.append(_number(ask, name, told, roles))
        else:
            told = [reply["categories"][name] for reply in replies]
            encoders.append(_category(name, told, roles.rare))
    warnings += _missing_values(encoders, names, replies)
    warnings += _alike(encoders)
    unlabelled = sum(reply["unlabelled"] for reply in replies)
    if unlabelled:
        warnings.append(
            f"{unlabelled:,} rows have no '{schema.label.name}' and were left out; if they were "
            "lost in a way that depends on the group, what is measured is not what is there."
        )
    preprocessing = Preprocessing(table=schema, encoders=tuple(encoders))
    return Fitted(preprocessing, [reply["sizes"] for reply in replies], warnings)


def survey_message(schema: Schema, seed: int, fractions: Sequence[float]) -> Message:
    """What clients are asked when they split and survey their rows."""
    plain = schema.model_dump(mode="json")
    return {"schema": plain, "seed": seed, "fractions": list(fractions)}


# --- agreeing on columns -------------------------------------------------------------------------


def agree(ask: Ask, names: Sequence[str], roles: Roles) -> tuple[Schema, list[str]]:
    """What the columns are, from every client's; refuses what does not fit together."""
    replies = ask(phases.look, {})
    tables = [reply["columns"] for reply in replies]
    every = list(dict.fromkeys(name for table in tables for name in table))
    roles.check(every, len(names))
    needed = _needed(every, roles)
    _same_columns(tables, names, roles, needed)
    kinds = {name: _kind(name, tables, names, roles) for name in needed}
    warnings: list[str] = []
    asked = {name: _of_use(name, kinds[name], roles) for name in roles.protected_columns}
    asked[roles.label] = _of_use(roles.label, kinds[roles.label], roles)
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


def _needed(every: Sequence[str], roles: Roles) -> list[str]:
    """The columns that every client has to have, in their order."""
    named = {roles.label, roles.split, *roles.protected_columns, *_candidates(every, roles)}
    return [name for name in every if name in named]


def _of_use(name: str, kind: str, roles: Roles) -> int:
    """How many values of the label or a protected column are of use; no more are asked for."""
    if name == roles.label:
        number = 0 if roles.task == "regression" else CLASSES if roles.task == "auto" else MOST
        return MOST if kind == "text" else number
    if name in roles.bins:
        return 0
    return MOST if kind == "text" else GROUPS


def _same_columns(
    tables: Sequence[Mapping[str, Any]], names: Sequence[str], roles: Roles, needed: Sequence[str]
) -> None:
    for name in needed:
        without = [k for k, table in enumerate(tables) if name not in table]
        if not without:
            continue
        k = without[0]
        own = [other for other in tables[k] if any(other not in table for table in tables)]
        others = {0: "", 1: " and another client"}.get(
            len(without) - 1, f" and {len(without) - 1} other clients"
        )
        ways = [f"rename '{close}' if it is that" for close in get_close_matches(name, own, 1)]
        ways.append("add it there")
        if name not in (roles.label, roles.split):
            ways[-1] += " (it may be empty)"
            if name not in (*roles.features, *roles.protected_columns):
                ways.append(f'leave it out with drop = ["{name}"]')
        raise DataError(
            f"client '{names[k]}'{others} {'have' if others else 'has'} no column '{name}', which "
            f"client '{_holder(name, tables, names)}' has; {_either(ways)}."
        )


def _holder(name: str, tables: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    return next(who for who, table in zip(names, tables, strict=True) if name in table)


def _kind(
    name: str, tables: Sequence[Mapping[str, Any]], names: Sequence[str], roles: Roles
) -> str:
    """A column's kind, the same at every client that has values in it."""
    held = {table[name]["kind"] for table in tables} - {"empty"}
    if not held:
        return "empty"
    if name in roles.categorical and held <= {"number", "text"}:
        return "text"
    if name in roles.numeric and held != {"number"}:
        k = next(
            k for k, table in enumerate(tables) if table[name]["kind"] not in ("number", "empty")
        )
        texts = tables[k][name]["kind"] == "text"
        raise DataError(
            f"column '{name}' is said to be numeric and {_who(names, k)} holds "
            f"{_held(tables[k][name])} in it; mend it, or "
            f"{'list that text under missing' if texts else 'take it out of numeric'}."
        )
    if len(held) == 1:
        return str(held.pop())
    odd, usual = _odd_one(name, tables, held)
    other = next(k for k, table in enumerate(tables) if table[name]["kind"] == usual)
    ways = ["mend it"]
    if held == {"number", "text"}:
        ways += [
            "list a text that stands for nothing under missing",
            f'say categorical = ["{name}"]',
        ]
    if name not in (roles.label, roles.split, *roles.protected_columns, *roles.features):
        ways.append(f'leave it out with drop = ["{name}"]')
    raise DataError(
        f"column '{name}' holds {_held(tables[odd][name])} at client '{names[odd]}' and "
        f"{HELD[usual]} at client '{names[other]}'; {_either(ways)}."
    )


def _who(names: Sequence[str], k: int) -> str:
    return "the table" if len(names) == 1 else f"client '{names[k]}'"


def _held(told: Mapping[str, Any]) -> str:
    row = f" (row {told['strange']})" if told.get("strange") else ""
    return f"{HELD[told['kind']]}{row}"


def _either(ways: Sequence[str]) -> str:
    """Ways to choose from, in a sentence."""
    return f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]


def _odd_one(name: str, tables: Sequence[Mapping[str, Any]], held: set[str]) -> tuple[int, str]:
    """A client whose kind is the rarer one, and the usual kind."""
    kinds = [table[name]["kind"] for table in tables]
    usual = max(sorted(held), key=lambda kind: (kinds.count(kind), kind == "number"))
    return next(k for k, kind in enumerate(kinds) if kind not in (usual, "empty")), usual


def _unusable(name: str, kind: str, tables: Sequence[Mapping[str, Any]], roles: Roles) -> str:
    """Why a column can be no feature; nothing if it can."""
    if kind == "empty":
        return "is empty at every client"
    if kind == "time":
        return "holds dates, which have to be made numbers first"
    if kind == "other":
        return "holds lists or bytes, which have to be made numbers first"
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
    if kind not in ("number", "text"):
        raise DataError(
            f"the label '{name}' holds {HELD[kind]}; name a column of classes or numbers."
        )
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
        if roles.positive:
            raise ConfigError(
                f"positive is '{roles.positive}', but '{name}' is predicted as a number; leave "
                'positive out, or set task = "classification".'
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
        truths = {"true": "1", "false": "0"} if kind == "number" else {}
        positive = truths.get(roles.positive.casefold(), roles.positive)
        if positive not in levels:
            raise ConfigError(
                f"positive is '{roles.positive}', which is no value of '{name}': these are "
                f"{listed(levels)}.{did_you_mean(positive, levels)}"
            )
        if len(levels) > 2:
            raise ConfigError(
                f"positive is '{roles.positive}', but '{name}' has {len(levels)} values "
                f"({listed(levels)}) and only one of two can be positive; mend those that are "
                "misspelt, or leave positive out."
            )
        levels = sorted(levels, key=lambda level: level == positive)
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
    if kind not in ("number", "text"):
        raise DataError(
            f"protected column '{name}' holds {HELD[kind]}; turn them into numbers, such as an age."
        )
    cut = roles.bins.get(name)
    if cut is not None and kind != "number":
        held = "is said to be categorical" if name in roles.categorical else "holds texts"
        raise ConfigError(f"bins cuts '{name}', which {held}; take it out of bins.")
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
    lowest, *found = order_statistics(ask, name, [1, *ranks], train=False)
    edges = tuple(sorted({edge for edge in found if edge > lowest}))
    if not edges:
        raise DataError(
            f"protected column '{name}' cannot be cut into {cut} groups: most rows have the same "
            "value; give the edges yourself."
        )
    return edges


def order_statistics(ask: Ask, column: str, ranks: Sequence[int], *, train: bool) -> list[float]:
    """The numbers at these ranks (from 1) among all clients', found by counting.

    Each phase counts at marks that cut every open stretch in 64, until no number is left between
    its ends. They are cut by the order of all reals there are, which 11 phases get through however
    far apart the clients' numbers lie.
    """
    message: Message = {"column": column, "train": train}
    spans = [reply for reply in ask(phases.span, message) if reply["count"]]
    low, high = min(s["low"] for s in spans), max(s["high"] for s in spans)
    stretch = dict.fromkeys(ranks, (_place(low) - 1, _place(high)))  # the answer is in (a, b]
    while True:
        inner = {a + (b - a) * i // 64 for a, b in set(stretch.values()) for i in range(1, 64)}
        marks = sorted(inner - {end for ends in stretch.values() for end in ends})
        if not marks:
            return [_real(stretch[rank][1]) for rank in ranks]
        replies = ask(phases.below, message | {"marks": [_real(mark) for mark in marks]})
        counts = np.sum([reply["counts"] for reply in replies], axis=0)
        for rank, (a, b) in stretch.items():
            first = int(np.searchsorted(counts, rank))  # the first mark with enough below it
            after = max(a, marks[first - 1]) if first else a
            stretch[rank] = after, min(b, marks[first]) if first < len(marks) else b


def _place(real: float) -> int:
    """A real's place in the order of all double-precision numbers; 0 has place 0.

    >>> _place(5e-324), _place(-5e-324), _real(_place(0.1))
    (1, -1, 0.1)
    """
    bits: int = struct.unpack("<q", struct.pack("<d", real))[0]
    return bits if bits >= 0 else -(bits & (1 << 63) - 1)


def _real(place: int) -> float:
    real: float = struct.unpack("<d", struct.pack("<q", abs(place)))[0]
    return real if place >= 0 else -real


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
    if not held:
        return Number(name=name, fill=0.0, shift=0.0, scale=1.0)
    low, high = min(one["low"] for one in held), max(one["high"] for one in held)
    fill = min(max(mean, low), high)  # but for rounding it is between them
    if roles.impute == "zero":
        fill = 0.0
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
    flat = low == high or spread <= 4 * np.finfo(float).eps * abs(centre)  # but for rounding
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
    encoders: Sequence[Number | Category],
    names: Sequence[str],
    replies: Sequence[Mapping[str, Any]],
) -> list[str]:
    """One sentence on the numbers that were filled in and that no feature tells of."""
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
        f"Numbers are missing and were filled in: {', '.join(texts)}{more}; if they are missing "
        "for a reason, indicate = true lets the model know."
    ]
