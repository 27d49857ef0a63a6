"""The data before training, from `facts["data"]`: tables for the page and the terminal.

Every fact is optional.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isonomy.report import runs
from isonomy.report.tables import Cell, Column, Table
from isonomy.runs.record import Record

MOST = 15  # clients in a table on a terminal
_COLUMNS = {
    "feature": (
        "features",
        "Largest difference between the client's mean of a feature and the other clients', in "
        "standard deviations, among rows with the same label; 0 if chance explains it.",
    ),
    "relation": (
        "relation",
        "Largest difference between the client and the others in how a feature relates to the "
        "label, in standard deviations; 0 if chance explains it.",
    ),
}

_OFF = "Off: total variation distance between the client's shares and all rows', beyond chance."
_OFF_SD = (
    "Off, sd: the largest difference between the client and the others in a feature's mean given "
    "the label, or in how a feature relates to the label; 0 if chance may explain it."
)


@dataclass(frozen=True)
class Held:
    """One data set of a report: its name, tables, warnings and a note."""

    name: str
    measures: Table | None
    clients: Table | None
    warnings: tuple[tuple[int, str], ...]  # weight, text
    note: str = ""


def held(records: Sequence[Record]) -> list[Held]:
    """The tables and warnings of each data set of the runs; none if nothing is known about it."""
    found = runs.methods(records)
    first: dict[str, runs.Method] = {}
    for method in found:
        first.setdefault(method.data, method)
    out = []
    for name, method in first.items():
        facts = method.runs[0].facts.get("data")
        if not isinstance(facts, Mapping):
            continue
        others = [m for m in found if m.data == name]
        seeds = {
            run.seed for m in others for run in m.runs if _sizes(run) != _sizes(method.runs[0])
        }
        note = (
            f"For seed {method.runs[0].seed}; other seeds distribute the rows differently."
            if seeds
            else ""
        )
        one = Held(name, measures(facts), clients(facts, 1000), tuple(warnings(facts)), note)
        if one.measures or one.warnings:
            out.append(one)
    return out


def warnings(facts: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    """The weights and texts of warnings in their stored order: the most important first."""
    for at in facts.get("warnings") or ():
        if isinstance(at, Mapping) and at.get("text"):
            yield int(at.get("weight") or 1), str(at["text"])


def measures(facts: Mapping[str, Any]) -> Table | None:
    """How clients differ: one row per measure; None without measures."""
    heads = (
        Column("about", "what differs", text=True),
        Column("measure", "measure", text=True),
        Column("value", "value"),
        Column("where", "largest at", text=True),
        Column("chance", "by chance", "The value for clients drawn at random from all rows."),
        Column("p", "p-value", "For the hypothesis of no difference.", text=True),
    )
    rows = []
    last = ""
    for at in facts.get("measures") or ():
        about, name, value = str(at["about"]), str(at["name"]), at.get("value")
        is_count = isinstance(value, float | int) and name.startswith("clients that differ")
        rows.append(
            (
                Cell(about if about != last else ""),
                Cell(name),
                Cell(value, digits=0 if is_count else None),
                Cell(str(at.get("where") or "")),
                Cell(at["chance"]) if at.get("chance") is not None else Cell(""),
                Cell(p_value(at.get("p"))),
            )
        )
        last = about
    return Table("How clients differ", heads, tuple(rows)) if rows else None


def clients(facts: Mapping[str, Any], most: int = MOST) -> Table | None:
    """One row per client; of many clients, the largest, the most unusual and the smallest."""
    names, sizes = list(facts.get("names") or ()), list(facts.get("sizes") or ())
    if not names or len(sizes) != len(names):
        return None
    measured = facts.get("clients") if isinstance(facts.get("clients"), Mapping) else {}
    assert isinstance(measured, Mapping)
    columns = {k: list(v) for k, v in measured.items() if len(v) == len(names)}
    tests = list(facts.get("evaluated_sizes") or ())
    split = str(facts.get("evaluated") or "test")
    heads = [
        Column("client", "client", text=True),
        Column("rows", "training rows", digits=0),
    ]
    values: list[Sequence[Any]] = [names, sizes]
    if len(tests) == len(names) and split != "train":
        heads.append(Column("evaluated", f"{split} rows", digits=0))
        values.append(tests)
    for title, levels, shares in _mixes(facts):
        if len(levels) <= 4:
            for j, level in enumerate(levels[1:] if len(levels) == 2 else levels):
                at = j + 1 if len(levels) == 2 else j
                heads.append(Column(f"{title} {level}", f"{title} {level}", digits=3))
                values.append([row[at] for row in shares])
        else:
            heads.append(Column(f"{title} most", f"most common {title}", text=True))
            values.append([_most_common(levels, row) for row in shares])
    for key, column in columns.items():
        heads.append(_head(key))
        values.append(column)
    kept, note = _kept(sizes, columns, most)
    rows = [tuple(Cell(column[k]) for column in values) for k in kept]
    notes = [note] if note else []
    notes += [_OFF] if any(not key.startswith(("feature", "relation")) for key in columns) else []
    notes += [_OFF_SD] if {"feature", "relation"} & set(columns) else []
    return Table("Clients", tuple(heads), tuple(rows), tuple(notes))


def _head(key: str) -> Column:
    if key in _COLUMNS:
        title, meaning = _COLUMNS[key]
        return Column(key, f"{title} off, sd", meaning, digits=2)
    what = key.removeprefix("group.")
    meaning = (
        f"Total variation distance between the client's shares of each {what} and those of all "
        "rows, beyond what is due to chance for a client of its size."
    )
    return Column(key, f"{what} off", meaning)


def _mixes(facts: Mapping[str, Any]) -> Iterable[tuple[str, list[str], list[Any]]]:
    """The label and each attribute: title, levels, and the clients' shares."""
    number = len(facts.get("names") or ())
    pairs = [("label", facts.get("labels"), facts.get("label_shares"))]
    groups = facts.get("groups")
    if isinstance(groups, Mapping):
        pairs += [(str(k), at.get("levels"), at.get("shares")) for k, at in groups.items()]
    for title, levels, shares in pairs:
        if levels and shares and len(shares) == number:
            yield title, [str(level) for level in levels], list(shares)


