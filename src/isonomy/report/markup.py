"""The building blocks of a page: the document, tables, lists and figures as HTML.

The document needs no network: styles and figures are inside, and a content security policy forbids
everything else, including any script but the one that it contains.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from importlib import resources

from isonomy.metrics.names import find_metric
from isonomy.report.figures import Figure
from isonomy.report.figures.drawing import View
from isonomy.report.svg_marks import escape
from isonomy.report.tables import Cell, Column, Table, parts

__all__ = ["document", "escape", "html_figure", "html_list", "html_table"]


def document(title: str, body: Sequence[str]) -> str:
    """The page with this title and body as text."""
    # Only this script may run; a closing tag inside it would end it early.
    script = _asset("page.js").replace("</script", r"<\/script")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>{_asset('page.css')}{_asset('svg.css')}</style>",
        "</head>",
        "<body>",
    ]
    tail = [f"<script>{script}</script>", "</body>", "</html>"]
    return "\n".join(part for part in (*head, *body, *tail) if part) + "\n"


def html_table(table: Table, caption: str, sortable: bool = True) -> str:
    """A table as HTML; if `sortable`, a click on a heading sorts it."""
    heads = [_th(column, sortable) for column in table.columns]
    rows = []
    for row in table.rows:
        cells = [
            _td(cell, column, first=i == 0)
            for i, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table{kind}><caption><span>{escape(caption)}</span></caption>"
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _th(column: Column, sortable: bool) -> str:
    way = {"higher": "↑ higher is better", "lower": "↓ lower is better"}.get(column.better or "")
    small = "".join(f"<small>{escape(text)}</small>" for text in (column.scope, way) if text)
    kind = ' class="text"' if column.text else ""
    tip = f' title="{escape(column.meaning)}"' if column.meaning else ""
    better = f' data-better="{column.better}"' if column.better else ""
    head = escape(column.title)
    head = f'<button type="button">{head}</button>' if sortable else head
    return f'<th scope="col"{kind}{tip}{better}>{head}{small}</th>'


def _td(cell: Cell, column: Column, first: bool) -> str:
    main, rest = (escape(part) for part in parts(cell, column))
    at = cell.value
    value = at if isinstance(at, str) else "" if at is None or math.isnan(at) else _js(at)
    if first:
        tip = f' title="{escape(find_metric(value).meaning())}"' if column.name == "metric" else ""
        return f'<th scope="row" data-value="{escape(value)}"{tip}>{main}</th>'
    if cell.best:
        main = f'<strong title="best">{main}</strong>'
    kinds = [kind for kind, on in (("text", column.text), ("best", cell.best)) if on]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    rest = f'<span class="rest">{rest}</span>' if rest else ""
    return f'<td data-value="{escape(value)}"{kind}>{main}{rest}</td>'


def _js(at: float) -> str:
    if math.isinf(at):
        return "Infinity" if at > 0 else "-Infinity"
    return repr(at)


def html_figure(figure: Figure, after: str = "") -> str:
    """The section of a figure, with its caption, its menu and the HTML that follows it."""
    charts = []
    for i, view in enumerate(figure.views):
        title = f"{figure.title}: {view.title}" if len(figure.views) > 1 else figure.title
        hidden = " hidden" if i else ""
        charts.append(f'<div class="view"{hidden}>{view.chart.html(title)}</div>')
    return (
        f'<section id="{figure.name}"><figure data-figure="{figure.name}">'
        f"<h2>{escape(figure.title)}</h2><figcaption>{escape(figure.caption)}</figcaption>"
        f"{_menu(figure.views)}{''.join(charts)}</figure>{after}</section>"
    )


def _menu(views: Sequence[View]) -> str:
    """A select box with the views, by their groups; empty for a single view."""
    if len(views) < 2:
        return ""
    groups: dict[str, list[int]] = {}
    for i, view in enumerate(views):
        groups.setdefault(view.group, []).append(i)
    out = []
    for group, members in groups.items():
        options = "".join(f'<option value="{i}">{escape(views[i].title)}</option>' for i in members)
        named = group and len(groups) > 1
        out.append(f'<optgroup label="{escape(group)}">{options}</optgroup>' if named else options)
    return f'<label class="choose">Show <select>{"".join(out)}</select></label>'


def html_list(items: Iterable[str]) -> str:
    """Notes as a list; empty text if there are none."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="notes">{rows}</ul>' if rows else ""


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files("isonomy.report").joinpath(name).read_text(encoding="utf-8")
