"""The building blocks of a page: the document, tables, lists and figures as HTML.

The document needs no network: the plotting library, styles and data are inside, and a content
security policy forbids everything else, including any script but the two that it contains.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Sequence
from importlib import import_module, resources
from typing import Any

from isonomy.metrics.names import find_metric
from isonomy.report.figures import Figure
from isonomy.report.tables import Cell, Column, Table, parts


def document(title: str, body: Sequence[str]) -> str:
    """The page with this title and body as text."""
    # Only these two scripts may run; a closing tag inside them would end them early.
    offline: Any = import_module("plotly.offline")
    given = (str(offline.get_plotlyjs()), _asset("js"))
    scripts = [text.replace("</script", r"<\/script") for text in given]
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
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
        f"<style>{_asset('css')}</style>",
        "</head>",
        "<body>",
    ]
    tail = [*(f"<script>{text}</script>" for text in scripts), "</body>", "</html>"]
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
        f"<table{kind}><caption>{escape(caption)}</caption>"
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
        main = f'<strong>{main}</strong><span class="hidden"> (best)</span>'
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
    given = json.loads(figure.plot.to_json())
    menus = given["layout"].pop("updatemenus", [])
    buttons = menus[0]["buttons"] if menus else []
    given["views"] = [button["args"] for button in buttons]
    choose = ""
    if buttons:
        # The labels were escaped when the figure was drawn.
        options = "".join(f"<option>{button['label']}</option>" for button in buttons)
        choose = f'<label class="choose">Show <select>{options}</select></label>'
    label = escape(f"Figure: {figure.title}. {figure.caption}")
    return (
        f'<section id="{figure.name}"><figure data-plot="{figure.name}">'
        f"<h2>{escape(figure.title)}</h2><figcaption>{escape(figure.caption)}</figcaption>{choose}"
        f'<div class="plot" role="img" aria-label="{label}"></div>'
        f'<script type="application/json">{_json(given)}</script></figure>{after}</section>'
    )


def html_list(items: Iterable[str]) -> str:
    """Notes as a list; empty text if there are none."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="notes">{rows}</ul>' if rows else ""


def _json(value: object) -> str:
    """JSON that cannot end the script element that contains it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(kind: str) -> str:
    return resources.files("isonomy.report").joinpath(f"page.{kind}").read_text(encoding="utf-8")


def escape(text: str) -> str:
    """Text as HTML shows it literally, also inside attributes."""
    return html.escape(text, quote=True)