def _most_common(levels: Sequence[str], shares: Sequence[float]) -> str:
    top = max(range(len(shares)), key=lambda j: shares[j])
    return f"{levels[top]}: {100 * shares[top]:.0f} %"


def _kept(
    sizes: Sequence[float], columns: Mapping[str, Sequence[object]], most: int
) -> tuple[list[int], str]:
    """The clients to show: all, or a third each of the largest, most unusual and smallest."""
    every = list(range(len(sizes)))
    if len(every) <= most:
        return every, ""
    unusual = [
        max((at for column in columns.values() if (at := runs.number(column[k])) > 0), default=0.0)
        for k in every
    ]
    third = most // 3
    by_size = sorted(every, key=lambda k: -sizes[k])
    large, small = by_size[:third], by_size[-third:]
    left = [k for k in sorted(every, key=lambda k: -unusual[k]) if k not in {*large, *small}]
    most_unusual = left[: most - 2 * third]
    note = (
        f"The {len(large)} largest, the {len(most_unusual)} most unusual and the {len(small)} "
        f"smallest of {len(every):,} clients; {len(every) - most:,} are not shown."
    )
    return [*large, *most_unusual, *small], note


def headline(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The data in short: source, clients, rows, features, labels, groups."""
    sizes = facts.get("split_sizes") or {}
    rows = ", ".join(f"{rows:,} {split}" for split, rows in sizes.items() if rows)
    features = f"{facts.get('features', 0):,}"
    if facts.get("looked_at", facts.get("features")) != facts.get("features"):
        features += f" ({facts['looked_at']:,} of them, evenly spaced, were examined)"
    out = [
        ("Data", str(facts.get("source") or "")),
        ("Clients", f"{len(facts.get('names') or ()):,}"),
        ("Rows", rows),
        ("Features", features),
    ]
    out += [(title.capitalize() if title == "label" else title, _levels(facts, title, levels))
            for title, levels, _ in _mixes(facts)]  # fmt: skip
    return [(name, text) for name, text in out if text]


def _levels(facts: Mapping[str, Any], title: str, levels: Sequence[str]) -> str:
    """Each level with its share of all training rows; if there are many, their number."""
    holder = facts if title == "label" else facts["groups"][title]
    shares = holder["label_shares"] if title == "label" else holder["shares"]
    sizes = [float(size) for size in facts["sizes"]]
    total = sum(sizes) or 1.0
    totals = [
        sum(size * row[j] for size, row in zip(sizes, shares, strict=True)) / total
        for j in range(len(levels))
    ]
    shown = [f"{level}: {100 * share:.0f} %" for level, share in zip(levels, totals, strict=True)]
    return ", ".join(shown) if len(shown) <= 10 else f"{len(shown)} levels"


def p_value(p: object) -> str:
    """A p-value with three decimals, or `<0.001`; empty if there is none.

    >>> p_value(0.0312), p_value(1e-9), p_value(None)
    ('0.031', '<0.001', '')
    """
    at = runs.number(p)
    if math.isnan(at):
        return ""
    return "<0.001" if at < 0.001 else f"{at:.3f}"


def _sizes(record: Record) -> object:
    facts = record.facts.get("data")
    return facts.get("sizes") if isinstance(facts, Mapping) else None


def record(facts: dict[str, Any]) -> Record:
    """A record with data only, for the figure that shows it."""
    empty = Record("data", 0, {}, [], {}, {})
    return replace(empty, facts={"data": facts})
