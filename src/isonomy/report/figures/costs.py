"""Seconds and bytes of each method."""

from __future__ import annotations

import math

from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Bars, Chart
from isonomy.runs.record import Record


def draw(records: list[Record]) -> list[View]:
    """Seconds and bytes of each method."""
    found = runs.methods(records)
    return drawn(
        [View("seconds", _chart(found, "seconds")), View("traffic", _chart(found, "bytes"))]
    )


def _chart(found: list[Method], what: str) -> Chart:
    names = [method.title for method in found]
    unit = "bytes sent" if what == "bytes" else "seconds of a run"
    chart = Chart(
        Axis(unit, zero=True), Axis(names=names, reverse=True), height=30 + 34 * len(names)
    )
    ways = ("bytes.down", "bytes.up") if what == "bytes" else ("seconds",)
    titles = {"bytes.down": "server to clients", "bytes.up": "clients to server"}
    starts = [0.0] * len(found)
    for j, name in enumerate(ways):
        stats = [runs.stat(method.values(name)) for method in found]
        at = [i for i, stat in enumerate(stats) if math.isfinite(stat.mean) and stat.n]
        if not at:
            continue
        tips = [f"{names[i]}: {stats[i].mean:,.4g} {titles.get(name, 'seconds')}" for i in at]
        chart.add(
            Bars(
                at,
                [starts[i] for i in at],
                [starts[i] + stats[i].mean for i in at],
                series=2 * j,
                name=titles.get(name, ""),
                tips=tips,
                error=[stats[i].spread for i in at] if name == "seconds" else None,
                horizontal=True,
                width=0.65,
            )
        )
        for i in at:
            starts[i] += stats[i].mean
    return chart


FIGURE = Kind(
    name="costs",
    title="Cost",
    caption=(
        "Means over seeds, with the sample standard deviation. Seconds depend on the machine "
        "and its load; bytes do not."
    ),
    draw=draw,
)
