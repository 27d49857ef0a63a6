"""The values of each client under each method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isonomy.metrics.names import find_metric
from isonomy.report import runs
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Views,
    axis_titles,
    colour,
    dash,
    faint_colour,
    go,
    metric_axis,
    name_ticks,
    ordered,
    safe,
    symbol,
)
from isonomy.report.runs import Method
from isonomy.runs.record import Record

_MANY_POINTS = 4000  # above which boxes show outliers only


def draw(records: list[Record]) -> Plot | None:
    """Each client's own value under each method, as boxes with points and as sorted curves."""
    found = runs.methods(records)
    columns = [_per_client(method) for method in found]
    names = ordered(dict.fromkeys(name for column in columns for name in column))
    boxes = {
        **name_ticks([method.title for method in found]),
        "xaxis.range": [-0.6, len(found) - 0.4],
        "xaxis.showgrid": False,
        "xaxis.ticksuffix": "",
    }
    sorted_axis = {
        **name_ticks(None),
        "xaxis.range": [0, 100],
        "xaxis.showgrid": True,
        "xaxis.ticksuffix": " %",
    }
    views = Views()
    for name in names:
        about = "" if name in ("accuracy", "loss") else " inside a client"
        text = metric_axis(name, "of each client")
        title = f"{find_metric(name).title}{about}"
        views.view(title, **axis_titles(x="", y=text), **boxes)
        drawn = [(i, m, at[name]) for i, (m, at) in enumerate(zip(found, columns, strict=True))
                 if at.get(name)]  # fmt: skip
        points = sum(len(at) for _, _, at in drawn)
        for i, method, at in drawn:
            views.add(
                go.Box(
                    y=[client.value for client in at],
                    x=[i] * len(at),
                    width=0.55,
                    name=safe(method.title),
                    marker={"color": colour(i), "size": 6, "symbol": symbol(i), "opacity": 0.75},
                    line={"width": 1.5},
                    fillcolor=faint_colour(i),
                    boxpoints="all" if points <= _MANY_POINTS else "outliers",
                    jitter=0.5,
                    pointpos=0,
                    customdata=_hover_data(method, at),
                    hovertemplate=_HOVER_CLIENT,
                    showlegend=False,
                )
            )
        along = "clients, from the lowest value to the highest"
        views.view(f"{title}, sorted", **axis_titles(x=along, y=text), **sorted_axis)
        for i, method, at in drawn:
            order = sorted(at, key=lambda client: client.value)
            share = [100 * (k + 0.5) / len(order) for k in range(len(order))]
            views.add(
                go.Scatter(
                    x=share,
                    y=[client.value for client in order],
                    name=safe(method.title),
                    mode="lines+markers" if points <= 400 else "lines",
                    line={"color": colour(i), "width": 2, "shape": "hvh", "dash": dash(i)},
                    marker={"size": 6, "symbol": symbol(i)},
                    customdata=_hover_data(method, order),
                    hovertemplate=_HOVER_CLIENT,
                )
            )
    return views.figure()


@dataclass(frozen=True)
class _Client:
    name: str
    size: float
    value: float
    n: int


_HOVER_CLIENT = (
    "%{customdata[0]}<br>%{customdata[1]}, %{customdata[2]} examples"
    "<br>%{y:.4g} (seeds: %{customdata[3]})<extra></extra>"
)
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


def _hover_data(method: Method, at: Sequence[_Client]) -> list[list[object]]:
    size = [f"{c.size:,.0f}" if math.isfinite(c.size) else "an unknown number of" for c in at]
    title = safe(method.title)
    return [[title, safe(c.name), size[i], c.n] for i, c in enumerate(at)]


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
