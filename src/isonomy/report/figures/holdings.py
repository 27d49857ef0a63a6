"""What each client holds: numbers and shares of each label and each group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isonomy.report import runs
from isonomy.report.figures.drawing import (
    PALETTE,
    Kind,
    Layout,
    Plot,
    Views,
    axis_titles,
    finite,
    go,
    name_ticks,
    safe,
    shortened,
)
from isonomy.report.runs import Method
from isonomy.runs.record import Record

_MANY_CLIENTS = 40  # above which bars are not named on the axis


def draw(records: list[Record]) -> Plot | None:
    """What each client holds: rows and shares of each label and of each group.

    Reads from `facts["data"]` those that are there of `names`, `sizes`, `labels`, `label_shares`
    [clients][labels] and `groups` {attribute: {"levels": [...], "shares": [clients][levels]}}.
    A few clients are shown in their own order under their names; many clients are ordered by their
    shares, or by size if there are no shares. An attribute with many levels is drawn as a heat map.
    """
    views = Views()
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
            level_names = [str(levels[j]) if j < len(levels) else str(j) for j in range(many)]
            even = [
                [runs.number(r[j]) if j < len(r) else math.nan for j in range(many)] for r in rows
            ]
            if many > len(PALETTE):
                _add_share_map(
                    views, f"share of each {what}{after}", what, names, level_names, even
                )
                continue
            if len(sizes) == len(rows) <= _MANY_CLIENTS:
                _add_rows(views, f"rows of each {what}{after}", names, sizes, level_names, even)
            _add_shares(views, f"share of each {what}{after}", names, level_names, even)
        if sizes and (not shares or len(sizes) > _MANY_CLIENTS):
            _add_rows(views, f"rows of each client{after}", names, sizes, [""], [[1.0]] * number)
    plot = views.figure(barmode="stack", showlegend=True)
    return None if plot is None else plot.update_layout(legend={"traceorder": "normal"})


def _add_rows(
    views: Views,
    title: str,
    names: Sequence[str],
    sizes: Sequence[float],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """The training rows of each client as a bar with one segment per level."""
    order = list(range(len(sizes)))
    if len(sizes) > _MANY_CLIENTS:
        order.sort(key=lambda k: -sizes[k])
    axis = _client_axis([names[k] for k in order], "from the most rows to the fewest")
    views.view(title, **axis_titles(y="training rows"), **axis, **_level_axis(None))
    for j, level in enumerate(levels):
        text = safe(level)
        views.add(
            go.Bar(
                x=list(range(len(order))),
                y=[finite(sizes[k] * shares[k][j]) for k in order],
                name=text,
                marker={"color": PALETTE[j], "line": {"width": 0}},
                customdata=[[safe(names[k]), text] for k in order],
                hovertemplate="%{customdata[0]}: %{y:,.0f} rows %{customdata[1]}<extra></extra>",
                showlegend=bool(level),
            )
        )


def _add_shares(
    views: Views,
    title: str,
    names: Sequence[str],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """Each client as a bar of the same height, divided by the shares of levels."""
    order = _by_share(shares)
    axis = _client_axis([names[k] for k in order], "ordered by their shares")
    views.view(title, **axis_titles(y="share of training rows"), **axis, **_level_axis(None))
    for j, level in enumerate(levels):
        text = safe(level)
        views.add(
            go.Bar(
                x=list(range(len(order))),
                y=[finite(shares[k][j]) for k in order],
                name=text,
                marker={"color": PALETTE[j], "line": {"width": 0}},
                customdata=[[safe(names[k]), text] for k in order],
                hovertemplate="%{customdata[0]}: %{y:.1%} are %{customdata[1]}<extra></extra>",
            )
        )


def _add_share_map(
    views: Views,
    title: str,
    what: str,
    names: Sequence[str],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """A heat map: clients on the x axis, levels on the y axis, the share as colour."""
    order = _by_share(shares)
    axis = _client_axis([names[k] for k in order], "ordered by their shares")
    views.view(title, **axis_titles(y=safe(what)), **axis, **_level_axis(levels))
    views.add(
        go.Heatmap(
            z=[[finite(shares[k][j]) for k in order] for j in range(len(levels))],
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
    """The order of clients: as given if few, else by their most common level and its share."""
    order = list(range(len(shares)))
    if len(order) <= _MANY_CLIENTS:
        return order
    if len(shares[0]) == 2:
        return sorted(order, key=lambda k: -shares[k][0])
    top = [max(range(len(row)), key=lambda j: -1.0 if math.isnan(row[j]) else row[j])
           for row in shares]  # fmt: skip
    return sorted(order, key=lambda k: (top[k], -shares[k][top[k]]))


def _level_axis(levels: Sequence[str] | None) -> Layout:
    """The layout that puts names at 0, 1, 2, ... of the y axis; None restores its numbers."""
    most = 31  # names that fit
    step = 1 if levels is None else -(-len(levels) // most)
    return {
        "yaxis.tickmode": "auto" if levels is None else "array",
        "yaxis.tickvals": None if levels is None else list(range(0, len(levels), step)),
        "yaxis.ticktext": None if levels is None else [safe(shortened(v)) for v in levels[::step]],
    }


def _items(holder: Mapping[str, Any], key: str) -> list[Any]:
    found = holder.get(key)
    return [] if found is None else list(found)


def _client_axis(names: Sequence[str], order: str = "") -> Layout:
    """The axis of clients: with names if they are few, else with the order they are shown in."""
    many = len(names) > _MANY_CLIENTS
    title = f"clients ({len(names)})" + (f", {order}" if many and order else "")
    gap = 0.0 if many else 0.15
    return {**name_ticks(None if many else names), "xaxis.title.text": title, "bargap": gap}


FIGURE = Kind(
    name="holdings",
    title="Who holds what",
    caption=(
        "The training rows of each client: their number, the number with each label and in each "
        "group, and the shares."
    ),
    draw=draw,
)
