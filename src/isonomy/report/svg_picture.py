"""A chart as an SVG file of its own, for pages that show pictures.

A page of a report lets the browser lay out a chart; in a file, the places of the legend and the
titles are computed here, from an estimate of how wide text is. Colours follow the reader's light
or dark setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from isonomy.report.svg import Axis, Chart
from isonomy.report.svg_marks import escape

_LINE = 20  # height of a line of text
_LETTER = 6.4  # estimated width of a letter of 12 px
_KEY = 32  # width of a legend's key and the space after it


def picture(chart: Chart, label: str, *, width: int = 720) -> str:
    """The chart as the text of an SVG file; `label` describes it to people who do not see it."""
    plan = chart.plan()
    left = max(_LETTER * max((len(text) for _, text in plan.y.ticks), default=0) + 16, 40)
    names = [text for _, text in plan.x.ticks]
    if plan.turned:
        left = max(left, 4.6 * len(names[0]))
    deep = 4.4 * max(map(len, names), default=0) + 14 if plan.turned else 22.0
    right, inner = 14, width - left - 14
    legend, lines = _legend(plan.legend, width - right)
    top = lines * _LINE + (_LINE + 6 if chart.y.title else 6)
    bottom = top + chart.height
    height = bottom + deep + (_LINE if chart.x.title else 0)
    titles = _title(chart.y, 0, top - 10, "start") + _title(
        chart.x, width - right, height - 6, "end"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'class="chart" aria-label="{escape(label)}"><style>{_style()}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{legend}{titles}'
        f'<svg class="plot" x="{left:.0f}" y="{top}" width="{inner:.0f}" height="{chart.height}">'
        f"{plan.canvas}</svg></svg>\n"
    )


def _legend(entries: Sequence[tuple[str, str]], width: float) -> tuple[str, int]:
    """The keys and names, and the number of lines that they take."""
    out, x, line = [], 0.0, 0
    for name, key in entries:
        room = _KEY + _LETTER * len(name) + 14
        if x and x + room > width:
            x, line = 0.0, line + 1
        y = line * _LINE
        out.append(
            f'<svg x="{x:.0f}" y="{y + 3}" width="24" height="14">{key}</svg>'
            f'<text class="note" x="{x + _KEY - 4:.0f}" y="{y + 14}">{escape(name)}</text>'
        )
        x += room
    return "".join(out), line + 1 if entries else 0


def _title(axis: Axis, x: float, y: float, anchor: str) -> str:
    if not axis.title and not axis.detail:
        return ""
    detail = f' <tspan class="detail">{escape(axis.detail)}</tspan>' if axis.detail else ""
    return (
        f'<text class="name" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(axis.title)}'
        f"{detail}</text>"
    )


@cache
def _style() -> str:
    text = resources.files("isonomy.report").joinpath("svg.css").read_text(encoding="utf-8")
    rules = text.split("@media print")[0].split(".tip {")[0]
    more = (
        ".chart{margin:0;font-family:system-ui,Helvetica,Arial,sans-serif}.paper{fill:var(--chart-paper)}"
        ".chart .name{fill:var(--chart-ink);font-weight:600;font-size:12px}"
        ".chart .detail{fill:var(--chart-soft);font-weight:400}"
    )
    return " ".join(rules.split("*/", 1)[1].split()) + more
