"""Figures of runs, for a notebook or for the page.

Each function takes records and returns a plotly figure, or None when the runs hold nothing to
draw. Where a figure shows one of several things, a menu in the figure chooses (the page turns
it into a select box). All text that comes from a user is escaped: plotly reads tags in text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeAlias

from isonomy.core.notions import read_objective
from isonomy.metrics import registry
from isonomy.report import front_choice, fronts, runs
from isonomy.report.runs import Method
from isonomy.runs.record import Record

go: Any = import_module("plotly.graph_objects")  # plotly has no types
Plot: TypeAlias = Any
"""A `plotly.graph_objects.Figure`."""

PALETTE = (
    "#2f86c9",
    "#d9602b",
    "#1a9b72",
    "#c2629b",
    "#b98600",
    "#7d6bc9",
    "#1f9aa8",
    "#97684a",
    "#7f8790",
    "#7f9126",
)
"""Colours that can be read on white and on near-black."""

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon")
_DASHES = ("solid", "dash", "dot", "dashdot")
_INK, _GRID = "#3a3f45", "#dfe3e7"
_MANY_POINTS = 4000  # of boxes, above which only outliers are drawn
_MANY_FRONTS = 25  # clients whose fronts are drawn, all together among them
_MANY_CLIENTS = 40  # above which bars are not named on the axis
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """A figure with the words around it: what it shows, over whom, how to read it."""

    name: str
    title: str
    caption: str
    plot: Plot


@dataclass
class _Views:
    """The traces of each entry of a menu, and the axes it sets."""

    traces: list[Any] = field(default_factory=list)
    of: list[int] = field(default_factory=list)
    entries: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def view(self, title: str, **layout: Any) -> None:
        """Begin an entry; what is added from here on belongs to it."""
        self.entries.append((title, layout))

    def add(self, trace: Any) -> None:
        self.traces.append(trace)
        self.of.append(len(self.entries) - 1)

    def figure(self, **layout: Any) -> Plot | None:
        """The figure with its first entry shown; None without a trace."""
        used = [i for i in range(len(self.entries)) if i in self.of]
        if not used:
            return None
        for trace, of in zip(self.traces, self.of, strict=True):
            trace.visible = of == used[0]
        plot = go.Figure(self.traces, layout=_look(**layout))
        plot.update_layout(self.entries[used[0]][1])
        if "height" not in layout:  # room for the legend's lines
            most = max(sum(self.of[k] == i and bool(t.name) for k, t in enumerate(self.traces))
                       for i in used)  # fmt: skip
            plot.update_layout(height=420 + 12 * max(0, most - 4))
        if len(used) > 1:
            buttons = [
                {
                    "label": safe(self.entries[i][0]),
                    "method": "update",
                    "args": [{"visible": [of == i for of in self.of]}, self.entries[i][1]],
                }
                for i in used
            ]
            plot.update_layout(
                updatemenus=[{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.22}]
            )
        return plot


def all_figures(records: list[Record]) -> list[Figure]:
    """Every figure the runs have something for, in the order of the page."""
    drawn: list[tuple[str, str, str, Callable[[list[Record]], Plot | None]]] = [
        (
            "fronts",
            "Error and fairness",
            "Each mark is a setting of a method, the mean over seeds, with the sample standard "
            "deviation as bars; lower left is better. Full marks joined by a line are on the "
            "method's front: no other setting of it is better in both. A dot in a mark: in some "
            "run the method's verdict was null. What one notion gains another may lose: choose "
            "each in the box.",
            trade_offs,
        ),
        (
            "tradeoff",
            "Accuracy and fairness",
            "Each small mark is one run, each large mark the mean of a method over seeds, at the "
            "last evaluation.",
            tradeoff,
        ),
        (
            "learnt",
            "Learnt fronts",
            "What each method can trade: on all clients' examples together, or of one client on "
            "its own. A method that learns a front has a model for each point of its line, a "
            "method of one model has one point; lower left is better. Of several seeds the first "
            "is drawn.",
            learnt_fronts,
        ),
        (
            "clients",
            "Between clients",
            "Each point is one client, every client counting once whatever its size, on its own "
            "examples at the last evaluation, mean over seeds. Boxes span the middle half of the "
            "clients; sorted, the curve goes from the client with the lowest value to the highest.",
            clients,
        ),
        (
            "groups",
            "Between groups",
            "Each point is one protected group, over all clients' examples together, at the last "
            "evaluation, mean over seeds. Bars are the sample standard deviation over seeds.",
            groups,
        ),
        (
            "curves",
            "Over rounds",
            "Lines are means over seeds at each evaluated round, bands one sample standard "
            "deviation over seeds to either side.",
            curves,
        ),
        (
            "holdings",
            "Who holds what",
            "The training rows of each client: how many there are, how many of each label and of "
            "each group, and their shares.",
            holdings,
        ),
        (
            "costs",
            "What it cost",
            "Means over seeds, with the sample standard deviation. Seconds depend on the machine "
            "and its load; bytes are counted.",
            costs,
        ),
    ]
    found = []
    for name, title, caption, draw in drawn:
        plot = draw(records)
        if plot is not None:
            found.append(Figure(name, title, caption, plot))
    return found


def curves(records: list[Record]) -> Plot | None:
    """Any metric over rounds: a line a method, a band over its seeds."""
    found = runs.methods(records)
    pages = [entry.get("metrics") or {} for record in records for entry in record.rounds]
    views = _Views()
    for name in _ordered(runs.metric_names(pages)):
        views.view(registry.find(name).title, **_axes(y=_axis_title(name)))
        for i, method in enumerate(found):
            at = _over_rounds(method, name)
            if not at:
                continue
            stats = {t: runs.stat(values) for t, values in at.items()}
            ts = sorted(stats)
            means = [_clean(stats[t].mean) for t in ts]
            band = [t for t in ts if stats[t].spread is not None]
            if band:
                tops = [stats[t].mean + (stats[t].spread or 0) for t in band]
                lows = [stats[t].mean - (stats[t].spread or 0) for t in band]
                views.add(
                    go.Scatter(
                        x=band + band[::-1],
                        y=[_clean(v) for v in tops + lows[::-1]],
                        fill="toself",
                        fillcolor=_faint(i),
                        line={"width": 0},
                        mode="lines",
                        hoverinfo="skip",
                        showlegend=False,
                        legendgroup=str(i),
                    )
                )
            views.add(
                go.Scatter(
                    x=ts,
                    y=means,
                    name=safe(method.title),
                    legendgroup=str(i),
                    mode="lines+markers" if len(ts) <= 30 else "lines",
                    line={"color": _colour(i), "width": 2, "dash": _dash(i)},
                    marker={"size": 5, "symbol": _symbol(i)},
                    customdata=[
                        [_shown(stats[t].spread), stats[t].n, safe(method.title)] for t in ts
                    ],
                    hovertemplate="%{customdata[2]}<br>round %{x}: %{y:.4g}"
                    "%{customdata[0]} (seeds: %{customdata[1]})<extra></extra>",
                )
            )
    plot = views.figure(xaxis={"title": {"text": "round"}, "tickformat": "d"})
    if plot is not None and max(len(trace.x) for trace in plot.data) == 1:
        plot.update_xaxes(nticks=3)
    return plot


def clients(records: list[Record]) -> Plot | None:
    """Each client's own value under each method: as boxes with points, and sorted."""
    found = runs.methods(records)
    columns = [_per_client(method) for method in found]
    names = _ordered(dict.fromkeys(name for column in columns for name in column))
    boxes = {
        **_ticks([method.title for method in found]),
        "xaxis.range": [-0.6, len(found) - 0.4],
        "xaxis.showgrid": False,
        "xaxis.ticksuffix": "",
    }
    ordered = {
        **_ticks(None),
        "xaxis.range": [0, 100],
        "xaxis.showgrid": True,
        "xaxis.ticksuffix": " %",
    }
    views = _Views()
    for name in names:
        about = "" if name in ("accuracy", "loss") else " inside a client"
        text = _axis_title(name, "of each client")
        views.view(f"{registry.find(name).title}{about}", **_axes(x="", y=text), **boxes)
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
                    marker={"color": _colour(i), "size": 6, "symbol": _symbol(i), "opacity": 0.75},
                    line={"width": 1.5},
                    fillcolor=_faint(i),
                    boxpoints="all" if points <= _MANY_POINTS else "outliers",
                    jitter=0.5,
                    pointpos=0,
                    customdata=_said(method, at),
                    hovertemplate=_HOVER_CLIENT,
                    showlegend=False,
                )
            )
        along = "clients, from the lowest value to the highest"
        views.view(
            f"{registry.find(name).title}{about}, sorted", **_axes(x=along, y=text), **ordered
        )
        for i, method, at in drawn:
            order = sorted(at, key=lambda client: client.value)
            share = [100 * (k + 0.5) / len(order) for k in range(len(order))]
            views.add(
                go.Scatter(
                    x=share,
                    y=[client.value for client in order],
                    name=safe(method.title),
                    mode="lines+markers" if points <= 400 else "lines",
                    line={"color": _colour(i), "width": 2, "shape": "hvh", "dash": _dash(i)},
                    marker={"size": 6, "symbol": _symbol(i)},
                    customdata=_said(method, order),
                    hovertemplate=_HOVER_CLIENT,
                )
            )
    return views.figure()


