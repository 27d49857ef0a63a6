"""Charts as static SVG: points with intervals, lines, bands, bars, boxes, cells, shaded regions.

A chart is HTML text that needs neither a script nor a network. Positions are percentages, so that a
chart fills the width of its page while text and marks keep their size, on a phone as on a large
screen. Colours are the CSS variables of `svg.css`, which has a light and a dark set. The text of a
mark is its `<title>`, which browsers show as a tooltip.

    chart = Chart(Axis("error", "lower is better", rate=True), Axis("gap", rate=True))
    chart.add(Region(y=(0, 0.05), name="within the bound"))
    chart.add(Points([0.2, 0.3], [0.04, 0.01], series=0, name="FedAvg", y_error=[0.01, 0.02]))
    chart.add(Rule(y=0.05, text="bound 0.05"))
    html = chart.html("Error and gap of each model")

All text is escaped here, so callers pass it as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from isonomy.report.svg_marks import (
    COLOURS,
    Band,
    Bars,
    Box,
    Cells,
    Line,
    Mark,
    Points,
    Region,
    Rule,
    Scale,
    escape,
    finite,
    segment,
)

__all__ = [
    "COLOURS",
    "Axis",
    "Band",
    "Bars",
    "Box",
    "Cells",
    "Chart",
    "Line",
    "Mark",
    "Points",
    "Region",
    "Rule",
    "Slider",
    "nice_ticks",
]

_MOST_NAMES = 24  # names on an axis
_ROTATED = 40  # characters of all names, above which they are written at an angle


@dataclass(frozen=True)
class Axis:
    """An axis: its title, a detail in small print, and its range if it is fixed.

    `names` are categories at 0, 1, 2, ...; a `rate` stays within 0 and 1; `zero` includes 0;
    `suffix` follows each number; `whole` shows whole numbers only; `reverse` puts 0 at the top.
    """

    title: str = ""
    detail: str = ""
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()
    rate: bool = False
    zero: bool = False
    whole: bool = False
    suffix: str = ""
    reverse: bool = False


@dataclass(frozen=True)
class Slider:
    """A slider below a chart that moves a ring along points: the text and place of each."""

    label: str
    stops: Sequence[tuple[str, float, float]]
    start: int = 0


@dataclass(frozen=True)
class Plan:
    """A chart's scales, the names and keys of its legend, and its grid and marks as SVG text."""

    x: Scale
    y: Scale
    legend: tuple[tuple[str, str], ...]
    turned: bool
    canvas: str


@dataclass
class Chart:
    """A chart that marks are added to; `html` is its text."""

    x: Axis = Axis()
    y: Axis = Axis()
    height: int = 340
    slider: Slider | None = None
    marks: list[Mark] = field(default_factory=list)

    def add(self, *marks: Mark) -> Chart:
        """Add marks; later ones are drawn above earlier ones, and regions below all."""
        self.marks += marks
        return self

    def plan(self) -> Plan:
        """The chart's scales, legend and drawing, before it is laid out on a page."""
        extents = [mark.extent() for mark in self.marks]
        xs, ys = ([v for at in extents for v in at[i] if finite(v)] for i in (0, 1))
        sx = _scale(self.x, xs, down=True)
        sy = _scale(self.y, ys, down=self.y.reverse)
        named: dict[str, str] = {}
        for mark in self.marks:
            if mark.name:
                named[mark.name] = mark.key()  # of a line with marks, the mark
        turned = bool(self.x.names) and sum(len(text) for _, text in sx.ticks) > _ROTATED
        shaded = [mark for mark in self.marks if isinstance(mark, Region)]
        above = [mark for mark in self.marks if not isinstance(mark, Region)]
        marks = "".join(mark.draw(sx, sy) for mark in (*shaded, *above))
        canvas = _grid(sx, sy, self.x, self.y, turned) + marks
        return Plan(sx, sy, tuple(named.items()), turned, canvas)

    def html(self, label: str = "") -> str:
        """The chart as HTML; `label` describes it to people who do not see it."""
        plan = self.plan()
        keys = "".join(f'<span class="entry">{key}{escape(name)}</span>'
                       for name, key in plan.legend)  # fmt: skip
        legend = f'<div class="legend">{keys}</div>' if keys else ""
        wide = max((len(text) for _, text in plan.y.ticks), default=0)
        texts = [text for _, text in plan.x.ticks]
        deep = 0.42 * max(map(len, texts), default=0) + 1.2 if plan.turned else 1.6
        left = 0.62 * wide + 0.9
        if plan.turned:  # the first name extends to the left
            left = max(left, 0.45 * len(texts[0]))
        style = f"height:{self.height}px;margin-left:{left:.2f}em;"
        style += f"margin-bottom:{deep:.2f}em"
        ring, slider = _sliding(self.slider, plan.x, plan.y)
        described = f' role="img" aria-label="{escape(label)}"' if label else ""
        return (
            f'<div class="chart">{legend}{_caption("yname", self.y)}'
            f'<div class="area" style="{style}"><svg class="canvas"{described}>'
            f"{plan.canvas}{ring}</svg></div>"
            f"{_caption('xname', self.x)}{slider}</div>"
        )


