"""Metrics over rounds: one line per method, with a band over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn, metric_axis, plus_minus, useful
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Band, Chart, Line, Points
from isonomy.runs.record import Record

Read = Callable[[Mapping[str, Any]], float | None]
"""Reads a value from a round's entry; None if the entry does not have it."""

_MANY_ROUNDS = 30  # above which single rounds have no marks


def draw(records: list[Record]) -> list[View]:
    """Metrics over rounds: one line per method, and a band over its seeds."""
    found = runs.methods(records)
    pages = [entry.get("metrics") or {} for record in records for entry in record.rounds]
    return drawn(
        View(
            metric.title,
            over_rounds(found, metric_axis(metric.name), partial(_metric, name=metric.name)),
            group,
        )
        for group, metric in useful(runs.metric_names(pages))
    )


def _metric(entry: Mapping[str, Any], name: str) -> float | None:
    metrics = entry.get("metrics") or {}
    return runs.number(metrics[name]) if name in metrics else None


def over_rounds(methods: list[Method], y: Axis, read: Read) -> Chart:
    """A line for each method with the value at two or more rounds; empty if there is none."""
    chart = Chart(Axis("round", whole=True), y)
    for i, method in enumerate(methods):
        at = _over_rounds(method, read)
        if len(at) < 2:
            continue  # a single round is no course; the tables have its number
        stats = {t: runs.stat(values) for t, values in at.items()}
        ts = sorted(stats)
        band = [t for t in ts if stats[t].spread is not None]
        if band:
            lows = [stats[t].mean - (stats[t].spread or 0) for t in band]
            tops = [stats[t].mean + (stats[t].spread or 0) for t in band]
            chart.add(Band(band, lows, tops, series=i))
        means = [stats[t].mean for t in ts]
        chart.add(Line(ts, means, series=i, name=method.title))
        if len(ts) <= _MANY_ROUNDS:
            tips = [
                f"{method.title}\nround {t}: {stats[t].mean:.4g}{plus_minus(stats[t].spread)} "
                f"(seeds: {stats[t].n})"
                for t in ts
            ]
            chart.add(Points(ts, means, series=i, name=method.title, tips=tips, size=3.2))
    return chart


def _over_rounds(method: Method, read: Read) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in method.runs:
        for entry in run.rounds:
            value = read(entry)
            if value is not None and "round" in entry:
                found.setdefault(int(entry["round"]), []).append(value)
    return {
        t: values for t, values in found.items() if math.isfinite(runs.stat(values).mean)
    }  # a round where all runs diverged is a gap in the line


FIGURE = Kind(
    name="curves",
    title="Over rounds",
    caption=(
        "Lines are means over seeds at each evaluated round; bands extend one sample standard "
        "deviation over seeds to either side."
    ),
    draw=draw,
)