def trade_offs(records: list[Record]) -> Plot | None:
    """Error against each notion of fairness: a curve a method, a point a setting."""
    views = _Views()
    for front in fronts.fronts(records):
        views.view(
            registry.find(front.notion).title,
            **_axes(x=_axis_title(front.notion), y="error<br>(lower)"),
        )
        for i, curve in enumerate(front.curves):
            for on in (False, True):
                points = [point for point in curve.points if point.on_front == on]
                if points:
                    views.add(_points(curve, points, i, on))
    return views.figure()


def _points(curve: fronts.Curve, points: Sequence[fronts.Point], i: int, on: bool) -> Any:
    """Some points of a curve, on its front or beside it."""
    bars = {"thickness": 1, "width": 3, "color": _faint(i) if not on else _colour(i)}
    symbols = [_symbol(i) + "-open" * (not on) + "-dot" * (p.nulls > 0) for p in points]
    return go.Scatter(
        x=[_clean(p.notion.mean) for p in points],
        y=[_clean(p.error.mean) for p in points],
        error_x={"array": [p.notion.spread or 0 for p in points], **bars},
        error_y={"array": [p.error.spread or 0 for p in points], **bars},
        mode="lines+markers" if on else "markers",
        line={"color": _colour(i), "width": 1.5, "dash": _dash(i)},
        marker={
            "color": _colour(i),
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
                _shown(p.error.spread),
                _shown(p.notion.spread),
                p.error.n,
                f"<br>verdict null in {p.nulls}" if p.nulls else "",
            ]
            for p in points
        ],
        hovertemplate="%{customdata[0]}<br>error %{y:.4g}%{customdata[1]}<br>unfairness %{x:.4g}"
        "%{customdata[2]} (seeds: %{customdata[3]})%{customdata[4]}<extra></extra>",
    )


