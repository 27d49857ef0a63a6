"""What all figures share: the views of a figure, the axes of metrics, which metrics are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from isonomy.core.notions import NOTIONS
from isonomy.metrics.names import Metric, find_metric
from isonomy.report.svg import Axis, Chart
from isonomy.runs.record import Record

_EXAMPLES = ("accuracy", "balanced_accuracy", "auc", "loss")
_CLIENTS = ("worst10", "std")
_GAPS = tuple(notion.name for notion in NOTIONS.values())
_OTHERS = ("faa", "hv.local", "hv.global", "clusters")


@dataclass(frozen=True)
class View:
    """One chart of a figure, with its entry in the figure's menu and the group of that entry."""

    title: str
    chart: Chart
    group: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of figure: its name on the page, title, caption, and the function that draws it.

    `draw` returns no view if the runs contain nothing to draw.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[list[Record]], list[View]]


def drawn(views: Iterable[View]) -> list[View]:
    """The views that have something to show."""
    return [view for view in views if view.chart.marks]


def useful(names: Iterable[str]) -> list[tuple[str, Metric]]:
    """The metrics of menus, each with the group of its entry; the most important first.

    Of each per-client value they are the worst clients and the deviation, and of each protected
    attribute the gaps; the page's table of every metric has all of them.
    """
    given = list(dict.fromkeys(names))
    found = [("All examples", name) for name in _EXAMPLES if name in given]
    values = ("accuracy",) if "client.accuracy.std" in given else ("loss",)
    clients = [f"client.{value}.{kind}" for value in values for kind in _CLIENTS]
    found += [("Between clients", name) for name in clients if name in given]
    gaps = [m for m in map(find_metric, given) if m.compares_groups and m.kind in _GAPS]
    for attribute in dict.fromkeys(m.attribute for m in gaps):
        own = sorted((m for m in gaps if m.attribute == attribute), key=_notion)
        found += [(f"Groups of {attribute}", m.name) for m in own]
    worst = [m for m in map(find_metric, given) if m.compares_groups and m.kind == "max_loss"]
    found += [(f"Groups of {m.attribute}", m.name) for m in worst if not gaps]
    found += [("Others", name) for name in _OTHERS if name in given]
    return [(group, find_metric(name)) for group, name in found]


def _notion(metric: Metric) -> int:
    return _GAPS.index(metric.kind)


def metric_axis(name: str, over: str | None = None) -> Axis:
    """The axis of a metric: its title, what it is over and which direction is better."""
    metric = find_metric(name)
    details = [metric.scope if over is None else over]
    details += [f"{metric.better} is better"] if metric.better else []
    return Axis(metric.title, ", ".join(part for part in details if part), rate=is_rate(name))


def error_axis(axis: Axis) -> Axis:
    """The same axis for the error, 1 minus the accuracy."""
    return replace(axis, title="error", detail="over examples, lower is better", rate=True)


def is_rate(name: str) -> bool:
    """Whether a metric is between 0 and 1."""
    if "loss" in name or name.endswith(".cv"):
        return False
    first = name.partition(".")[0]
    return first in ("client", "group", "hv", "front") or name in (*_EXAMPLES, "hypervolume")


def plus_minus(spread: float | None) -> str:
    """The spread as the text of a mark; empty if there is none."""
    return "" if spread is None else f" ± {spread:.2g}"
