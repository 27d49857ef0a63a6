"""Accuracy against a notion of fairness: one point per run."""

from __future__ import annotations

import math

from isonomy.metrics.names import find_metric
from isonomy.report import runs
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Views,
    axis_titles,
    colour,
    go,
    metric_axis,
    ordered,
    safe,
    symbol,
)
from isonomy.runs.record import Record


def draw(records: list[Record]) -> Plot | None:
    """Accuracy (loss for regression) against each metric: one point per run, and the means."""
    found = runs.methods(records)
    there = runs.metric_names(record.metrics for record in records)
    what = "accuracy" if "accuracy" in there else "loss"
    views = Views()
    for name in ordered(there):
        metric = find_metric(name)
        if name in ("accuracy", "loss") or metric.level is not None or metric.better is None:
            continue
        views.view(metric.title, **axis_titles(x=metric_axis(name), y=metric_axis(what)))
        for i, method in enumerate(found):
            points = [
                (x, y, run)
                for run in method.runs
                for x, y in [(runs.value(run, name), runs.value(run, what))]
                if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
            ]
            if not points:
                continue
            title, axis = safe(method.title), safe(metric.title)
            hover = f"<br>{what} %{{y:.4g}}<br>%{{customdata[2]}} %{{x:.4g}}"
            if len(points) > 1:
                views.add(
                    go.Scatter(
                        x=[x for x, _, _ in points],
                        y=[y for _, y, _ in points],
                        mode="markers",
                        marker={"color": colour(i), "size": 7, "symbol": f"{symbol(i)}-open"},
                        legendgroup=str(i),
                        showlegend=False,
                        customdata=[[title, run.seed, axis] for _, _, run in points],
                        hovertemplate="%{customdata[0]}, seed %{customdata[1]}"
                        f"{hover}<extra></extra>",
                    )
                )
            views.add(
                go.Scatter(
                    x=[sum(x for x, _, _ in points) / len(points)],
                    y=[sum(y for _, y, _ in points) / len(points)],
                    mode="markers",
                    marker={
                        "color": colour(i),
                        "size": 15,
                        "symbol": symbol(i),
                        "line": {"width": 1, "color": "white"},
                    },
                    name=title,
                    legendgroup=str(i),
                    customdata=[[title, "mean" if len(points) > 1 else "one run", axis]],
                    hovertemplate=f"%{{customdata[0]}}, %{{customdata[1]}}{hover}<extra></extra>",
                )
            )
    return views.figure()


FIGURE = Kind(
    name="tradeoff",
    title="Accuracy and fairness",
    caption=(
        "Each small mark is one run, and each large mark is the mean of a method over seeds, at "
        "the last evaluation."
    ),
    draw=draw,
)