def tradeoff(records: list[Record]) -> Plot | None:
    """Accuracy (loss for regression) against a notion of fairness: a point a run, means marked."""
    found = runs.methods(records)
    there = runs.metric_names(record.metrics for record in records)
    what = "accuracy" if "accuracy" in there else "loss"
    views = _Views()
    for name in _ordered(there):
        metric = registry.find(name)
        if name in ("accuracy", "loss") or metric.level is not None or metric.better is None:
            continue
        views.view(registry.find(name).title, **_axes(x=_axis_title(name), y=_axis_title(what)))
        for i, method in enumerate(found):
            points = [
                (x, y, run)
                for run in method.runs
                for x, y in [(runs.value(run, name), runs.value(run, what))]
                if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
            ]
            if not points:
                continue
            title, axis = safe(method.title), safe(registry.find(name).title)
            hover = f"<br>{what} %{{y:.4g}}<br>%{{customdata[2]}} %{{x:.4g}}"
            if len(points) > 1:
                views.add(
                    go.Scatter(
                        x=[x for x, _, _ in points],
                        y=[y for _, y, _ in points],
                        mode="markers",
                        marker={"color": _colour(i), "size": 7, "symbol": f"{_symbol(i)}-open"},
                        legendgroup=str(i),
                        showlegend=False,
                        customdata=[[title, run.seed, axis] for _, _, run in points],
                        hovertemplate="%{customdata[0]}, seed %{customdata[1]}"
                        f"{hover}<extra></extra>",
                    )
                )
            views.add(
                go.Scatter(
                    x=[sum(x for x, _, _ in points) / len(points)],
                    y=[sum(y for _, y, _ in points) / len(points)],
                    mode="markers",
                    marker={
                        "color": _colour(i),
                        "size": 15,
                        "symbol": _symbol(i),
                        "line": {"width": 1, "color": "white"},
                    },
                    name=title,
                    legendgroup=str(i),
                    customdata=[[title, "mean" if len(points) > 1 else "one run", axis]],
                    hovertemplate=f"%{{customdata[0]}}, %{{customdata[1]}}{hover}<extra></extra>",
                )
            )
    return views.figure()


