"""Tables of metrics: methods side by side, and every metric of every method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from isonomy.core.notions import NOTIONS, SINGLE_RATE
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.client import Better
from isonomy.metrics.names import Metric, find_metric
from isonomy.metrics.summary import LEVEL
from isonomy.report import runs
from isonomy.report.phrases import listed
from isonomy.report.runs import Method
from isonomy.report.tables import remarks
from isonomy.report.tables.best import RULE, best, of_use, values
from isonomy.report.tables.cells import ABSENT, UNDEFINED, Cell, Column, digits_for
from isonomy.report.tables.table import Table
from isonomy.report.tables.verdict import outcomes
from isonomy.runs.record import Record

_ATTACK = "attack (benign clients measured)"


def comparison(
    records: list[Record], columns: list[str] | None = None, title: str = "Comparison of methods"
) -> Table:
    """Methods side by side: one row per method, mean and standard deviation over seeds.

    Runs belong to the same method if they have the same label and the same configuration except
    for the seed. A run that stopped early is left out if other runs of the method finished. The
    last row of each data set is the constant prediction of the most frequent class. The best value
    of a column is marked among methods on the same data as `best` defines it. If there are several
    protected attributes, gaps are those of the worst attribute; a column such as
    `group.*.demographic_parity` asks for it. Raises ConfigError for a column that no run has.
    """
    found = runs.methods(records)
    names = default_columns(records) if columns is None else _known(columns, records)
    several = len({method.data for method in found}) > 1
    heads = [Column("method", "method", text=True)]
    heads += [Column("data", "data", text=True)] if several else []
    attacked = any(runs.attack(record) for record in records)
    heads += [Column(_ATTACK, _ATTACK, text=True)] if attacked else []
    judged = any(record.verdict is not None for record in records)
    heads += [Column("verdict", "verdict", text=True)] if judged else []
    constants = {data: runs.constant([m for m in found if m.data == data])
                 for data in dict.fromkeys(method.data for method in found)}  # fmt: skip
    remarked = remarks.of_methods(found, constants, objectives(names))
    heads += [Column("remark", "remark", text=True)] if any(remarked) else []
    rows: list[list[Cell]] = []
    for method, remark in zip(found, remarked, strict=True):
        row = [Cell(method.label)]
        row += [Cell(method.data)] if several else []
        row += [Cell(runs.attack(method.runs[0]) or "none")] if attacked else []
        row += [Cell(outcomes(method.runs))] if judged else []
        rows.append([*row, *([Cell(remark)] if any(remarked) else [])])
    fixed = {data: at for data, at in constants.items() if any(n in at for n in names)}
    below: list[list[Cell]] = []
    for data in fixed:
        row = [Cell(runs.CONSTANT), *([Cell(data)] if several else [])]
        below.append([*row, *[Cell("")] * (len(heads) - len(row))])
    for name in names:
        cells = [_cell(method, name) for method in found]
        column = _column(name, cells, records)
        heads.append(column)
        for row, cell in zip(rows, _marked(cells, column, found, constants), strict=True):
            row.append(cell)
        for row, at in zip(below, fixed.values(), strict=True):
            row.append(Cell(at.get(name, at.get(name.replace("*", _first(records))))))
    return Table(
        title,
        tuple(heads),
        tuple(tuple(row) for row in (*rows, *below)),
        tuple(_footnotes(found, heads, rows, fixed)),
        f"a value that is {RULE}",
    )


def objectives(names: Sequence[str]) -> dict[str, Better]:
    """The columns in which a method can be worse than another, without costs."""
    found = {name: _metric(name) for name in names}
    return {n: m.better for n, m in found.items() if m.better and m.over != "run"}


def _first(records: Sequence[Record]) -> str:
    return next(iter(runs.attributes(records)), "")


def everything(records: list[Record]) -> Table:
    """Every metric of every method: one row per metric, one column per method."""
    found = runs.methods(records)
    names = [*runs.metric_names(r.metrics for r in records), "seconds", "bytes"]
    constants = {m.data: runs.constant([o for o in found if o.data == m.data]) for m in found}
    heads = [Column("metric", "metric", text=True)]
    heads += [Column(m.title, m.title + ("" if m.finished else " (unfinished)")) for m in found]
    rows = []
    for name in dict.fromkeys(names):
        cells = [_cell(method, name) for method in found]
        if all(cell.value is None for cell in cells):
            continue
        column = replace(_column(name, cells), scale=1.0)
        digits = 0 if name.startswith("bytes") else column.digits
        marked = _marked(cells, replace(column, digits=digits), found, constants)
        rows.append((Cell(name), *(replace(cell, digits=digits) for cell in marked)))
    notes = tuple(_run_notes(found, rows))
    return Table("Every metric", tuple(heads), tuple(rows), notes, f"a value that is {RULE}")


def default_columns(records: Sequence[Record]) -> list[str]:
    """Accuracy (or loss), clients, groups, excess risk, costs: those that the runs have."""
    there = set(runs.metric_names(r.metrics for r in records))
    what = "accuracy" if "accuracy" in there else "loss"
    wanted = [what, "balanced_accuracy", "auc", f"client.{what}.worst10", f"client.{what}.std"]
    wanted += [
        f"group.{name}.{gap}"
        for gap in (*(NOTIONS[code].name for code in SINGLE_RATE), "max_loss")
        for name in (runs.WORST if len(runs.attributes(records)) > 1 else _first(records),)
    ]
    if any("preference.0" in record.front for record in records):
        wanted += ["hv.local", "hv.global"]
        named = runs.metric_names(r.metrics for r in records)
        wanted += [
            name
            for name in named
            if name.startswith("front.least.") and not name.startswith("front.least.error.")
        ]
    wanted += ["faa", "clusters", "seconds", "bytes"]
    return [n for n in wanted if any(runs.value(record, n) is not None for record in records)]


def gap_columns(records: Sequence[Record]) -> list[str]:
    """The gaps of every protected attribute, by notion; the worst attribute first."""
    names = [
        f"group.{attribute}.{NOTIONS[code].name}"
        for code in SINGLE_RATE
        for attribute in runs.worst_first(records, NOTIONS[code].name)
    ]
    return [n for n in names if any(runs.value(record, n) is not None for record in records)]


def _known(columns: Sequence[str], records: Sequence[Record]) -> list[str]:
    for name in columns:
        if all(runs.value(record, name) is None for record in records):
            there = [*runs.metric_names(r.metrics for r in records), "seconds", "bytes"]
            raise ConfigError(unknown("metric", name, there))
    return list(columns)


def _cell(method: Method, name: str) -> Cell:
    values = method.values(name)
    of = len(method.runs)
    if not values:
        return Cell(of=of)
    stat = runs.stat(values)
    ends = runs.interval(method.runs[0], name) if of == 1 else None
    low, high = ends or (None, None)
    worst = runs.worst_attribute(method.runs, name)
    return Cell(stat.mean, stat.spread, low, high, stat.n, of, note=worst)


def _metric(name: str) -> Metric:
    """The metric of a column; of the worst attribute, with a title that says so."""
    metric = find_metric(name)
    if metric.attribute != runs.WORST:
        return metric
    title = metric.title.replace(f"({runs.WORST})", "of the worst attribute")
    return replace(metric, title=title)


def _column(name: str, cells: Sequence[Cell], records: Sequence[Record] = ()) -> Column:
    values = [cell.value for cell in cells if isinstance(cell.value, float)]
    spreads = [cell.spread for cell in cells]
    metric = _metric(name)
    meaning = metric.meaning()
    if metric.attribute == runs.WORST:
        each = ", ".join(runs.attributes(records))
        meaning = meaning.replace(f" of {runs.WORST}", f" of one attribute, the worst of {each}")
    title, scale = metric.title, 1.0
    if name.startswith("bytes"):
        top = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
        scale, unit = next(
            (at for at in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if top >= at[0]),
            (1.0, "B"),
        )
        title = f"{title} ({unit})"
    scaled = [None if at is None else at / scale for at in spreads]
    digits = digits_for([v / scale for v in values], scaled)
    if name.startswith("bytes"):
        digits = min(digits, 2) if scale > 1 else 0
    if name in ("client.number", "client.left_out", "clusters") and not any(scaled):
        digits = 0
    return Column(
        name,
        title,
        meaning,
        metric.better,
        metric.scope,
        digits=digits,
        scale=scale,
    )


def _marked(
    cells: Sequence[Cell],
    column: Column,
    found: Sequence[Method],
    constants: Mapping[str, Mapping[str, float]],
) -> list[Cell]:
    """The cells with the best value on each data set marked."""
    marked: set[int] = set()
    for data in {method.data for method in found} if column.better else ():
        given = {
            i: at
            for i, method in enumerate(found)
            if method.data == data and of_use(method, constants.get(data, {}))
            if (at := values(method, column.name)) is not None
        }
        if column.better:
            marked |= best(given, column.better, exact=column.name.startswith("bytes"))
    return [replace(cell, best=i in marked) for i, cell in enumerate(cells)]


def _footnotes(
    found: Sequence[Method],
    heads: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    constants: Mapping[str, Mapping[str, float]],
) -> list[str]:
    notes = []
    for column in heads:
        if not column.text:
            way = f" {column.better.capitalize()} is better." if column.better else ""
            notes.append(f"{column.title}: {column.meaning}{way}")
    if any(column.name == "faa" for column in heads):
        notes += remarks.surrogates([run for method in found for run in method.runs])
    if any(column.name == "clusters" for column in heads):
        notes += remarks.clusters(found)
    if constants:
        notes.append(
            f"{runs.CONSTANT}: the most frequent class of the training labels for every example. "
            "Its gaps between groups are 0 by definition, so it is of no use, and neither is a "
            "model that is less accurate; such values are never marked as best."
        )
    return notes + remarks.one_class(found) + _run_notes(found, rows)


def _run_notes(found: Sequence[Method], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Which runs, clients and rounds the numbers are from."""
    cells = [cell for row in rows for cell in row]
    notes = []
    seeds = {tuple(run.seed for run in method.runs) for method in found}
    if len(seeds) == 1:
        (only,) = seeds
        of = f"seed {only[0]}" if len(only) == 1 else f"{len(only)} seeds ({listed(only)})"
        notes.append(f"Values are from one run, {of}." if len(only) == 1 else f"Means over {of}.")
    else:
        each = (f"{m.title} {len(m.runs)} ({listed([r.seed for r in m.runs])})" for m in found)
        notes.append(f"Means over seeds: {'; '.join(each)}.")
    if any(cell.spread is not None for cell in cells):
        notes.append("± is the sample standard deviation over seeds (divided by n - 1).")
    if any(cell.low is not None for cell in cells):
        notes.append(
            f"[low, high] is the {LEVEL:.0%} bootstrap interval over clients of the single run."
        )
    if any(0 < cell.n < cell.of for cell in cells):
        notes.append(
            "(n of m): the mean is over the n seeds that have a value; for the others it is "
            "undefined or absent. These values are never marked as best."
        )
    if any(isinstance(c.value, float) and math.isnan(c.value) for c in cells):
        notes.append(
            f"{UNDEFINED}: the number is not defined, for instance because a group is empty or "
            "training diverged."
        )
    if any(cell.value is None for cell in cells):
        notes.append(f"{ABSENT}: not measured in these runs.")
    if len({method.data for method in found}) > 1:
        notes.append("Methods are compared only with methods on the same data.")
    notes += _attacks(found)
    for method in found:
        at = next(
            (e["metrics_at"] for e in reversed(method.runs[0].rounds) if "metrics_at" in e), ""
        )
        if at:
            of = f", seed {method.runs[0].seed}" if len(method.runs) > 1 else ""
            notes.append(f"{method.title}{of}: {at}")
        if not method.finished:
            at = ", ".join(str(runs.last_round(run)) for run in method.runs if not run.complete)
            notes.append(
                f"{method.title}: unfinished. Its numbers are from the last evaluation up to round "
                f"{at}, and are never marked as best."
            )
        if method.unfinished:
            which = listed([run.seed for run in method.unfinished])
            notes.append(f"{method.title}: seed {which} did not finish and is left out.")
        if method.repeated:
            which = listed([run.seed for run in method.repeated])
            notes.append(f"{method.title}: seed {which} was run again; the last run is used.")
    rounds = {m.title: {runs.last_round(run) for run in m.runs} - {None} for m in found}
    if len(set().union(*rounds.values())) > 1:
        each = (f"{title} {listed(sorted(at, key=str))}" for title, at in rounds.items())
        notes.append(f"The number of rounds differs: {'; '.join(each)}.")
    return notes + _left_out(found)


