"""The rates, accuracy and loss of each protected group."""

from __future__ import annotations

import math

from isonomy.metrics.names import find_metric
from isonomy.metrics.registry import RATES
from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn, metric_axis, plus_minus
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Chart, Points
from isonomy.runs.record import Record


def draw(records: list[Record]) -> list[View]:
    """The rates, accuracy and loss of each protected group: one point per method."""
    found = runs.methods(records)
    rates: dict[tuple[str, str], dict[str, str]] = {}
    for name in runs.metric_names(record.metrics for record in records):
        metric = find_metric(name)
        if metric.attribute is not None and metric.level is not None:
            rates.setdefault((metric.attribute, metric.kind), {})[metric.level] = name
    first = [*(r for r in RATES if RATES[r].binary), "accuracy", "loss"]
    order = [*first, *(r for r in RATES if r not in first)]
    attributes = list(dict.fromkeys(attribute for attribute, _ in rates))
    shown = sorted(rates.items(), key=lambda r: (attributes.index(r[0][0]), order.index(r[0][1])))
    return drawn(
        View(
            f"{RATES[what].title} by {attribute}",
            _chart(found, attribute, what, levels),
            f"Groups of {attribute}",
        )
        for (attribute, what), levels in shown
    )


def _chart(found: list[Method], attribute: str, what: str, levels: dict[str, str]) -> Chart:
    axis = metric_axis(next(iter(levels.values())), "over examples")
    y = Axis(RATES[what].title, axis.detail, rate=axis.rate)
    chart = Chart(Axis(attribute, names=list(levels)), y)
    names = list(levels)
    width = 0.6 / len(found)
    for i, method in enumerate(found):
        stats = [(k, runs.stat(method.values(name))) for k, name in enumerate(levels.values())]
        stats = [(k, at) for k, at in stats if math.isfinite(at.mean)]
        if stats:
            shift = width * (i - (len(found) - 1) / 2)
            chart.add(
                Points(
                    [k + shift for k, _ in stats],
                    [at.mean for _, at in stats],
                    series=i,
                    name=method.title,
                    y_error=[at.spread for _, at in stats],
                    tips=[
                        f"{method.title}\n{names[k]}: {at.mean:.4g}{plus_minus(at.spread)}"
                        for k, at in stats
                    ],
                )
            )
    return chart


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
