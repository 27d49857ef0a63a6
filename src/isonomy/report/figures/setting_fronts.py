"""Error against a notion of fairness, for methods tried at several settings."""

from __future__ import annotations

from collections.abc import Sequence

from isonomy.metrics.names import find_metric
from isonomy.report import fronts
from isonomy.report.figures.drawing import (
    Kind,
    View,
    drawn,
    error_axis,
    metric_axis,
    plus_minus,
)
from isonomy.report.svg import Axis, Chart, Line, Points
from isonomy.runs.record import Record


def draw(records: list[Record]) -> list[View]:
    """Error against each notion of fairness: one curve per method, one point per setting."""
    found = fronts.fronts(records)
    regression = not any("accuracy" in record.metrics for record in records)
    views = []
    for front in found:
        metric = find_metric(front.notion)
        if not metric.kind.endswith(("_overall", "_given_label")):
            chart = Chart(
                metric_axis(front.notion), metric_axis("loss") if regression else error_axis(Axis())
            )
            for i, curve in enumerate(front.curves):
                for on in (False, True):
                    points = [point for point in curve.points if point.on_front == on]
                    if points:
                        chart.add(*_points(curve, points, i, on))
            group = f"Groups of {metric.attribute}" if metric.attribute else "Between clients"
            views.append(View(metric.title, chart, group))
    return drawn(views)


def _points(
    curve: fronts.Curve, points: Sequence[fronts.Point], i: int, on: bool
) -> list[Line | Points]:
    """Points of a curve: those on its front, joined, or those beside it."""
    x, y = [p.notion.mean for p in points], [p.error.mean for p in points]
    tips = [
        f"{p.method.label}\nerror {p.error.mean:.4g}{plus_minus(p.error.spread)}\n"
        f"unfairness {p.notion.mean:.4g}{plus_minus(p.notion.spread)} (seeds: {p.error.n})"
        + (f"\nbounds not met in {p.unmet}" if p.unmet else "")
        for p in points
    ]
    marks = Points(
        x,
        y,
        series=i,
        name=curve.name if on else "",
        tips=tips,
        x_error=[p.notion.spread for p in points],
        y_error=[p.error.spread for p in points],
        size=5 if on else 4,
        hollow=not on,
    )
    return [Line(x, y, series=i), marks] if on else [marks]


FIGURE = Kind(
    name="fronts",
    title="Error and fairness",
    caption=(
        "Each mark is one setting of a method: the mean over seeds, with bars for the sample "
        "standard deviation. Lower left is better. Filled marks joined by a line are on the "
        "method's front: no other setting of the method is better in both. The text of a mark "
        "says if the method's bounds were not met in some run. A setting that improves one "
        "notion of fairness may worsen another; select the notion in the box."
    ),
    draw=draw,
)
