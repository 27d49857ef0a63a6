"""What is known of the data before training, from `facts["data"]`: tables for page and terminal.

Runs made before a fact was kept lack it, so everything here may be missing.
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
    "feature": ("features", "Largest difference of a feature's mean to the others', in standard "
                "deviations, among rows with the same label; 0 where chance explains all."),
    "relation": ("relation", "Largest difference to the others in how a feature goes with the "
                 "label, in standard deviations; 0 where chance explains all."),
}  # fmt: skip

_OFF = "Off: total variation between the client's shares and the whole's, beyond chance."
_OFF_SD = (
    "Off, sd: the client's largest difference to the others in a feature's mean given the label, "
    "or in how a feature goes with the label; 0 where chance may be all."
)


@dataclass(frozen=True)
class Held:
    """One data set of a report: its name, and what there is to say of it."""

    name: str
    measures: Table | None
    clients: Table | None
    warnings: tuple[tuple[int, str], ...]  # weight, text
    note: str = ""


def held(records: Sequence[Record]) -> list[Held]:
    """What to say of each data set that the runs are on; nothing where nothing is known."""
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
        note = f"Of seed {method.runs[0].seed}; other seeds deal the rows anew." if seeds else ""
        one = Held(name, measures(facts), clients(facts, 1000), tuple(warnings(facts)), note)
        if one.measures or one.warnings:
            out.append(one)
    return out


def warnings(facts: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    """Weights and texts, as they are kept: the most important first."""
    for at in facts.get("warnings") or ():
        if isinstance(at, Mapping) and at.get("text"):
            yield int(at.get("weight") or 1), str(at["text"])


def measures(facts: Mapping[str, Any]) -> Table | None:
    """How clients differ: a row a measure."""
    heads = (
        Column("about", "what differs", text=True),
        Column("measure", "measure", text=True),
        Column("value", "value"),
        Column("where", "where most", text=True),
        Column("chance", "by chance", "What clients drawn at random from the whole would have."),
        Column("p", "p-value", "Of no difference between clients.", text=True),
    )
    rows = []
    last = ""
    for at in facts.get("measures") or ():
        about, name, value = str(at["about"]), str(at["name"]), at.get("value")
        whole = isinstance(value, float | int) and name.startswith("clients that differ")
        rows.append(
            (
                Cell(about if about != last else ""),
                Cell(name),
                Cell(value, digits=0 if whole else None),
                Cell(str(at.get("where") or "")),
                Cell(at["chance"]) if at.get("chance") is not None else Cell(""),
                Cell(p_value(at.get("p"))),
            )
        )
        last = about
    return Table("How clients differ", heads, tuple(rows)) if rows else None


def clients(facts: Mapping[str, Any], most: int = MOST) -> Table | None:
    """A row a client; of many the largest, the smallest and the oddest."""
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
            heads.append(Column(f"{title} most", f"commonest {title}", text=True))
            values.append([_commonest(levels, row) for row in shares])
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
        f"Total variation between the client's shares of each {what} and the whole's, beyond "
        "what chance gives a client of its size."
    )
    return Column(key, f"{what} off", meaning)


def _mixes(facts: Mapping[str, Any]) -> Iterable[tuple[str, list[str], list[Any]]]:
    """Labels and groups: what they are called, their levels, clients' shares."""
    number = len(facts.get("names") or ())
    pairs = [("label", facts.get("labels"), facts.get("label_shares"))]
    groups = facts.get("groups")
    if isinstance(groups, Mapping):
        pairs += [(str(k), at.get("levels"), at.get("shares")) for k, at in groups.items()]
    for title, levels, shares in pairs:
        if levels and shares and len(shares) == number:
            yield title, [str(level) for level in levels], list(shares)


def _commonest(levels: Sequence[str], shares: Sequence[float]) -> str:
    top = max(range(len(shares)), key=lambda j: shares[j])
    return f"{levels[top]}: {100 * shares[top]:.0f} %"


def _kept(
    sizes: Sequence[float], columns: Mapping[str, Sequence[Any]], most: int
) -> tuple[list[int], str]:
    """The clients to show: all, or a third each of the largest, the oddest, the smallest."""
    every = list(range(len(sizes)))
    if len(every) <= most:
        return every, ""
    odd = [
        max((at for column in columns.values() if (at := runs.number(column[k])) > 0), default=0.0)
        for k in every
    ]
    third = most // 3
    by_size = sorted(every, key=lambda k: -sizes[k])
    large, small = by_size[:third], by_size[-third:]
    left = [k for k in sorted(every, key=lambda k: -odd[k]) if k not in {*large, *small}]
    oddest = left[: most - 2 * third]
    note = (
        f"The {len(large)} largest, the {len(oddest)} oddest and the {len(small)} smallest of "
        f"{len(every):,} clients; {len(every) - most:,} are left out."
    )
    return [*large, *oddest, *small], note


def headline(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The data in a few words: source, clients, rows, features, labels, groups."""
    sizes = facts.get("split_sizes") or {}
    rows = ", ".join(f"{rows:,} {split}" for split, rows in sizes.items() if rows)
    features = f"{facts.get('features', 0):,}"
    if facts.get("looked_at", facts.get("features")) != facts.get("features"):
        features += f" ({facts['looked_at']:,} of them, evenly spaced, were looked at)"
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
    """Each level with its share of all training rows; of many, how many."""
    holder = facts if title == "label" else facts["groups"][title]
    shares = holder["label_shares"] if title == "label" else holder["shares"]
    sizes = [float(size) for size in facts["sizes"]]
    total = sum(sizes) or 1.0
    whole = [
        sum(size * row[j] for size, row in zip(sizes, shares, strict=True)) / total
        for j in range(len(levels))
    ]
    shown = [f"{level}: {100 * share:.0f} %" for level, share in zip(levels, whole, strict=True)]
    return ", ".join(shown) if len(shown) <= 10 else f"{len(shown)} levels"


def p_value(p: Any) -> str:
    """A p-value as papers print it.

    >>> p_value(0.0312), p_value(1e-9), p_value(None)
    ('0.031', '<0.001', '')
    """
    at = runs.number(p)
    if math.isnan(at):
        return ""
    return "<0.001" if at < 0.001 else f"{at:.3f}"


def _sizes(record: Record) -> Any:
    facts = record.facts.get("data")
    return facts.get("sizes") if isinstance(facts, Mapping) else None


def record(facts: dict[str, Any]) -> Record:
    """Data alone as a record, for the figure that shows it."""
    empty = Record("data", 0, {}, [], {}, {})
    return replace(empty, facts={"data": facts})
