"""The rates, accuracy and loss of each protected group."""

from __future__ import annotations

import math

from isonomy.metrics.names import find_metric
from isonomy.metrics.registry import RATES
from isonomy.report import runs
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Views,
    axis_titles,
    colour,
    go,
    metric_axis,
    name_ticks,
    plus_minus,
    safe,
    symbol,
)
from isonomy.runs.record import Record


def draw(records: list[Record]) -> Plot | None:
    """The rates, accuracy and loss of each protected group: one point per method."""
    found = runs.methods(records)
    rates: dict[tuple[str, str], dict[str, str]] = {}
    for name in runs.metric_names(record.metrics for record in records):
        metric = find_metric(name)
        if metric.attribute is not None and metric.level is not None:
            rates.setdefault((metric.attribute, metric.kind), {})[metric.level] = name
    order = [*(r for r in RATES if RATES[r].binary), "accuracy", "loss"]
    views = Views()
    for (attribute, what), levels in sorted(rates.items(), key=lambda r: order.index(r[0][1])):
        views.view(
            f"{RATES[what].title} by {attribute}",
            **axis_titles(x=safe(attribute), y=metric_axis(what, "over examples")),
            **name_ticks(list(levels)),
            **{"xaxis.range": [-0.6, len(levels) - 0.4]},
        )
        width = 0.5 / len(found)
        for i, method in enumerate(found):
            stats = [(k, runs.stat(method.values(name))) for k, name in enumerate(levels.values())]
            stats = [(k, at) for k, at in stats if math.isfinite(at.mean)]
            if not stats:
                continue
            shift = width * (i - (len(found) - 1) / 2)
            title = safe(method.title)
            level_names = [safe(level) for level in levels]
            views.add(
                go.Scatter(
                    x=[k + shift for k, _ in stats],
                    y=[at.mean for _, at in stats],
                    error_y={
                        "array": [at.spread or 0 for _, at in stats],
                        "thickness": 1.5,
                        "width": 4,
                        "visible": any(at.spread for _, at in stats),
                    },
                    mode="markers",
                    marker={"color": colour(i), "size": 11, "symbol": symbol(i)},
                    name=title,
                    customdata=[[title, plus_minus(at.spread), level_names[k]] for k, at in stats],
                    hovertemplate="%{customdata[0]}<br>%{customdata[2]}: %{y:.4g}"
                    "%{customdata[1]}<extra></extra>",
                )
            )
    return views.figure(xaxis={"showgrid": False})


FIGURE = Kind(
    name="groups",
    title="Between groups",
    caption=(
        "Each point is one protected group, over all clients' examples together, at the last "
        "evaluation; values are means over seeds. Bars show the sample standard deviation over "
        "seeds."
    ),
    draw=draw,
)
