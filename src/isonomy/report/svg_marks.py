"""The marks of a chart: what each is made of, the range it needs, and its SVG text."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

Number = float | None
Step = Literal["", "hv", "hvh"]
Extent = tuple[list[float], list[float]]
COLOURS = 10  # `--c0` to `--c9` in svg.css
_SHAPES = (
    "M-{r},0a{r},{r} 0 1,0 {d},0a{r},{r} 0 1,0 -{d},0",  # circle
    "M-{s},-{s}h{w}v{w}h-{w}z",  # square
    "M0,-{t}L{t},0L0,{t}L-{t},0z",  # diamond
    "M0,-{t}L{t},{s}L-{t},{s}z",  # triangle
    "M0,{t}L{t},-{s}L-{t},-{s}z",  # triangle, point down
    "M-{s},-{h}L-{h},-{s}L0,-{q}L{h},-{s}L{s},-{h}L{q},0L{s},{h}L{h},{s}L0,{q}L-{h},{s}"
    "L-{s},{h}L-{q},0z",  # a cross
    "M-{q},-{t}h{w2}v{p}h{p}v{w2}h-{p}v{p}h-{w2}v-{p}h-{p}v-{w2}h{p}z",  # a plus
    "M0,-{t}L{t},-{q}L{h},{t}L-{h},{t}L-{t},-{q}z",  # pentagon
)


@dataclass(frozen=True)
class Scale:
    """The range of an axis, and its ticks as places and texts."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    down: bool = False

    def at(self, value: float) -> float:
        """The place as a percentage from the left, or from the top."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * (share if self.down else 1 - share), 2)

    def clipped(self, value: float) -> float:
        """The place of the nearest value within the range."""
        return self.at(min(max(value, self.low), self.high))


@dataclass(frozen=True)
class Points:
    """Marks at points, with errors to either side."""

    x: Sequence[Number]
    y: Sequence[Number]
    series: int = 0
    name: str = ""
    tips: Sequence[str] = ()
    x_error: Sequence[Number] | None = None
    y_error: Sequence[Number] | None = None
    size: float = 5
    shape: int | None = None
    hollow: bool = False

    def _there(self) -> list[tuple[int, float, float, float, float]]:
        return [
            (i, a, b, _error(self.x_error, i), _error(self.y_error, i))
            for i, (a, b) in enumerate(zip(self.x, self.y, strict=True))
            if finite(a) and finite(b)
        ]

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        there = self._there()
        xs = [v for _, a, _, e, _ in there for v in (a - e, a + e)]
        return xs, [v for _, _, b, _, e in there for v in (b - e, b + e)]

    def _look(self) -> tuple[str, str]:
        shape = (self.series if self.shape is None else self.shape) % len(_SHAPES)
        kind = f"mark c{self.series % COLOURS}" + " hollow" * self.hollow
        return _mark(shape, self.size), kind

    def key(self) -> str:
        """The key of the legend."""
        path, kind = self._look()
        return _swatch(f'<path class="{kind}" d="{path}"/>')

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        path, kind = self._look()
        out = []
        for i, a, b, ex, ey in self._there():
            if ex:
                out.append(segment(kind, sx.at(a - ex), sy.at(b), sx.at(a + ex), sy.at(b)))
            if ey:
                out.append(segment(kind, sx.at(a), sy.at(b - ey), sx.at(a), sy.at(b + ey)))
            tip = self.tips[i] if i < len(self.tips) else ""
            inner = f'<path class="{kind}" d="{path}"/>{_title(tip)}'
            out.append(f'<svg x="{sx.at(a)}%" y="{sy.at(b)}%">{inner}</svg>')
        return "".join(out)


@dataclass(frozen=True)
class Line:
    """A line, interrupted where a value is missing."""

    x: Sequence[Number]
    y: Sequence[Number]
    series: int = 0
    name: str = ""
    step: Step = ""
    dotted: bool = False
    tip: str = ""

    def _parts(self) -> list[list[tuple[float, float]]]:
        parts: list[list[tuple[float, float]]] = [[]]
        for a, b in zip(self.x, self.y, strict=True):
            if finite(a) and finite(b):
                parts[-1].append((a, b))
            elif parts[-1]:
                parts.append([])
        return [part for part in parts if len(part) > 1]

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        pairs = [pair for part in self._parts() for pair in part]
        return [a for a, _ in pairs], [b for _, b in pairs]

    @property
    def _kind(self) -> str:
        return f"line c{self.series % COLOURS} d{3 if self.dotted else self.series // COLOURS % 3}"

    def key(self) -> str:
        """The key of the legend."""
        return _swatch(f'<path class="{self._kind}" d="M-11,0H11"/>')

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        at = [[(sx.at(a), sy.at(b)) for a, b in part] for part in self._parts()]
        path = "".join(_path(part, self.step) for part in at)
        return _stretched(f'<path class="{self._kind}" d="{path}">{_title(self.tip)}</path>')


@dataclass(frozen=True)
class Band:
    """A faint band between two lines."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    series: int = 0
    name: str = ""

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        return list(self.x), [*self.low, *self.high]

    def key(self) -> str:
        """The key of the legend."""
        return f'<svg class="key"><rect class="band c{self.series % COLOURS}"/></svg>'

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        there = [(sx.at(a), sy.at(b)) for a, b in zip(self.x, self.high, strict=True)]
        back = [(sx.at(a), sy.at(b)) for a, b in zip(self.x, self.low, strict=True)][::-1]
        return _stretched(
            f'<path class="band c{self.series % COLOURS}" d="{_path(there + back)}z"/>'
        )


