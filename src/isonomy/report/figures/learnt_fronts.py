"""The fronts of methods that learn a model for each preference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isonomy.core.notions import read_objective
from isonomy.report import front_parts, runs
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Views,
    axis_titles,
    colour,
    dash,
    go,
    metric_axis,
    safe,
    symbol,
)
from isonomy.report.runs import Method
from isonomy.runs.record import Record

_MANY_FRONTS = 25  # the largest number of fronts drawn, that of all clients included


def draw(records: list[Record]) -> Plot | None:
    """The points of each method's front that none of its other points dominates, by client."""
    found = [m for m in runs.methods(records) if m.runs[0].front]
    if not any("preference.0" in method.runs[0].front for method in found):
        return None  # without a learnt front, one point per method shows no more than the tables
    lines = _lines(found)
    clients = sorted({key for _, each, _ in lines for key in each})
    names = front_parts.coordinates(found[0].runs[0].front)
    x, y = (metric_axis(read_objective(name).metric) for name in names[:2])
    views = Views()
    for client in clients[:_MANY_FRONTS]:
        who = "all clients together" if client < 0 else _client_name(found, client)
        views.view(who, **axis_titles(x=x, y=y))
        for i, (title, each, columns) in enumerate(lines):
            if client not in each:
                continue
            at = front_parts.best(each[client])
            hover = [[safe(title), _preference(row)] for row in at.preferences]
            views.add(
                go.Scatter(
                    x=at.points[:, 0].tolist(),
                    y=at.points[:, 1].tolist(),
                    name=safe(title),
                    mode="lines+markers" if len(at.points) > 1 else "markers",
                    line={"color": colour(i), "width": 2, "shape": "hv", "dash": dash(i)},
                    marker={"size": 6, "symbol": symbol(i), "color": colour(i)},
                    customdata=hover,
                    hovertemplate="%{customdata[0]}<br>(%{x:.4g}, %{y:.4g})%{customdata[1]}"
                    "<extra></extra>",
                )
            )
            for text, marker, point in _marks(columns, client, each[client]):
                views.add(
                    go.Scatter(
                        x=[point[0]],
                        y=[point[1]],
                        name=f"{safe(title)}: {text}",
                        mode="markers",
                        marker={"size": 13, "symbol": marker, "color": colour(i)},
                        hovertemplate=f"{text}<br>(%{{x:.4g}}, %{{y:.4g}})<extra></extra>",
                    )
                )
    return views.figure()


_Line = tuple[str, dict[int, front_parts.Part], front_parts.Columns]
"""What one line shows: its title, the front of each client, and the table they are from."""


def _lines(found: Sequence[Method]) -> list[_Line]:
    """One line per method; methods of one model that form a series have the front of their union.

    A sweep over a setting offers as many models as it has settings, so it is compared as a front.
    """
    out: list[_Line] = []
    series: dict[tuple[str, str], list[Method]] = {}
    for method in found:
        columns, name = method.runs[0].front, method.runs[0].config.get("series")
        if "preference.0" in columns or not name:
            out.append((method.title, front_parts.parts(columns), columns))
        else:
            series.setdefault((str(name), method.data), []).append(method)
    for (name, data), members in series.items():
        each = [front_parts.parts(method.runs[0].front) for method in members]
        union = {
            k: front_parts.Part(
                np.concatenate([one[k].preferences for one in each if k in one]),
                np.concatenate([one[k].points for one in each if k in one]),
            )
            for k in sorted({k for one in each for k in one})
        }
        title = members[0].title
        if len(members) > 1:
            where = f" on {data}" if title != members[0].label else ""
            title = f"{name}{where} ({len(members)} settings)"
        out.append((title, union, {}))
    return out


def _marks(
    columns: front_parts.Columns, client: int, part: front_parts.Part
) -> list[tuple[str, str, Sequence[float]]]:
    """Text, marker and point of what a front offers at its two ends, and of a constant."""
    there = front_parts.parts(columns, "validation").get(client) if columns else None
    if there is None or not there.rows or not part.rows:
        return []
    top = max(range(len(there.labels)), key=there.labels.__getitem__)
    out: list[tuple[str, str, Sequence[float]]] = [
        ("constant prediction", "x", (1 - part.labels[top] / part.rows, 0.0))
    ]
    free = front_parts.offered(there)
    if len(free):
        for j, text in ((0, "least error on validation"), (1, "least gap on validation")):
            least = min(free, key=lambda i, j=j: (there.points[i, j], *there.points[i]))  # type: ignore[misc]
            marker = "star" if j == 0 else "diamond-tall"
            out.append((f"{text}, preference {_shares(there, least)}", marker, part.points[least]))
    return out


def _shares(part: front_parts.Part, at: int) -> str:
    return ", ".join(f"{v:.3g}" for v in part.preferences[at])


def _preference(row: Sequence[float]) -> str:
    return f"<br>preference {', '.join(f'{v:.3g}' for v in row)}" if len(row) else ""


def _client_name(found: Sequence[Method], client: int) -> str:
    at = runs.last_clients(found[0].runs[0])
    where = list(at.get("client", []))
    return runs.client_name(at, where.index(client)) if client in where else f"client {client}"


FIGURE = Kind(
    name="learnt",
    title="Learnt fronts",
    caption=(
        "The trade-offs that each method offers, on all clients' examples together or on one "
        "client's own examples. A method that learns a front has a model for each point of its "
        "line; a method that trains one model has one point, or one for each setting of a sweep. "
        "The marks are the two ends that are offered to choose from: they are chosen on validation "
        "examples, so they may lie off the line, which is measured on the evaluated examples. The "
        "cross is the prediction of the "
        "most frequent class for everyone. Lower left is better. If there are several seeds, the "
        "first is drawn."
    ),
    draw=draw,
)
