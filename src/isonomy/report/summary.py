"""A comparison in a few sentences: gaps of every attribute, what is best, what is of no use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isonomy.core.notions import NOTIONS, SINGLE_RATE
from isonomy.metrics.client import Better
from isonomy.report import runs
from isonomy.report.phrases import listed
from isonomy.report.runs import Method
from isonomy.report.tables import Table, comparison, shown
from isonomy.report.tables.best import below_constant, dominated, of_use
from isonomy.report.tables.methods import objectives
from isonomy.runs.record import Record

_NAMED = 12


def sentences(records: list[Record], table: Table | None = None) -> list[str]:
    """The summary of a comparison; without a common data set, only what did not finish."""
    found = runs.methods(records)
    out = _unfinished(found)
    if len({method.data for method in found}) > 1:
        return out
    made = comparison(records) if table is None else table
    names = [column.name for column in made.columns if not column.text]
    out += _gaps(found)
    constant = runs.constant(found)
    if len(found) > 1:
        out += _best(made)
        out += _dominated(found, constant, objectives(names))
    return out + _constant(found, constant)


def _gaps(found: Sequence[Method]) -> list[str]:
    """For each notion, the least and the largest gap over methods, the worst attribute first."""
    out = []
    every = runs.attributes(run for method in found for run in method.runs)
    for code in SINGLE_RATE:
        ranges = []
        for attribute in every:
            name = f"group.{attribute}.{NOTIONS[code].name}"
            means = [(runs.stat(m.values(name)), m.label) for m in found if m.values(name)]
            known = sorted((stat.mean, label) for stat, label in means if stat.n)
            if known:
                low, high = known[0], known[-1]
                text = f"{attribute} {high[0]:.3f} ({high[1]})"
                if len(known) > 1 and f"{low[0]:.3f}" != f"{high[0]:.3f}":
                    text = f"{attribute} {low[0]:.3f} ({low[1]}) to {high[0]:.3f} ({high[1]})"
                ranges.append((-high[0], text if len(found) > 1 else f"{attribute} {high[0]:.3f}"))
        if ranges:
            title = NOTIONS[code].title.replace(" ", "-")
            which = ", the worst attribute first" if len(ranges) > 1 else ""
            each = "; ".join(text for _, text in sorted(ranges))
            out.append(f"{title[:1].upper()}{title[1:]} gap{which}: {each}.")
    return out


def _best(table: Table) -> list[str]:
    """Which methods are best beyond chance, in one sentence."""
    items = []
    for i, column in enumerate(table.columns):
        marked = [row for row in table.rows if row[i].best]
        if marked and column.scope != "per run":
            top = "highest" if column.better == "higher" else "lowest"
            who = listed([str(row[0].value) for row in marked], _NAMED)
            items.append(f"{top} {column.title} {who} ({shown(marked[0][i], column)})")
    if not items:
        return [
            "In no column but costs is one method better than all others beyond chance; more seeds "
            "may show differences."
        ]
    return [f"Better than all others beyond chance: {'; '.join(items)}."]


def _dominated(
    found: Sequence[Method], constant: Mapping[str, float], columns: Mapping[str, Better]
) -> list[str]:
    usable = [of_use(method, constant) for method in found]
    worse = dominated(columns, found, usable)
    by: dict[int, list[str]] = {}
    for i, j in worse.items():
        by.setdefault(j, []).append(found[i].label)
    return [
        f"Worse than {found[j].label} in the mean of every column but costs: {', '.join(labels)}."
        for j, labels in by.items()
    ]


def _constant(found: Sequence[Method], constant: Mapping[str, float]) -> list[str]:
    if "accuracy" not in constant:
        return []
    below = [method.label for method in found if below_constant(method, constant)]
    classes = [m.label for m in found if any(runs.only_class(run) for run in m.runs)]
    text = (
        f"Predicting the most frequent class for everyone has accuracy {constant['accuracy']:.3f}"
    )
    text += f"; less accurate: {', '.join(below)}" if below else ""
    text += f"; predict one class for everyone: {', '.join(classes)}" if classes else ""
    return [f"{text}."]


def _unfinished(found: Sequence[Method]) -> list[str]:
    out = []
    for method in found:
        for run in (*method.runs, *method.unfinished):
            if text := runs.state(run):
                out.append(f"{method.title}, seed {run.seed}: {text}.")
    return out