@dataclass(frozen=True)
class Region:
    """A shaded rectangle; None is the whole axis, and infinity its end."""

    x: tuple[float, float] | None = None
    y: tuple[float, float] | None = None
    name: str = ""

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        return list(self.x or ()), list(self.y or ())

    def key(self) -> str:
        """The key of the legend."""
        return '<svg class="key region"><rect/></svg>'

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        left, right = (sx.clipped(v) for v in self.x or (sx.low, sx.high))
        bottom, top = (sy.clipped(v) for v in self.y or (sy.low, sy.high))
        return _rect("region", (left, right), (top, bottom), self.name)


@dataclass(frozen=True)
class Rule:
    """A dashed line across the chart at one value, with its name beside it."""

    x: float | None = None
    y: float | None = None
    text: str = ""
    name: str = ""

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        return [] if self.x is None else [self.x], [] if self.y is None else [self.y]

    def key(self) -> str:
        """The key of the legend."""
        return _swatch('<path class="rule" d="M-11,0H11"/>')

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        if self.x is None:
            at = sy.at(self.y or 0.0)
            place, line = f'x="100%" y="{at}%" dy="-.4em"', segment("rule", 0, at, 100, at)
            side = "end"
        else:
            at = sx.at(self.x)
            side = "end" if at > 50 else "start"
            place = f'x="{at}%" y="0" dx="{-5 if at > 50 else 5}" dy="1em"'
            line = segment("rule", at, 0, at, 100)
        text = f'<text class="note" {place} text-anchor="{side}">{escape(self.text)}</text>'
        return line + (text if self.text else "")


@dataclass(frozen=True)
class Bars:
    """Bars from `starts` to `ends` at places `at` of the other axis."""

    at: Sequence[float]
    starts: Sequence[Number]
    ends: Sequence[Number]
    series: int = 0
    name: str = ""
    tips: Sequence[str] = ()
    error: Sequence[Number] | None = None
    horizontal: bool = False
    width: float = 0.8

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        along = [v for v in (*self.starts, *self.ends) if finite(v)]
        along += [v + _error(self.error, i) for i, v in enumerate(self.ends) if finite(v)]
        across = [v for place in self.at for v in (place - 0.5, place + 0.5)]
        return (along, across) if self.horizontal else (across, along)

    def key(self) -> str:
        """The key of the legend."""
        return f'<svg class="key"><rect class="bar c{self.series % COLOURS}"/></svg>'

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        out = []
        for i, (place, a, b) in enumerate(zip(self.at, self.starts, self.ends, strict=True)):
            if not (finite(a) and finite(b)):
                continue
            one, other = place - self.width / 2, place + self.width / 2
            xs = (sx.at(a), sx.at(b)) if self.horizontal else (sx.at(one), sx.at(other))
            ys = (sy.at(one), sy.at(other)) if self.horizontal else (sy.at(a), sy.at(b))
            tip = self.tips[i] if i < len(self.tips) else ""
            out.append(_rect(f"bar c{self.series % COLOURS}", xs, ys, tip))
            if e := _error(self.error, i):
                ends = (sx.at(b - e), sy.at(place), sx.at(b + e), sy.at(place))
                if not self.horizontal:
                    ends = (sx.at(place), sy.at(b - e), sx.at(place), sy.at(b + e))
                out.append(segment("whisker", *ends))
        return "".join(out)