def learnt_fronts(records: list[Record]) -> Plot | None:
    """The points of each method's front that no other of its points dominates, by client."""
    found = [m for m in runs.methods(records) if m.runs[0].front]
    if not any("preference.0" in method.runs[0].front for method in found):
        return None  # without a front that was learnt, one point a method says no more than tables
    parts = [front_choice.parts(method.runs[0].front) for method in found]
    clients = sorted({key for each in parts for key in each})
    names = front_choice.coordinates(found[0].runs[0].front)
    x, y = (_axis_title(read_objective(name).metric) for name in names[:2])
    views = _Views()
    for client in clients[:_MANY_FRONTS]:
        who = "all clients together" if client < 0 else _client_said(found, client)
        views.view(who, **_axes(x=x, y=y))
        for i, (method, each) in enumerate(zip(found, parts, strict=True)):
            if client not in each:
                continue
            at = front_choice.best(each[client])
            said = [[safe(method.title), _preference(row)] for row in at.preferences]
            views.add(
                go.Scatter(
                    x=at.points[:, 0].tolist(),
                    y=at.points[:, 1].tolist(),
                    name=safe(method.title),
                    mode="lines+markers" if len(at.points) > 1 else "markers",
                    line={"color": _colour(i), "width": 2, "shape": "hv", "dash": _dash(i)},
                    marker={"size": 6, "symbol": _symbol(i), "color": _colour(i)},
                    customdata=said,
                    hovertemplate="%{customdata[0]}<br>(%{x:.4g}, %{y:.4g})%{customdata[1]}"
                    "<extra></extra>",
                )
            )
    return views.figure()


def _preference(row: Sequence[float]) -> str:
    return f"<br>preference {', '.join(f'{v:.3g}' for v in row)}" if len(row) else ""


def _client_said(found: Sequence[Method], client: int) -> str:
    at = runs.last_clients(found[0].runs[0])
    where = list(at.get("client", []))
    return runs.client_name(at, where.index(client)) if client in where else f"client {client}"


def groups(records: list[Record]) -> Plot | None:
    """What is known of each protected group: rates, accuracy, loss; a point a method."""
    found = runs.methods(records)
    rates: dict[tuple[str, str], dict[str, str]] = {}
    for name in runs.metric_names(record.metrics for record in records):
        metric = registry.find(name)
        if metric.attribute is not None and metric.level is not None:
            rates.setdefault((metric.attribute, metric.kind), {})[metric.level] = name
    order = [*(r for r in registry.RATES if registry.RATES[r].binary), "accuracy", "loss"]
    views = _Views()
    for (attribute, what), levels in sorted(rates.items(), key=lambda r: order.index(r[0][1])):
        views.view(
            f"{registry.RATES[what].title} by {attribute}",
            **_axes(x=safe(attribute), y=_axis_title(what, "over examples")),
            **_ticks(list(levels)),
            **{"xaxis.range": [-0.6, len(levels) - 0.4]},
        )
        width = 0.5 / len(found)
        for i, method in enumerate(found):
            stats = [(k, runs.stat(method.values(name))) for k, name in enumerate(levels.values())]
            stats = [(k, at) for k, at in stats if math.isfinite(at.mean)]
            if not stats:
                continue
            shift = width * (i - (len(found) - 1) / 2)
            title = safe(method.title)
            said = [safe(level) for level in levels]
            views.add(
                go.Scatter(
                    x=[k + shift for k, _ in stats],
                    y=[at.mean for _, at in stats],
                    error_y={
                        "array": [at.spread or 0 for _, at in stats],
                        "thickness": 1.5,
                        "width": 4,
                        "visible": any(at.spread for _, at in stats),
                    },
                    mode="markers",
                    marker={"color": _colour(i), "size": 11, "symbol": _symbol(i)},
                    name=title,
                    customdata=[[title, _shown(at.spread), said[k]] for k, at in stats],
                    hovertemplate="%{customdata[0]}<br>%{customdata[2]}: %{y:.4g}"
                    "%{customdata[1]}<extra></extra>",
                )
            )
    return views.figure(xaxis={"showgrid": False})


