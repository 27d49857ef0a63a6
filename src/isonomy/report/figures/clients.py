"""The values of each client under each method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from isonomy.metrics.names import find_metric
from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn, metric_axis, useful
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Box, Chart, Line, Points
from isonomy.runs.record import Record

_MANY_POINTS = 1500  # above which boxes have no points


def draw(records: list[Record]) -> list[View]:
    """Each client's own value under each method, as boxes with points and as sorted curves."""
    found = runs.methods(records)
    columns = [_per_client(method) for method in found]
    views = []
    for name in _shown(dict.fromkeys(name for column in columns for name in column)):
        title = find_metric(name).title
        at = [(i, m, own[name]) for i, (m, own) in enumerate(zip(found, columns, strict=True))
              if own.get(name)]  # fmt: skip
        if name in ("accuracy", "loss"):
            views.append(View(title, _boxes(name, at), "Each client"))
            views.append(View(f"{title}, sorted", _sorted(name, at), "Each client"))
        else:
            views.append(View(f"{title}, inside each client", _boxes(name, at), "Groups"))
    return drawn(views)


def _shown(names: Iterable[str]) -> list[str]:
    return [metric.name for _, metric in useful(names)]


def _boxes(name: str, drawn: Sequence[tuple[int, Method, list[_Client]]]) -> Chart:
    """A box for each method, with a point for each client."""
    chart = Chart(Axis(names=[m.title for _, m, _ in drawn]), metric_axis(name, "of each client"))
    few = sum(len(at) for _, _, at in drawn) <= _MANY_POINTS
    for k, (i, method, at) in enumerate(drawn):
        values = [client.value for client in at]
        quarters = [float(v) for v in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
        least, low, middle, high, most = quarters
        tip = f"{method.title}\nmedian {middle:.4g}, middle half {low:.4g} to {high:.4g}"
        chart.add(Box(k, (least, low, middle, high, most), series=i, tip=tip))
        if few:
            # spread sideways in a fixed pattern, so that equal values can be told apart
            x = [k + 0.36 * (((j * 0.618) % 1) - 0.5) for j in range(len(at))]
            chart.add(Points(x, values, series=i, tips=_tips(method, at), size=3))
    return chart


def _sorted(name: str, drawn: Sequence[tuple[int, Method, list[_Client]]]) -> Chart:
    """The clients of each method from the lowest value to the highest."""
    along = Axis("clients", "from the lowest value to the highest", low=0, high=100, suffix=" %")
    chart = Chart(along, metric_axis(name, "of each client"))
    few = sum(len(at) for _, _, at in drawn) <= 400
    for i, method, at in drawn:
        order = sorted(at, key=lambda client: client.value)
        share = [100 * (k + 0.5) / len(order) for k in range(len(order))]
        values = [client.value for client in order]
        chart.add(Line(share, values, series=i, name=method.title, step="hvh"))
        if few:
            tips = _tips(method, order)
            chart.add(Points(share, values, series=i, name=method.title, tips=tips, size=3.2))
    return chart


@dataclass(frozen=True)
class _Client:
    name: str
    size: float
    value: float
    n: int


_NOT_VALUES = {
    "round",
    "client",
    "name",
    "split",
    "size",
    "cluster",
    "malicious",
    "excess_loss",  # these two have a figure of their own
    "excess_error",
}


def _is_value(name: str) -> bool:
    return name not in _NOT_VALUES and not name.startswith("preference.")


def _per_client(method: Method) -> dict[str, list[_Client]]:
    """Each client's values at the last evaluation: means over seeds, without undefined ones."""
    tables = [runs.last_clients(run) for run in method.runs]
    found: dict[str, list[_Client]] = {}
    for name in dict.fromkeys(key for table in tables for key in table if _is_value(key)):
        values: dict[str, list[tuple[str, float, float]]] = {}
        for table in tables:
            for i, at in enumerate(table.get(name, ())):
                key = str(table["client"][i]) if "client" in table else runs.client_name(table, i)
                size = runs.number(table["size"][i]) if "size" in table else math.nan
                if math.isfinite(runs.number(at)):
                    one = (runs.client_name(table, i), size, runs.number(at))
                    values.setdefault(key, []).append(one)
        if values:
            found[name] = [
                _Client(at[0][0], at[0][1], sum(v for _, _, v in at) / len(at), len(at))
                for at in values.values()
            ]
    return found


def _tips(method: Method, at: Sequence[_Client]) -> list[str]:
    size = [f"{c.size:,.0f}" if math.isfinite(c.size) else "an unknown number of" for c in at]
    return [
        f"{method.title}\n{c.name}, {size[i]} examples\n{c.value:.4g} (seeds: {c.n})"
        for i, c in enumerate(at)
    ]


FIGURE = Kind(
    name="clients",
    title="Between clients",
    caption=(
        "Each point is one client on its own examples at the last evaluation; values are means "
        "over seeds, and every client counts once, whatever its size. Boxes span the middle half "
        "of the clients. A sorted curve goes from the client with the lowest value to the one with "
        "the highest."
    ),
    draw=draw,
)