# --- parts ----------------------------------------------------------------------------------------


def _sliding(slider: Slider | None, sx: Scale, sy: Scale) -> tuple[str, str]:
    if slider is None or not slider.stops:
        return "", ""
    stops = [[f"{sx.at(x)}%", f"{sy.at(y)}%", text] for text, x, y in slider.stops]
    first = stops[slider.start]
    ring = f'<svg class="ring" x="{first[0]}" y="{first[1]}"><circle r="9"/><circle r="2.5"/></svg>'
    given = escape(json.dumps(stops, separators=(",", ":")))
    return ring, (
        f'<div class="slider" data-stops="{given}"><label>{escape(slider.label)} '
        f'<input type="range" min="0" max="{len(stops) - 1}" value="{slider.start}" step="1"/>'
        f"</label><output>{escape(first[2])}</output></div>"
    )


def _grid(sx: Scale, sy: Scale, x: Axis, y: Axis, turned: bool) -> str:
    out = []
    for value, text in sy.ticks:
        at = sy.at(value)
        if not y.names:
            out.append(segment("grid", 0, at, 100, at))
        out.append(
            f'<text class="tick" x="-8" y="{at}%" dy=".35em" text-anchor="end">'
            f"{escape(text)}</text>"
        )
    for value, text in sx.ticks:
        at = sx.at(value)
        if not x.names:
            out.append(segment("grid", at, 0, at, 100))
        if turned:
            out.append(
                f'<svg x="{at}%" y="100%"><text class="tick" transform="translate(4 12) '
                f'rotate(-40)" text-anchor="end">{escape(text)}</text></svg>'
            )
        else:
            out.append(
                f'<text class="tick" x="{at}%" y="100%" dy="1.4em" text-anchor="middle">'
                f"{escape(text)}</text>"
            )
    return "".join([*out, '<rect class="frame" width="100%" height="100%"/>'])


def _caption(kind: str, axis: Axis) -> str:
    if not axis.title and not axis.detail:
        return ""
    detail = f" <small>{escape(axis.detail)}</small>" if axis.detail else ""
    return f'<div class="{kind}">{escape(axis.title)}{detail}</div>'


def _scale(axis: Axis, values: Sequence[float], down: bool) -> Scale:
    if axis.names:
        step = -(-len(axis.names) // _MOST_NAMES)
        ticks = tuple((float(i), _short(axis.names[i])) for i in range(0, len(axis.names), step))
        return Scale(-0.6, len(axis.names) - 0.4, ticks, down)
    low, high = min(values, default=0.0), max(values, default=1.0)
    rate = axis.rate and low >= 0 and high <= 1  # a squared error, say, is not one
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.06 * (high - low) or (0.05 if rate else 0.1 * abs(high) or 1.0)
    bottom = low if axis.zero and low == 0 else low - room
    top = high + room
    if rate:
        # marks at the ends keep a little room, so that they are not cut
        bottom, top = max(bottom, -0.015 * (top - bottom)), min(top, 1 + 0.03 * (top - bottom))
    bottom = bottom if axis.low is None else axis.low
    top = top if axis.high is None else axis.high
    found = [t for t in nice_ticks(bottom, top, whole=axis.whole) if not rate or 0 <= t <= 1]
    gap = found[1] - found[0] if len(found) > 1 else abs(found[0]) if found else 1.0
    return Scale(bottom, top, tuple((t, _text(t, gap) + axis.suffix) for t in found), down)


def nice_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Round numbers between two ends, at most about `most`.

    >>> nice_ticks(0.013, 0.094)
    [0.02, 0.04, 0.06, 0.08]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.9999)
    if whole:
        step = max(1.0, float(round(step)))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) + 0.0 for k in range(first, last + 1)]


def _text(value: float, step: float) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if step >= scale and abs(value) >= scale:
            return f"{value / scale:g}{unit}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 3
    if step and abs(step * 10**digits - round(step * 10**digits)) > 1e-6:
        digits += 1
    return f"{value:,.{min(digits, 8)}f}"


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