def holdings(records: list[Record]) -> Plot | None:
    """What each client holds: rows and shares of each label and of each group.

    Reads `facts["data"]`: `names`, `sizes`, `labels`, `label_shares` [clients][labels] and
    `groups` {attribute: {"levels": [...], "shares": [clients][levels]}}, whichever are there.
    Few clients stand in their own order under their names, many by their shares and, without
    them, from the largest to the smallest. What has many levels is drawn as a map.
    """
    views = _Views()
    found = runs.methods(records)
    several = len({method.data for method in found}) > 1
    first: dict[str, Method] = {}
    for method in found:
        first.setdefault(method.data, method)
    for method in first.values():
        data = method.runs[0].facts.get("data")
        if not isinstance(data, Mapping):
            continue
        sizes = [runs.number(size) for size in _items(data, "sizes")]
        shares = [("label", _items(data, "labels"), _items(data, "label_shares"))]
        for attribute, at in (data.get("groups") or {}).items():
            if isinstance(at, Mapping):
                shares.append((str(attribute), _items(at, "levels"), _items(at, "shares")))
        shares = [share for share in shares if share[2]]
        number = max([len(sizes), *(len(rows) for _, _, rows in shares)], default=0)
        given = _items(data, "names")
        names = [str(given[k]) if k < len(given) else f"client {k}" for k in range(number)]
        after = f", {method.data}" if several else ""
        for what, levels, rows in shares:
            many = max(len(row) for row in rows)
            said = [str(levels[j]) if j < len(levels) else str(j) for j in range(many)]
            even = [
                [runs.number(r[j]) if j < len(r) else math.nan for j in range(many)] for r in rows
            ]
            if many > len(PALETTE):
                _hold_map(views, f"share of each {what}{after}", what, names, said, even)
                continue
            if len(sizes) == len(rows) <= _MANY_CLIENTS:
                _hold_rows(views, f"rows of each {what}{after}", names, sizes, said, even)
            _hold_shares(views, f"share of each {what}{after}", names, said, even)
        if sizes and (not shares or len(sizes) > _MANY_CLIENTS):
            _hold_rows(views, f"rows of each client{after}", names, sizes, [""], [[1.0]] * number)
    plot = views.figure(barmode="stack", showlegend=True)
    return None if plot is None else plot.update_layout(legend={"traceorder": "normal"})