@dataclass(frozen=True)
class Box:
    """A box at a place of the x axis: minimum, quartiles, maximum."""

    at: float
    quarters: tuple[float, float, float, float, float]
    series: int = 0
    name: str = ""
    tip: str = ""

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        return [self.at - 0.5, self.at + 0.5], [self.quarters[0], self.quarters[4]]

    def key(self) -> str:
        """The key of the legend."""
        return f'<svg class="key"><rect class="box c{self.series % COLOURS}"/></svg>'

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        kind = f"box c{self.series % COLOURS}"
        least, low, middle, high, most = (sy.at(v) for v in self.quarters)
        left, centre, right = (sx.at(self.at + shift) for shift in (-0.28, 0, 0.28))
        return (
            segment(kind, centre, least, centre, low)
            + segment(kind, centre, high, centre, most)
            + _rect(kind, (left, right), (high, low), self.tip)
            + segment(f"{kind} middle", left, middle, right, middle)
        )


@dataclass(frozen=True)
class Cells:
    """A map of cells, [rows][columns], each shaded by a number from 0 to 1."""

    shades: Sequence[Sequence[Number]]
    tips: Sequence[Sequence[str]]
    series: int = 0
    name: str = ""

    def extent(self) -> Extent:
        """The numbers that the axes include."""
        columns = max((len(row) for row in self.shades), default=0)
        return [-0.5, columns - 0.5], [-0.5, len(self.shades) - 0.5]

    def key(self) -> str:
        """The key of the legend."""
        return f'<svg class="key"><rect class="bar c{self.series % COLOURS}"/></svg>'

    def draw(self, sx: Scale, sy: Scale) -> str:
        """The SVG text."""
        kind = f'bar c{self.series % COLOURS}" fill-opacity="'
        return "".join(
            _rect(
                f"{kind}{shade:.2f}",
                (sx.at(k - 0.5), sx.at(k + 0.5)),
                (sy.at(j - 0.5), sy.at(j + 0.5)),
                self.tips[j][k],
            )
            for j, row in enumerate(self.shades)
            for k, shade in enumerate(row)
            if finite(shade)
        )


Mark = Points | Line | Band | Region | Rule | Bars | Box | Cells


# --- parts ----------------------------------------------------------------------------------------


def finite(value: Number) -> TypeGuard[float]:
    """Whether there is a number that can be drawn."""
    return value is not None and math.isfinite(value)


def escape(text: str) -> str:
    """Text as HTML shows it literally, also inside attributes."""
    return html.escape(text, quote=True)


def segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line between two places."""
    return f'<line class="{kind}" x1="{x1}%" y1="{y1}%" x2="{x2}%" y2="{y2}%"/>'


def _rect(kind: str, xs: tuple[float, float], ys: tuple[float, float], tip: str) -> str:
    return (
        f'<rect class="{kind}" x="{min(xs)}%" y="{min(ys)}%" '
        f'width="{round(abs(xs[1] - xs[0]), 2)}%" height="{round(abs(ys[1] - ys[0]), 2)}%">'
        f"{_title(tip)}</rect>"
    )


def _error(errors: Sequence[Number] | None, i: int) -> float:
    at = None if errors is None else errors[i]
    return float(at) if at is not None and math.isfinite(at) else 0.0


def _mark(shape: int, size: float) -> str:
    sizes = {
        "r": size,
        "d": 2 * size,
        "s": 0.88 * size,
        "w": 1.76 * size,
        "t": 1.2 * size,
        "h": 0.55 * size,
        "q": 0.36 * size,
        "w2": 0.72 * size,
        "p": 0.84 * size,
    }
    return _SHAPES[shape].format(**{k: f"{v:.3g}" for k, v in sizes.items()})


def _stretched(inner: str) -> str:
    """Paths in units of a thousandth of the area, which cannot be percentages."""
    return f'<svg class="stretch" viewBox="0 0 1000 1000" preserveAspectRatio="none">{inner}</svg>'


def _path(at: Sequence[tuple[float, float]], step: Step = "") -> str:
    out = []
    for i, (x, y) in enumerate(at):
        a, b = f"{10 * x:g}", f"{10 * y:g}"
        if not i:
            out.append(f"M{a},{b}")
        elif step == "hv":
            out.append(f"H{a}V{b}")
        elif step == "hvh":
            out.append(f"H{10 * (at[i - 1][0] + x) / 2:g}V{b}H{a}")
        else:
            out.append(f"L{a},{b}")
    return "".join(out)


def _swatch(inner: str) -> str:
    return f'<svg class="key" viewBox="-12 -7 24 14">{inner}</svg>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
