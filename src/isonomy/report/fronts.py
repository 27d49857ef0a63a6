"""Trade-off fronts: error against each notion of fairness, for methods run at several settings.

Runs whose config has the same `series` are one method at several settings, and form one curve. The
point of a setting is its mean over seeds. The front of a series consists of the points that no
other point of the series beats in both coordinates. Its hypervolume is the area that they dominate
up to a reference point, which is the same for all series: 10 % beyond the worst value of any run,
in each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isonomy.core.notions import NOTIONS
from isonomy.metrics.front import hypervolume, nondominated
from isonomy.metrics.names import find_metric
from isonomy.report import runs
from isonomy.report.runs import Method, Stat
from isonomy.report.tables import Cell, Column, Table
from isonomy.runs.record import Record

BEYOND = 1.1  # the reference point divided by the worst value
_FIRST = ("max_loss", *(notion.name for notion in NOTIONS.values()))

Pairs = dict[int, tuple[float, float]]
"""(error, unfairness) by seed."""


@dataclass(frozen=True)
class Point:
    """One setting: its error and unfairness over seeds, and whether it is on the front."""

    method: Method
    error: Stat
    notion: Stat
    on_front: bool

    @property
    def unmet(self) -> int:
        """The number of runs whose verdict is not `met`."""
        return sum(
            run.verdict is not None and run.verdict["status"] != "met" for run in self.method.runs
        )


@dataclass(frozen=True)
class Curve:
    """A series: its points ordered by unfairness, and its hypervolume over seeds."""

    name: str
    points: tuple[Point, ...]
    volume: Stat


@dataclass(frozen=True)
class Front:
    """All series against one notion of fairness, and the reference (error, unfairness)."""

    notion: str
    curves: tuple[Curve, ...]
    reference: tuple[float, float]


def fronts(records: Sequence[Record]) -> list[Front]:
    """One front per notion of fairness; none if no method was run at several settings."""
    series: dict[str, list[Method]] = {}
    for method in runs.methods(records):
        name = str(method.runs[0].config.get("series") or method.label)
        title = f"{name} on {method.data}" if method.title != method.label else name
        series.setdefault(title, []).append(method)
    if max(len(members) for members in series.values()) < 2:
        return []
    found = [_front(name, series) for name in notions(records)]
    return [front for front in found if front is not None]


def notions(records: Sequence[Record]) -> list[str]:
    """The metrics on the x axis of a front: gaps and worst losses, for which lower is better."""
    there = runs.metric_names(record.metrics for record in records)
    metrics = [find_metric(name) for name in there]
    names = [m.name for m in metrics if m.compares_groups and m.better == "lower"]

    def place(name: str) -> tuple[int, int]:
        kind = name.rpartition(".")[2]
        return _FIRST.index(kind) if kind in _FIRST else len(_FIRST), names.index(name)

    return [*sorted(names, key=place), *(n for n in ("client.accuracy.std",) if n in there)]


def error_of(run: Record) -> float | None:
    """The share predicted incorrectly; for regression, the loss."""
    accuracy = runs.value(run, "accuracy")
    return runs.value(run, "loss") if accuracy is None else 1 - accuracy


def _front(notion: str, series: dict[str, list[Method]]) -> Front | None:
    at = {
        name: [(m, pairs) for m in members if (pairs := _pairs(m, notion))]
        for name, members in series.items()
    }
    everyone = [p for members in at.values() for _, pairs in members for p in pairs.values()]
    if not everyone:
        return None
    worst = [max(p[i] for p in everyone) for i in (0, 1)]
    reference = (BEYOND * worst[0] or 1.0, BEYOND * worst[1] or 1.0)
    curves = [_curve(name, members, reference) for name, members in at.items() if members]
    return Front(notion, tuple(curves), reference)


def _pairs(method: Method, notion: str) -> Pairs:
    """The (error, unfairness) of each seed that has both."""
    found = {}
    for run in method.runs:
        error, value = error_of(run), runs.value(run, notion)
        if error is not None and value is not None and math.isfinite(error + value):
            found[run.seed] = (error, value)
    return found


def _curve(name: str, members: list[tuple[Method, Pairs]], reference: tuple[float, float]) -> Curve:
    stats = [
        (m, runs.stat(e for e, _ in pairs.values()), runs.stat(v for _, v in pairs.values()))
        for m, pairs in members
    ]
    kept = nondominated([[error.mean, value.mean] for _, error, value in stats])
    points = [Point(m, e, v, bool(on)) for (m, e, v), on in zip(stats, kept, strict=True)]
    seeds = sorted({seed for _, pairs in members for seed in pairs})
    volumes = [hypervolume([p[s] for _, p in members if s in p], reference) for s in seeds]
    order = sorted(points, key=lambda point: (point.notion.mean, point.error.mean))
    return Curve(name, tuple(order), runs.stat(volumes))


# --- tables ---------------------------------------------------------------------------------------


def points_table(found: Sequence[Front]) -> Table:
    """Every point on a front: for each notion and series, the settings to choose from."""
    heads = (
        Column("notion", "fairness notion", text=True),
        Column("series", "method", text=True),
        Column("setting", "setting", text=True),
        Column("error", "error", better="lower"),
        Column("value", "unfairness", better="lower"),
        Column("unmet", "not met", digits=0),
    )
    rows = []
    for front in found:
        for curve in front.curves:
            for point in curve.points:
                if point.on_front:
                    rows.append(
                        (
                            Cell(find_metric(front.notion).title),
                            Cell(curve.name),
                            Cell(point.method.label),
                            _cell(point.error),
                            _cell(point.notion),
                            Cell(float(point.unmet)),
                        )
                    )
    note = (
        "Settings of a method that no other of its settings beats in both error and unfairness; "
        "means over seeds, ± the standard deviation. Not met: the number of runs whose verdict is "
        "another than 'met'."
    )
    return Table("Pareto points", heads, tuple(rows), (note,))


def volumes_table(found: Sequence[Front]) -> Table:
    """The hypervolume of each series: one row per notion, one column per series."""
    names = list(dict.fromkeys(curve.name for front in found for curve in front.curves))
    heads = [Column("notion", "fairness notion", text=True)]
    heads += [Column("reference", "reference (error, unfairness)", text=True)]
    heads += [Column(name, name, digits=4) for name in names]
    rows = []
    for front in found:
        by = {curve.name: curve.volume for curve in front.curves}
        best = max(volume.mean for volume in by.values())
        cells = [
            Cell(by[n].mean, spread=by[n].spread, n=by[n].n, best=by[n].mean == best, digits=4)
            if n in by
            else Cell(None)
            for n in names
        ]
        reference = f"{front.reference[0]:.3f}, {front.reference[1]:.3f}"
        rows.append((Cell(find_metric(front.notion).title), Cell(reference), *cells))
    note = (
        "The area that a method's points dominate up to the reference point, which is 10 % beyond "
        "the worst run's error and unfairness. Larger is better; values are comparable only within "
        "a row."
    )
    return Table("Hypervolume", tuple(heads), tuple(rows), (note,))


def _cell(stat: Stat) -> Cell:
    return Cell(stat.mean, spread=stat.spread, n=stat.n, digits=4)
