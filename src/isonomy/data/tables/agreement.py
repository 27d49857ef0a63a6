"""Agree on what the columns are, from what every client reports about its table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from isonomy.data.tables import phases
from isonomy.data.tables.columns import numbers_first
from isonomy.data.tables.phases import MOST, Ask
from isonomy.data.tables.preprocessing import (
    CONTENT,
    GONE,
    Groups,
    Label,
    Schema,
    intervals,
)
from isonomy.data.tables.quantiles import order_statistics
from isonomy.data.tables.roles import Roles, listed
from isonomy.errors import ConfigError, DataError, did_you_mean

CLASSES = 20  # whole numbers with at most so many values are classes, unless configured
GROUPS = 12  # likewise for groups
MANY_GROUPS = 20  # from which the largest gap between two groups is mostly chance


def agree(ask: Ask, names: Sequence[str], roles: Roles) -> tuple[Schema, list[str]]:
    """Return the schema of all clients' tables, and warnings.

    Raises DataError or ConfigError if the tables do not agree.
    """
    tables, kinds = kinds_of(ask, names, roles)
    warnings: list[str] = []
    asked = {name: _useful_values(name, kinds[name], roles) for name in roles.protected_columns}
    asked[roles.label] = _useful_values(roles.label, kinds[roles.label], roles)
    replies = ask(phases.values, {"columns": asked})
    label = _label(replies, kinds[roles.label], roles)
    groups = [
        _groups(ask, name, kinds[name], [reply[name] for reply in replies], roles)
        for name in roles.protected_columns
    ]
    warnings += _label_warnings(label, replies, names)
    warnings += [_many_groups(group) for group in groups if len(group.levels) > MANY_GROUPS]
    features: dict[str, Any] = {}
    for name in candidates(kinds, roles):
        kind = kinds[name]
        reason = _unusable(name, kind, tables, roles)
        if not reason:
            features[name] = "number" if kind == "number" else "category"
        elif name in roles.features:
            raise DataError(f"feature '{name}' {reason}; remove it from data.features.")
        else:
            warnings.append(f"Column '{name}' {reason}, so it is not used as a feature.")
    if not features:
        raise DataError(
            "no column is left to use as a feature; the tables need at least one column besides "
            "the label, the protected columns and the dropped columns."
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
                f"All rows are in one group of '{attribute}', so there is no gap between groups."
            )
    return schema, warnings


def kinds_of(
    ask: Ask, names: Sequence[str], roles: Roles
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """What every client reports about its columns, and the kind of each column that is needed.

    Raises DataError or ConfigError if the tables do not agree.
    """
    tables = [reply["columns"] for reply in ask(phases.look, {})]
    every = list(dict.fromkeys(name for table in tables for name in table))
    roles.check(every, len(names))
    needed = _needed(every, roles)
    _check_same_columns(tables, names, roles, needed)
    return tables, {name: _kind(name, tables, names, roles) for name in needed}


def candidates(every: Iterable[str], roles: Roles) -> list[str]:
    """The columns that may become features."""
    out = {roles.label, roles.split, *roles.drop}
    if not roles.keep_protected:
        out |= set(roles.protected_columns)
    return [name for name in (roles.features or every) if name not in out]


def _needed(every: Sequence[str], roles: Roles) -> list[str]:
    """Return the columns that every client must have, in their order."""
    named = {roles.label, roles.split, *roles.protected_columns, *candidates(every, roles)}
    return [name for name in every if name in named]


def _useful_values(name: str, kind: str, roles: Roles) -> int:
    """Return how many values of the label or a protected column clients may report at most."""
    if name == roles.label:
        number = 0 if roles.task == "regression" else CLASSES if roles.task == "auto" else MOST
        return MOST if kind == "text" else number
    if name in roles.bins:
        return 0
    return MOST if kind == "text" else GROUPS


def _check_same_columns(
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
        ways = [
            f"rename '{close}' if it is the same column"
            for close in get_close_matches(name, own, 1)
        ]
        ways.append("add it there")
        if name not in (roles.label, roles.split):
            ways[-1] += " (it may be empty)"
            if name not in (*roles.features, *roles.protected_columns):
                ways.append(f'exclude it with drop = ["{name}"]')
        raise DataError(
            f"client '{names[k]}'{others} {'have' if others else 'has'} no column '{name}', which "
            f"client '{_holder(name, tables, names)}' has; {_either(ways)}."
        )


def _holder(name: str, tables: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    return next(who for who, table in zip(names, tables, strict=True) if name in table)


def _kind(
    name: str, tables: Sequence[Mapping[str, Any]], names: Sequence[str], roles: Roles
) -> str:
    """Return the kind of a column, which must be the same at all clients with values in it."""
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
            f"column '{name}' is declared numeric but contains {_content(tables[k][name])} "
            f"{_where(names, k)}; fix the values, or "
            f"{'list that text in data.missing' if texts else 'remove it from data.numeric'}."
        )
    if len(held) == 1:
        return str(held.pop())
    odd, usual = _odd_one(name, tables, held)
    other = next(k for k, table in enumerate(tables) if table[name]["kind"] == usual)
    ways = ["fix the values"]
    if held == {"number", "text"}:
        ways += [
            "list a text that means a missing value in data.missing",
            f'set categorical = ["{name}"]',
        ]
    if name not in (roles.label, roles.split, *roles.protected_columns, *roles.features):
        ways.append(f'exclude it with drop = ["{name}"]')
    raise DataError(
        f"column '{name}' contains {_content(tables[odd][name])} at client '{names[odd]}' and "
        f"{CONTENT[usual]} at client '{names[other]}'; {_either(ways)}."
    )


def _where(names: Sequence[str], k: int) -> str:
    return "in the table" if len(names) == 1 else f"at client '{names[k]}'"


def _content(report: Mapping[str, Any]) -> str:
    row = f" (row {report['strange']})" if report.get("strange") else ""
    return f"{CONTENT[report['kind']]}{row}"


def _either(ways: Sequence[str]) -> str:
    """Join alternatives for a sentence: "a, b, or c"."""
    return f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]


def _odd_one(name: str, tables: Sequence[Mapping[str, Any]], held: set[str]) -> tuple[int, str]:
    """Return a client whose kind of column is the rarer one, and the more frequent kind."""
    kinds = [table[name]["kind"] for table in tables]
    usual = max(sorted(held), key=lambda kind: (kinds.count(kind), kind == "number"))
    return next(k for k, kind in enumerate(kinds) if kind not in (usual, "empty")), usual


def _unusable(name: str, kind: str, tables: Sequence[Mapping[str, Any]], roles: Roles) -> str:
    """Return why a column cannot be a feature; empty if it can."""
    if kind == "empty":
        return "is empty at every client"
    if kind == "time":
        return "contains dates, which must be converted to numbers first"
    if kind == "other":
        return "contains lists or bytes, which must be converted to numbers first"
    if name in (*roles.categorical, *roles.numeric, *roles.features):
        return ""
    reports = [table[name] for table in tables if table[name]["held"]]
    if all("distinct" in one for one in reports):
        distinct, held = (sum(one[key] for one in reports) for key in ("distinct", "held"))
        if held >= 20 and distinct > 0.9 * held:
            return "has a different value in nearly every row, like an identifier"
        if kind == "text" and max(one["distinct"] for one in reports) > MOST:
            return f"contains more than {MOST:,} different texts at one client"
    return ""


def _label(replies: Sequence[Mapping[str, Any]], kind: str, roles: Roles) -> Label:
    name = roles.label
    if kind == "empty":
        raise DataError(
            f"the label '{name}' is empty in every row; set data.label to another column."
        )
    if kind not in ("number", "text"):
        raise DataError(
            f"the label '{name}' contains {CONTENT[kind]}; set data.label to a column of classes "
            "or numbers."
        )
    found = _union([reply[name] for reply in replies])
    whole = all(reply[name].get("whole", True) for reply in replies)
    few = found is not None and len(found) <= CLASSES
    classes = roles.task == "classification" or (
        roles.task == "auto" and (kind == "text" or (whole and few))
    )
    if not classes:
        if kind == "text":
            raise DataError(
                f"the label '{name}' contains text, which regression cannot predict; set task = "
                '"classification", or set data.label to a column of numbers.'
            )
        if roles.positive:
            raise ConfigError(
                f"positive is '{roles.positive}', but '{name}' is predicted as a number; remove "
                'positive, or set task = "classification".'
            )
        return Label(name=name)
    if found is None or len(found) > MOST:
        raise DataError(
            f"the label '{name}' has more than {MOST:,} different values, too many for classes; "
            'set data.label to another column, or set task = "regression" if it is a number.'
        )
    levels = sorted(found, key=numbers_first)
    if len(levels) < 2:
        raise DataError(
            f"the label '{name}' is '{levels[0]}' in every row of every client, so there is "
            "nothing to learn; set data.label to another column."
        )
    if roles.positive:
        truths = {"true": "1", "false": "0"} if kind == "number" else {}
        positive = truths.get(roles.positive.casefold(), roles.positive)
        if positive not in levels:
            raise ConfigError(
                f"positive is '{roles.positive}', which is not a value of '{name}'; its values are "
                f"{listed(levels)}.{did_you_mean(positive, levels)}"
            )
        if len(levels) > 2:
            raise ConfigError(
                f"positive is '{roles.positive}', but '{name}' has {len(levels)} values "
                f"({listed(levels)}) and positive needs exactly two; fix misspelt values, or "
                "remove positive."
            )
        levels = sorted(levels, key=lambda level: level == positive)
    return Label(name=name, classes=tuple(levels))


def _union(replies: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Return all clients' values with their counts; None if a client has too many to report."""
    out: dict[str, int] = {}
    for one in replies:
        if "values" not in one:
            return None
        for value, count in one["values"].items():
            out[value] = out.get(value, 0) + count
    return out


