"""Metrics over rounds: one line per method, with a band over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from isonomy.metrics.names import find_metric
from isonomy.report import runs
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Views,
    axis_titles,
    colour,
    dash,
    faint_colour,
    finite,
    go,
    metric_axis,
    ordered,
    plus_minus,
    safe,
    symbol,
)
from isonomy.report.runs import Method
from isonomy.runs.record import Record

Read = Callable[[Mapping[str, Any]], float | None]
"""Reads a value from a round's entry; None if the entry does not have it."""


def draw(records: list[Record]) -> Plot | None:
    """Any metric over rounds: one line per method, and a band over its seeds."""
    found = runs.methods(records)
    pages = [entry.get("metrics") or {} for record in records for entry in record.rounds]
    views = Views()
    for name in ordered(runs.metric_names(pages)):
        views.view(find_metric(name).title, **axis_titles(y=metric_axis(name)))
        add_lines(views, found, partial(_metric, name=name))
    return over_rounds(views)


def _metric(entry: Mapping[str, Any], name: str) -> float | None:
    metrics = entry.get("metrics") or {}
    return runs.number(metrics[name]) if name in metrics else None


def add_lines(views: Views, methods: list[Method], read: Read) -> None:
    """Add to the current view a line for each method whose rounds have the value."""
    for i, method in enumerate(methods):
        at = _over_rounds(method, read)
        if not at:
            continue
        stats = {t: runs.stat(values) for t, values in at.items()}
        ts = sorted(stats)
        means = [finite(stats[t].mean) for t in ts]
        band = [t for t in ts if stats[t].spread is not None]
        if band:
            tops = [stats[t].mean + (stats[t].spread or 0) for t in band]
            lows = [stats[t].mean - (stats[t].spread or 0) for t in band]
            views.add(
                go.Scatter(
                    x=band + band[::-1],
                    y=[finite(v) for v in tops + lows[::-1]],
                    fill="toself",
                    fillcolor=faint_colour(i),
                    line={"width": 0},
                    mode="lines",
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup=str(i),
                )
            )
        views.add(
            go.Scatter(
                x=ts,
                y=means,
                name=safe(method.title),
                legendgroup=str(i),
                mode="lines+markers" if len(ts) <= 30 else "lines",
                line={"color": colour(i), "width": 2, "dash": dash(i)},
                marker={"size": 5, "symbol": symbol(i)},
                customdata=[
                    [plus_minus(stats[t].spread), stats[t].n, safe(method.title)] for t in ts
                ],
                hovertemplate="%{customdata[2]}<br>round %{x}: %{y:.4g}"
                "%{customdata[0]} (seeds: %{customdata[1]})<extra></extra>",
            )
        )


def over_rounds(views: Views) -> Plot | None:
    """The figure of such views, with rounds on its x axis."""
    plot = views.figure(xaxis={"title": {"text": "round"}, "tickformat": "d"})
    if plot is not None and max(len(trace.x) for trace in plot.data) == 1:
        plot.update_xaxes(nticks=3)
    return plot


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