def _attacks(found: Sequence[Method]) -> list[str]:
    """One note per attack: metrics are those of the benign clients only."""
    methods_by_text: dict[str, list[str]] = {}
    for method in found:
        if what := runs.attack(method.runs[0]):
            methods_by_text.setdefault(what, []).append(method.title)
    return [
        f"Under attack ({what}), metrics are those of the benign clients only"
        + ("." if len(titles) == len(found) else f": {', '.join(titles)}.")
        for what, titles in methods_by_text.items()
    ]


def _left_out(found: Sequence[Method]) -> list[str]:
    """Which clients `client.*` leaves out; one note if they are the same for all methods."""
    methods_by_text: dict[str, list[str]] = {}
    for method in found:
        names = list(dict.fromkeys(n for run in method.runs for n in runs.left_out(run)))
        counts = [runs.number(run.metrics.get("client.left_out", 0)) for run in method.runs]
        if names:
            methods_by_text.setdefault(listed(names), []).append(method.title)
        elif any(count > 0 for count in counts):
            methods_by_text.setdefault(f"{max(counts):.0f} clients", []).append(method.title)
    return [
        f"Left out of the metrics over clients (no examples in the evaluated split): {who}"
        + ("." if len(titles) == len(found) else f" (in {', '.join(titles)}).")
        for who, titles in methods_by_text.items()
    ]