def _groups(
    ask: Ask, name: str, kind: str, replies: Sequence[Mapping[str, Any]], roles: Roles
) -> Groups:
    gone = sum(one["missing"] for one in replies)
    if kind == "empty":
        raise DataError(f"protected column '{name}' is empty in every row; name another column.")
    if kind not in ("number", "text"):
        raise DataError(
            f"protected column '{name}' contains {CONTENT[kind]}; convert them to numbers, such as "
            "an age."
        )
    cut = roles.bins.get(name)
    if cut is not None and kind != "number":
        why = "is declared categorical" if name in roles.categorical else "contains text"
        raise ConfigError(f"bins names '{name}', which {why}; remove it from bins.")
    if cut is not None:
        edges = _edges(ask, name, cut)
        return Groups(
            name=name, levels=(*intervals(edges), *((GONE,) if gone else ())), edges=edges
        )
    found = _union(replies)
    if kind == "number" and (found is None or len(found) > GROUPS):
        raise ConfigError(
            f"protected column '{name}' contains numbers; give the values at which groups begin, "
            f"for example bins = {{ {name} = [25, 60] }}, or a number of equally large groups."
        )
    if found is None or len(found) > MOST:
        raise DataError(
            f"protected column '{name}' has more than {MOST:,} different values, too many for "
            "groups; name another column."
        )
    levels = sorted(found, key=numbers_first)
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
            f"protected column '{name}' cannot be divided into {cut} groups because most rows have "
            "the same value; give the edges yourself."
        )
    return edges


def _many_groups(group: Groups) -> str:
    return (
        f"Protected column '{group.name}' has {len(group.levels):,} groups; gaps are those between "
        "the two most different ones, which are often the smallest: merge values, or name another "
        "column."
    )


def _label_warnings(
    label: Label, replies: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[str]:
    out = []
    for level in label.classes:
        holders = [k for k, reply in enumerate(replies) if level in reply[label.name]["values"]]
        if len(holders) == 1 and len(names) > 2:
            count = replies[holders[0]][label.name]["values"][level]
            out.append(
                f"Label '{level}' occurs only at client '{names[holders[0]]}' ({count:,} rows); "
                "check that it is not a misspelling."
            )
    return out + case_warnings(label.name, label.classes)


def case_warnings(name: str, levels: Sequence[str]) -> list[str]:
    """Return a warning if two levels differ only in letter case or spaces."""
    seen: dict[str, list[str]] = {}
    for level in levels:
        seen.setdefault(" ".join(level.casefold().split()), []).append(level)
    twins = [one for one in seen.values() if len(one) > 1]
    if not twins:
        return []
    return [
        f"Column '{name}' contains '{twins[0][0]}' and '{twins[0][1]}', which count as different "
        "values; write them in the same way if they mean the same."
    ]