def _hold_rows(
    views: _Views,
    title: str,
    names: Sequence[str],
    sizes: Sequence[float],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """Training rows of each client as a bar, a part for each level."""
    order = list(range(len(sizes)))
    if len(sizes) > _MANY_CLIENTS:
        order.sort(key=lambda k: -sizes[k])
    axis = _client_axis([names[k] for k in order], "from the most rows to the fewest")
    views.view(title, **_axes(y="training rows"), **axis, **_level_axis(None))
    for j, level in enumerate(levels):
        text = safe(level)
        views.add(
            go.Bar(
                x=list(range(len(order))),
                y=[_clean(sizes[k] * shares[k][j]) for k in order],
                name=text,
                marker={"color": PALETTE[j], "line": {"width": 0}},
                customdata=[[safe(names[k]), text] for k in order],
                hovertemplate="%{customdata[0]}: %{y:,.0f} rows %{customdata[1]}<extra></extra>",
                showlegend=bool(level),
            )
        )


def _hold_shares(
    views: _Views,
    title: str,
    names: Sequence[str],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """Each client as a bar of the same height, cut by the shares of levels."""
    order = _by_share(shares)
    axis = _client_axis([names[k] for k in order], "ordered by their shares")
    views.view(title, **_axes(y="share of training rows"), **axis, **_level_axis(None))
    for j, level in enumerate(levels):
        text = safe(level)
        views.add(
            go.Bar(
                x=list(range(len(order))),
                y=[_clean(shares[k][j]) for k in order],
                name=text,
                marker={"color": PALETTE[j], "line": {"width": 0}},
                customdata=[[safe(names[k]), text] for k in order],
                hovertemplate="%{customdata[0]}: %{y:.1%} are %{customdata[1]}<extra></extra>",
            )
        )


def _hold_map(
    views: _Views,
    title: str,
    what: str,
    names: Sequence[str],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """Clients along, levels up, the share as colour."""
    order = _by_share(shares)
    axis = _client_axis([names[k] for k in order], "ordered by their shares")
    views.view(title, **_axes(y=safe(what)), **axis, **_level_axis(levels))
    views.add(
        go.Heatmap(
            z=[[_clean(shares[k][j]) for k in order] for j in range(len(levels))],
            x=list(range(len(order))),
            y=list(range(len(levels))),
            text=[[safe(names[k]) for k in order]] * len(levels),
            customdata=[[safe(level)] * len(order) for level in levels],
            zmin=0,
            colorscale=[[0, "rgba(47,134,201,0.03)"], [1, "rgba(47,134,201,1)"]],
            colorbar={"title": {"text": "share"}, "tickformat": ".0%", "thickness": 12},
            hovertemplate="%{text}: %{z:.1%} are %{customdata}<extra></extra>",
            showlegend=False,
        )
    )


def _by_share(shares: Sequence[Sequence[float]]) -> list[int]:
    """Few clients as they come; many by their commonest level, and by how common it is there."""
    order = list(range(len(shares)))
    if len(order) <= _MANY_CLIENTS:
        return order
    if len(shares[0]) == 2:
        return sorted(order, key=lambda k: -shares[k][0])
    top = [max(range(len(row)), key=lambda j: -1.0 if math.isnan(row[j]) else row[j])
           for row in shares]  # fmt: skip
    return sorted(order, key=lambda k: (top[k], -shares[k][top[k]]))


def _level_axis(levels: Sequence[str] | None) -> dict[str, Any]:
    """Names at 0, 1, 2, ... of the y axis; or its numbers again."""
    most = 31  # names that have room
    step = 1 if levels is None else -(-len(levels) // most)
    return {
        "yaxis.tickmode": "auto" if levels is None else "array",
        "yaxis.tickvals": None if levels is None else list(range(0, len(levels), step)),
        "yaxis.ticktext": None if levels is None else [safe(_short(v)) for v in levels[::step]],
    }


def costs(records: list[Record]) -> Plot | None:
    """Seconds and bytes of each method."""
    found = runs.methods(records)
    views = _Views()
    for name, way in (("seconds", ""), ("bytes.down", "down"), ("bytes.up", "up")):
        if name != "bytes.up":
            title = "seconds" if name == "seconds" else "traffic, bytes"
            views.view(title, **_axes(x=title))
        at = [(m, runs.stat(m.values(name))) for m in found if m.values(name)]
        at = [(m, stat) for m, stat in at if math.isfinite(stat.mean)]
        if not at:
            continue
        views.add(
            go.Bar(
                y=[safe(m.title) for m, _ in at],
                x=[stat.mean for _, stat in at],
                orientation="h",
                marker={"color": PALETTE[2 if way == "up" else 0]},
                name={"down": "server to clients", "up": "clients to server"}.get(way, "seconds"),
                showlegend=bool(way),
                error_x={
                    "array": [stat.spread or 0 for _, stat in at],
                    "thickness": 1.5,
                    "visible": not way and any(stat.spread for _, stat in at),
                    "color": PALETTE[8],
                },
                hovertemplate="%{y}: %{x:.4s}<extra></extra>",
            )
        )
    plot = views.figure(
        yaxis={"type": "category", "autorange": "reversed", "ticklabelstandoff": 6},
        xaxis={"rangemode": "tozero"},
        barmode="stack",
        height=170 + 38 * len(found),
    )
    return None if plot is None else plot.update_layout(legend={"traceorder": "normal"})


def safe(text: str) -> str:
    """A user's text as plotly shows it literally, whatever tags it holds.

    >>> safe("<b>A & B</b>")
    '&lt;b&gt;A &amp; B&lt;/b&gt;'
    """
    return html.escape(text, quote=False)


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
_NOT_VALUES = {"round", "client", "name", "split", "size"}


def _per_client(method: Method) -> dict[str, list[_Client]]:
    """Each client's values at the last evaluation, means over seeds; undefined ones left out."""
    tables = [runs.last_clients(run) for run in method.runs]
    found: dict[str, list[_Client]] = {}
    for name in dict.fromkeys(key for table in tables for key in table if key not in _NOT_VALUES):
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


def _said(method: Method, at: Sequence[_Client]) -> list[list[Any]]:
    size = [f"{c.size:,.0f}" if math.isfinite(c.size) else "an unknown number of" for c in at]
    title = safe(method.title)
    return [[title, safe(c.name), size[i], c.n] for i, c in enumerate(at)]


def _over_rounds(method: Method, name: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in method.runs:
        for entry in run.rounds:
            metrics = entry.get("metrics") or {}
            if name in metrics and "round" in entry:
                found.setdefault(int(entry["round"]), []).append(runs.number(metrics[name]))
    return {
        t: values for t, values in found.items() if math.isfinite(runs.stat(values).mean)
    }  # a round where all diverged is a gap in the line


def _ordered(names: Iterable[str]) -> list[str]:
    """What most want first: accuracy, loss, spread and worst of clients, gaps between groups."""
    first = [
        "accuracy",
        "loss",
        "client.accuracy.std",
        "client.accuracy.worst10",
        "client.loss.std",
        "client.loss.worst10",
        "faa",
    ]

    def place(name: str) -> tuple[int, str]:
        if name in first:
            return first.index(name), ""
        gap = registry.find(name).compares_groups
        kind = len(first) + (0 if gap else 1 if name.startswith("client.") else 2)
        return kind, "" if gap or name.startswith("client.") else name

    return sorted((n for n in names if n not in ("client.number", "client.left_out")), key=place)


def _axes(x: str | None = None, y: str | None = None) -> dict[str, Any]:
    """Axis titles, already escaped, as a menu entry sets them."""
    found: dict[str, Any] = {}
    if x is not None:
        found["xaxis.title.text"] = x
    if y is not None:
        found["yaxis.title.text"] = y
    return found


def _axis_title(name: str, over: str | None = None) -> str:
    """The metric on one line; below it over whom, and which way is better."""
    metric = registry.find(name)
    way = metric.better
    said = [metric.scope if over is None else over, f"{way} is better" if way else ""]
    below = safe(", ".join(part for part in said if part))
    top = safe(metric.title)
    return f'{top}<br><span style="font-size:0.85em">{below}</span>' if below else top


def _items(holder: Mapping[str, Any], key: str) -> list[Any]:
    found = holder.get(key)
    return [] if found is None else list(found)


def _client_axis(names: Sequence[str], order: str = "") -> dict[str, Any]:
    """Few clients by name; many without, and the order in which they stand."""
    many = len(names) > _MANY_CLIENTS
    said = f"clients ({len(names)})" + (f", {order}" if many and order else "")
    gap = 0.0 if many else 0.15
    return {**_ticks(None if many else names), "xaxis.title.text": said, "bargap": gap}


def _ticks(names: Sequence[str] | None) -> dict[str, Any]:
    """Names at 0, 1, 2, ... of the x axis; or its numbers again."""
    return {
        "xaxis.tickmode": "auto" if names is None else "array",
        "xaxis.tickvals": None if names is None else list(range(len(names))),
        "xaxis.ticktext": None if names is None else [safe(_short(name)) for name in names],
        # Plotly drops a name that runs out of the figure, so long ones slant inwards.
        "xaxis.tickangle": -40 if sum(len(_short(name)) for name in names or ()) > 40 else 0,
        "xaxis.ticklabeloverflow": "allow",
    }


def _short(name: str, most: int = 20) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _colour(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def _faint(i: int) -> str:
    red, green, blue = (int(_colour(i)[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _symbol(i: int) -> str:
    return _SYMBOLS[i % len(_SYMBOLS)]


def _dash(i: int) -> str:
    return _DASHES[i // len(PALETTE) % len(_DASHES)]


def _clean(at: float) -> float | None:
    """A number JSON can hold, to the seven figures a screen can show."""
    return float(f"{at:.7g}") if math.isfinite(at) else None


def _shown(spread: float | None) -> str:
    return "" if spread is None else f" ± {spread:.2g}"


def _look(**layout: Any) -> Any:
    axis = {
        "gridcolor": _GRID,
        "linecolor": _GRID,
        "zeroline": False,
        "automargin": True,
        "title": {"standoff": 12},
    }
    base = go.Layout(
        template=go.layout.Template(layout={"xaxis": axis, "yaxis": axis, "colorway": PALETTE}),
        font={"family": _FONT, "size": 13, "color": _INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        margin={"l": 60, "r": 16, "t": 16, "b": 60},
        height=420,
        hovermode="closest",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8a939c", "activecolor": PALETTE[0]},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
    )
    return base.update(layout)
