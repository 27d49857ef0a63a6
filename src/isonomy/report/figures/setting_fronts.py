"""Error against a notion of fairness, for methods tried at several settings."""

from __future__ import annotations

from collections.abc import Sequence

from isonomy.metrics.names import find_metric
from isonomy.report import fronts
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Trace,
    Views,
    axis_titles,
    colour,
    dash,
    faint_colour,
    finite,
    go,
    metric_axis,
    plus_minus,
    safe,
    symbol,
)
from isonomy.runs.record import Record


def draw(records: list[Record]) -> Plot | None:
    """Error against each notion of fairness: one curve per method, one point per setting."""
    views = Views()
    for front in fronts.fronts(records):
        views.view(
            find_metric(front.notion).title,
            **axis_titles(x=metric_axis(front.notion), y="error<br>(lower)"),
        )
        for i, curve in enumerate(front.curves):
            for on in (False, True):
                points = [point for point in curve.points if point.on_front == on]
                if points:
                    views.add(_points(curve, points, i, on))
    return views.figure()


def _points(curve: fronts.Curve, points: Sequence[fronts.Point], i: int, on: bool) -> Trace:
    """Points of a curve: those on its front, or those beside it."""
    bars = {"thickness": 1, "width": 3, "color": faint_colour(i) if not on else colour(i)}
    symbols = [symbol(i) + "-open" * (not on) + "-dot" * (p.unmet > 0) for p in points]
    return go.Scatter(
        x=[finite(p.notion.mean) for p in points],
        y=[finite(p.error.mean) for p in points],
        error_x={"array": [p.notion.spread or 0 for p in points], **bars},
        error_y={"array": [p.error.spread or 0 for p in points], **bars},
        mode="lines+markers" if on else "markers",
        line={"color": colour(i), "width": 1.5, "dash": dash(i)},
        marker={
            "color": colour(i),
            "size": 11 if on else 8,
            "opacity": 1 if on else 0.55,
            "symbol": symbols,
        },
        name=safe(curve.name),
        legendgroup=str(i),
        showlegend=on,
        customdata=[
            [
                safe(p.method.label),
                plus_minus(p.error.spread),
                plus_minus(p.notion.spread),
                p.error.n,
                f"<br>bounds not met in {p.unmet}" if p.unmet else "",
            ]
            for p in points
        ],
        hovertemplate="%{customdata[0]}<br>error %{y:.4g}%{customdata[1]}<br>unfairness %{x:.4g}"
        "%{customdata[2]} (seeds: %{customdata[3]})%{customdata[4]}<extra></extra>",
    )


FIGURE = Kind(
    name="fronts",
    title="Error and fairness",
    caption=(
        "Each mark is one setting of a method: the mean over seeds, with bars for the sample "
        "standard deviation. Lower left is better. Filled marks joined by a line are on the "
        "method's front: no other setting of the method is better in both. A dot inside a mark "
        "means that the method's bounds were not met in some run. A setting that improves one "
        "notion of fairness may worsen another; select the notion in the box."
    ),
    draw=draw,
)
