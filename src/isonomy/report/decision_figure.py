"""The trade-off picture of a decision as SVG, with colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isonomy.report.markup import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 16, 46
LEGEND = 22  # pixels per row of the legend
COLOURS = (
    "#3b7dd8",
    "#d9822b",
    "#2e9e6b",
    "#b5477f",
    "#7a5fc9",
    "#8a8f98",
    "#c2a31d",
    "#2a9db5",
    "#c6493d",
    "#6b8e23",
    "#9c6b4f",
    "#4c6a92",
)


def trade_off(facts: Mapping[str, Any], which: int) -> str:
    """The objective against one required quantity, its feasible side shaded."""
    points = [p for p in facts["points"] if _finite(p["objective"], p["values"][which])]
    constant = facts["constant"]
    everyone = [*points, *([constant] if _finite(constant["values"][which]) else [])]
    asked = facts["asked"]["requirements"][which]
    name, sign, bound = asked.rsplit(" ", 2)
    xs = [p["values"][which] for p in everyone] + [float(bound)]
    ys = [p["objective"] for p in everyone]
    x_ends, y_ends = _ends(xs), _ends(ys)
    methods = list(dict.fromkeys(p["method"] for p in points))
    rows = math.ceil((len(methods) + 1) / 3)
    total = HEIGHT + rows * LEGEND

    def x(value: float) -> float:
        return LEFT + (value - x_ends[0]) / (x_ends[1] - x_ends[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        height = HEIGHT - TOP - BOTTOM
        return TOP + (y_ends[1] - value) / (y_ends[1] - y_ends[0]) * height

    at = x(float(bound))
    area = (LEFT, at - LEFT) if sign == "<=" else (at, WIDTH - RIGHT - at)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {total}" role="img" '
        f'aria-label="{escape(facts["objective"]["name"])} against {escape(name)}">',
        f'<rect class="area" x="{area[0]:.1f}" y="{TOP}" width="{max(area[1], 0):.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/>',
        *_axes(x_ends, y_ends, x, y, name, facts["objective"]["name"]),
        f'<line class="bound" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
        _bound_text(at, f"{sign} {bound}"),
    ]
    for p in sorted(points, key=lambda p: p["standing"] != "missed"):
        parts.append(
            _dot(
                x(p["values"][which]),
                y(p["objective"]),
                COLOURS[methods.index(p["method"]) % len(COLOURS)],
                p["standing"] != "missed",
                f"{p['name']}: {name} {p['values'][which]:.3f}, "
                f"{facts['objective']['name']} {p['objective']:.3f}",
            )
        )
    if _finite(constant["values"][which], constant["objective"]):
        at_x, at_y = x(constant["values"][which]), y(constant["objective"])
        parts.append(
            f'<path class="chosen" d="M{at_x - 5:.1f} {at_y - 5:.1f}l10 10m0 -10l-10 10">'
            "<title>Constant prediction</title></path>"
        )
    chosen = facts["chosen"]
    if chosen is not None and _finite(chosen["values"][which]):
        parts.append(
            f'<circle class="chosen" cx="{x(chosen["values"][which]):.1f}" '
            f'cy="{y(chosen["objective"]):.1f}" r="10"><title>Chosen: {escape(chosen["name"])}'
            "</title></circle>"
        )
    parts += _legend(methods)
    parts.append("</svg>")
    return "".join(parts)


def _bound_text(at: float, text: str) -> str:
    """The bound beside its line, on the side that has room for it."""
    right = at < WIDTH - 120
    place = at + 4 if right else at - 4
    anchor = "start" if right else "end"
    return (
        f'<text class="soft" x="{place:.1f}" y="{TOP + 12}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _dot(x: float, y: float, colour: str, filled: bool, tip: str) -> str:
    fill = colour if filled else "none"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{colour}" '
        f'stroke-width="1.5"><title>{escape(tip)}</title></circle>'
    )


def _axes(
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
    x: Any,
    y: Any,
    x_title: str,
    y_title: str,
) -> list[str]:
    out = []
    for tick in _ticks(x_ends):
        out.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM}"/><text class="soft" x="{x(tick):.1f}" '
            f'y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        )
    for tick in _ticks(y_ends):
        out.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" '
            f'y2="{y(tick):.1f}"/><text class="soft" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" '
            f'text-anchor="end">{tick:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_title)}</text>'
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>"
    )
    return out


def _legend(methods: Sequence[str]) -> list[str]:
    out = []
    width = (WIDTH - LEFT - RIGHT) / 3
    for i, method in enumerate([*methods, "Constant prediction"]):
        left, top = LEFT + (i % 3) * width, HEIGHT + (i // 3) * LEGEND + 6
        if i < len(methods):
            out.append(_dot(left + 6, top, COLOURS[i % len(COLOURS)], True, method))
        else:
            out.append(f'<path class="chosen" d="M{left + 2} {top - 4}l8 8m0 -8l-8 8"/>')
        shown = method if len(method) < 30 else method[:28] + "…"
        out.append(f'<text x="{left + 18:.1f}" y="{top + 4}">{escape(shown)}</text>')
    return out


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    space = max(high - low, 0.02) * 0.08
    return low - space, high + space


def _ticks(ends: tuple[float, float]) -> list[float]:
    """Round numbers between the ends, about six."""
    raw = (ends[1] - ends[0]) / 6
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(ends[0] / step)
    return [round(i * step, 10) for i in range(first, math.floor(ends[1] / step) + 1)]


def _finite(*values: float | None) -> bool:
    return all(v is not None and math.isfinite(v) for v in values)
