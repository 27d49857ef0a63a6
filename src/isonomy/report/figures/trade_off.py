"""Accuracy against a notion of fairness: one point per run."""

from __future__ import annotations

import math

from isonomy.metrics.names import Metric
from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn, metric_axis, useful
from isonomy.report.runs import Method
from isonomy.report.svg import Chart, Points
from isonomy.runs.record import Record

_CONSTANT = 8  # the series of the constant prediction: grey


def draw(records: list[Record]) -> list[View]:
    """Accuracy (loss for regression) against each metric: one point per run, and the means.

    The constant prediction of the most frequent class is a point too. A single run has no figure.
    """
    found = runs.methods(records)
    if len(found) < 2 and len(found[0].runs) < 2:
        return []
    there = runs.metric_names(record.metrics for record in records)
    what = "accuracy" if "accuracy" in there else "loss"
    order = runs.worst_first(records, "demographic_parity")

    def place(entry: tuple[str, Metric]) -> int:
        """Gaps come first, those of the worst attribute before the others."""
        attribute = entry[1].attribute
        return len(order) if attribute is None else order.index(attribute)

    return drawn(
        View(metric.title, _chart(found, metric.name, what), group)
        for group, metric in sorted(useful(there), key=place)
        if metric.name not in ("accuracy", "loss") and metric.better is not None
    )


def _chart(found: list[Method], name: str, what: str) -> Chart:
    x_axis, y_axis = metric_axis(name), metric_axis(what)
    chart = Chart(x_axis, y_axis)
    for i, method in enumerate(found):
        points = [
            (x, y, run)
            for run in method.runs
            for x, y in [(runs.value(run, name), runs.value(run, what))]
            if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
        ]
        if not points:
            continue
        xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
        if len(points) > 1:
            tips = [
                f"{method.title}, seed {run.seed}\n{y_axis.title} {y:.4g}\n{x_axis.title} {x:.4g}"
                for x, y, run in points
            ]
            chart.add(Points(xs, ys, series=i, tips=tips, size=3.5, hollow=True))
        x, y = sum(xs) / len(xs), sum(ys) / len(ys)
        kind = "mean" if len(points) > 1 else "one run"
        tip = f"{method.title}, {kind}\n{y_axis.title} {y:.4g}\n{x_axis.title} {x:.4g}"
        chart.add(Points([x], [y], series=i, name=method.title, tips=[tip], size=7))
    fixed = runs.constant(found)
    at = [fixed.get(key) for key in (name, what)] if chart.marks else [None, None]
    if at[0] is not None and at[1] is not None:
        tip = f"{runs.CONSTANT}\n{y_axis.title} {at[1]:.4g}\n{x_axis.title} {at[0]:.4g}"
        chart.add(
            Points(
                at[:1], at[1:], series=_CONSTANT, shape=5, name=runs.CONSTANT, tips=[tip], size=7
            )
        )
    return chart


FIGURE = Kind(
    name="tradeoff",
    title="Accuracy and fairness",
    caption=(
        "Each small mark is one run, and each large mark is the mean of a method over seeds, at "
        "the last evaluation. The cross is the prediction of the most frequent class for everyone, "
        "which has no gaps between groups and is of no use."
    ),
    draw=draw,
)
