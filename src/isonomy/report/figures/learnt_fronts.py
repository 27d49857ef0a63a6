"""The fronts of methods that learn a model for each preference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from isonomy.core.notions import read_objective
from isonomy.report import front_parts, runs
from isonomy.report.figures.drawing import Kind, View, drawn, error_axis, metric_axis
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Chart, Line, Points, Region, Rule, Slider
from isonomy.runs.record import Record

_MANY_FRONTS = 12  # the largest number of fronts drawn, that of all clients included
_CONSTANT = 8  # the series of the constant prediction: grey


def draw(records: list[Record], bounds: Mapping[str, float] | None = None) -> list[View]:
    """The points of each method's front that none of its other points dominates, by client.

    `bounds` are largest values of coordinates such as {"dp": 0.05}; each is a line, and the part of
    the chart within all of them is shaded.
    """
    found = [m for m in runs.methods(records) if m.runs[0].front]
    if not any("preference.0" in method.runs[0].front for method in found):
        return []  # without a learnt front, one point per method shows no more than the tables
    lines = _lines(found)
    clients = sorted({key for _, each, _ in lines for key in each})
    names = front_parts.coordinates(found[0].runs[0].front)
    x, y = (_axis(name) for name in names[:2])
    views = []
    for client in clients[:_MANY_FRONTS]:
        who = "all clients together" if client < 0 else _client_name(found, client)
        chart = Chart(x, y, height=380)
        _add_bounds(chart, names, bounds or {})
        for i, (title, each, columns) in enumerate(lines):
            if client in each:
                _add_front(chart, i, title, each[client], columns, client)
                if chart.slider is None:
                    chart.slider = _slider(title, names, each[client])
        views.append(View(who, chart, "" if client < 0 else "One client's own examples"))
    return drawn(views)


def _axis(name: str) -> Axis:
    return error_axis(Axis()) if name == "error" else metric_axis(read_objective(name).metric)


def _add_bounds(chart: Chart, names: Sequence[str], bounds: Mapping[str, float]) -> None:
    """Lines at the bounds of the two axes, and the part of the chart within them."""
    given = [
        next((most for key, most in bounds.items() if name.partition(".")[0] == key or name == key),
             None)
        for name in names[:2]
    ]  # fmt: skip
    if given[0] is None and given[1] is None:
        return
    within = [(-math.inf, math.inf if most is None else most) for most in given]
    chart.add(Region(within[0], within[1], name="within the bound"))
    if given[0] is not None:
        chart.add(Rule(x=given[0], text=f"{names[0]} at most {given[0]:g}"))
    if given[1] is not None:
        chart.add(Rule(y=given[1], text=f"{names[1]} at most {given[1]:g}"))


def _add_front(
    chart: Chart,
    i: int,
    title: str,
    part: front_parts.Part,
    columns: front_parts.Columns,
    client: int,
) -> None:
    """The undominated points of a front, its two ends, and the constant prediction."""
    at = front_parts.best(part)
    xs, ys = at.points[:, 0].tolist(), at.points[:, 1].tolist()
    tips = [
        f"{title}\n({x:.4g}, {y:.4g}){_preference(row)}"
        for x, y, row in zip(xs, ys, at.preferences, strict=True)
    ]
    if len(xs) > 1:
        chart.add(Line(xs, ys, series=i, step="hv", name=title))
    chart.add(Points(xs, ys, series=i, name=title, tips=tips, size=3.2 if len(xs) > 1 else 6))
    for text, point in _marks(columns, client, part):
        tip = f"{text}\n({point[0]:.4g}, {point[1]:.4g})"
        series, shape, name = (_CONSTANT, 5, text) if text == runs.CONSTANT else (i, i, "")
        chart.add(
            Points(
                [point[0]], [point[1]], series=series, shape=shape, name=name, tips=[tip], size=7,
                hollow=text != runs.CONSTANT,
            )
        )  # fmt: skip


def _slider(title: str, names: Sequence[str], part: front_parts.Part) -> Slider | None:
    """A slider over all preferences of a learnt front, by the share of the first objective."""
    known = np.asarray(~np.isnan(part.points).any(1))
    if not part.preferences.shape[1] or known.sum() < 2:
        return None
    order = [k for k in np.argsort(part.preferences[:, 0], kind="stable") if known[k]]
    stops = []
    for k in order:
        shares = ", ".join(f"{v:.2f}" for v in part.preferences[k])
        pairs = zip(names, part.points[k], strict=True)
        point = ", ".join(f"{name} {value:.3f}" for name, value in pairs)
        text = f"Preference {shares} of {title}: {point}"
        stops.append((text, float(part.points[k, 0]), float(part.points[k, 1])))
    return Slider("Preference, from none to all for the first objective", stops, len(stops) // 2)


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
) -> list[tuple[str, Sequence[float]]]:
    """Text and point of what a front offers at its two ends, and of a constant."""
    there = front_parts.parts(columns, "validation").get(client) if columns else None
    if there is None or not there.rows or not part.rows:
        return []
    top = max(range(len(there.labels)), key=there.labels.__getitem__)
    out: list[tuple[str, Sequence[float]]] = [
        (runs.CONSTANT, (1 - part.labels[top] / part.rows, 0.0))
    ]
    free = front_parts.offered(there)
    if len(free):
        for j, text in ((0, "Least error on validation"), (1, "Least gap on validation")):
            least = min(free, key=lambda i, j=j: (there.points[i, j], *there.points[i]))  # type: ignore[misc]
            out.append((f"{text}, preference {_shares(there, least)}", part.points[least]))
    return out


def _shares(part: front_parts.Part, at: int) -> str:
    return ", ".join(f"{v:.3g}" for v in part.preferences[at])


def _preference(row: Sequence[float]) -> str:
    return f"\npreference {', '.join(f'{v:.3g}' for v in row)}" if len(row) else ""


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
        "The hollow marks are the two ends that are offered to choose from: they are chosen on "
        "validation examples, so they may lie off the line, which is measured on the evaluated "
        "examples. The cross is the prediction of the most frequent class for everyone. Lower left "
        "is better. The slider moves a ring over the models of the first line, dominated ones "
        "included. If there are several seeds, the first is drawn."
    ),
    draw=draw,
)
