"""Seconds and bytes of each method."""

from __future__ import annotations

import math

from isonomy.report import runs
from isonomy.report.figures.drawing import (
    PALETTE,
    Kind,
    Plot,
    Views,
    axis_titles,
    go,
    safe,
)
from isonomy.runs.record import Record


def draw(records: list[Record]) -> Plot | None:
    """Seconds and bytes of each method."""
    found = runs.methods(records)
    views = Views()
    for name, way in (("seconds", ""), ("bytes.down", "down"), ("bytes.up", "up")):
        if name != "bytes.up":
            title = "seconds" if name == "seconds" else "traffic, bytes"
            views.view(title, **axis_titles(x=title))
        at = [(m, runs.stat(m.values(name))) for m in found if m.values(name)]
        at = [(m, stat) for m, stat in at if math.isfinite(stat.mean)]
        if not at:
            continue
        views.add(
            go.Bar(
                y=[safe(m.title) for m, _ in at],
                x=[stat.mean for _, stat in at],
                orientation="h",
                marker={"color": PALETTE[2 if way == "up" else 0]},
                name={"down": "server to clients", "up": "clients to server"}.get(way, "seconds"),
                showlegend=bool(way),
                error_x={
                    "array": [stat.spread or 0 for _, stat in at],
                    "thickness": 1.5,
                    "visible": not way and any(stat.spread for _, stat in at),
                    "color": PALETTE[8],
                },
                hovertemplate="%{y}: %{x:.4s}<extra></extra>",
            )
        )
    plot = views.figure(
        yaxis={"type": "category", "autorange": "reversed", "ticklabelstandoff": 6},
        xaxis={"rangemode": "tozero"},
        barmode="stack",
        height=170 + 38 * len(found),
    )
    return None if plot is None else plot.update_layout(legend={"traceorder": "normal"})


FIGURE = Kind(
    name="costs",
    title="Cost",
    caption=(
        "Means over seeds, with the sample standard deviation. Seconds depend on the machine "
        "and its load; bytes do not."
    ),
    draw=draw,
)
