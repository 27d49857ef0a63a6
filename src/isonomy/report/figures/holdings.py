"""What each client holds: numbers and shares of each label and each group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn
from isonomy.report.runs import Method
from isonomy.report.svg import COLOURS, Axis, Bars, Cells, Chart
from isonomy.runs.record import Record

_MANY_CLIENTS = 40  # above which bars are not named on the axis


def draw(records: list[Record]) -> list[View]:
    """What each client holds: rows and shares of each label and of each group.

    Reads from `facts["data"]` those that are there of `names`, `sizes`, `labels`, `label_shares`
    [clients][labels] and `groups` {attribute: {"levels": [...], "shares": [clients][levels]}}.
    A few clients are shown in their own order under their names; many clients are ordered by their
    shares, or by size if there are no shares. An attribute with many levels is drawn as a heat map.
    """
    views: list[View] = []
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
            if many > COLOURS:
                _add_share_map(
                    views, f"share of each {what}{after}", what, names, level_names, even
                )
                continue
            if len(sizes) == len(rows) <= _MANY_CLIENTS:
                _add_rows(views, f"rows of each {what}{after}", names, sizes, level_names, even)
            _add_shares(views, f"share of each {what}{after}", names, level_names, even)
        if sizes and (not shares or len(sizes) > _MANY_CLIENTS):
            _add_rows(views, f"rows of each client{after}", names, sizes, [""], [[1.0]] * number)
    return drawn(views)


def _add_rows(
    views: list[View],
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
    rows = [[sizes[k] * shares[k][j] for j in range(len(levels))] for k in order]
    tips = [
        [
            f"{names[k]}: {at:,.0f} rows {level}".strip()
            for at, level in zip(row, levels, strict=True)
        ]
        for k, row in zip(order, rows, strict=True)
    ]
    chart = Chart(axis, Axis("training rows", zero=True))
    views.append(View(title, _stacked(chart, levels, rows, tips), "Rows"))


def _add_shares(
    views: list[View],
    title: str,
    names: Sequence[str],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """Each client as a bar of the same height, divided by the shares of levels."""
    order = _by_share(shares)
    axis = _client_axis([names[k] for k in order], "ordered by their shares")
    rows = [[shares[k][j] for j in range(len(levels))] for k in order]
    tips = [
        [f"{names[k]}: {at:.1%} are {level}" for at, level in zip(row, levels, strict=True)]
        for k, row in zip(order, rows, strict=True)
    ]
    chart = Chart(axis, Axis("share of training rows", low=0, high=1))
    views.append(View(title, _stacked(chart, levels, rows, tips), "Shares"))


def _stacked(
    chart: Chart,
    levels: Sequence[str],
    rows: Sequence[Sequence[float]],
    tips: Sequence[Sequence[str]],
) -> Chart:
    """Add a bar for each row, with a segment for each level."""
    starts = [0.0] * len(rows)
    width = 1.0 if len(rows) > _MANY_CLIENTS else 0.82
    for j, level in enumerate(levels):
        own = [row[j] if math.isfinite(row[j]) else 0.0 for row in rows]
        ends = [a + b for a, b in zip(starts, own, strict=True)]
        texts = [tip[j] for tip in tips]
        chart.add(
            Bars(range(len(rows)), starts, ends, series=j, name=level, tips=texts, width=width)
        )
        starts = ends
    return chart


def _add_share_map(
    views: list[View],
    title: str,
    what: str,
    names: Sequence[str],
    levels: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> None:
    """A map of cells: clients on the x axis, levels on the y axis, the share as shade."""
    order = _by_share(shares)
    axis = _client_axis([names[k] for k in order], "ordered by their shares")
    top = max((v for row in shares for v in row if math.isfinite(v)), default=0.0) or 1.0
    shades = [[shares[k][j] / top for k in order] for j in range(len(levels))]
    tips = [[f"{names[k]}: {shares[k][j]:.1%} are {level}" for k in order]
            for j, level in enumerate(levels)]  # fmt: skip
    detail = f"darkest: {top:.0%} of a client's rows"
    height = max(240, min(640, 16 * len(levels)))
    chart = Chart(axis, Axis(what, detail, names=levels), height=height)
    views.append(View(title, chart.add(Cells(shades, tips)), "Shares"))


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


def _items(holder: Mapping[str, Any], key: str) -> list[Any]:
    found = holder.get(key)
    return [] if found is None else list(found)


def _client_axis(names: Sequence[str], order: str = "") -> Axis:
    """The axis of clients: with names if they are few, else with the order they are shown in."""
    if len(names) <= _MANY_CLIENTS:
        return Axis(f"clients ({len(names)})", names=names)
    return Axis(f"clients ({len(names)})", order, low=-0.5, high=len(names) - 0.5, whole=True)


FIGURE = Kind(
    name="holdings",
    title="Who holds what",
    caption=(
        "The training rows of each client: their number, the number with each label and in each "
        "group, and the shares."
    ),
    draw=draw,
)
