"""What all figures share: colours, axes, menus, layout.

All text that comes from a user is escaped with `safe`, because plotly interprets tags in text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeAlias

from isonomy.metrics.names import find_metric
from isonomy.runs.record import Record

go: Any = import_module("plotly.graph_objects")  # plotly has no types
Plot: TypeAlias = Any
"""A `plotly.graph_objects.Figure`."""

Trace: TypeAlias = Any
"""A trace of a plotly figure, such as `plotly.graph_objects.Scatter`."""

Layout = dict[str, object]
"""Settings of a figure's layout by their dotted names."""

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
"""Colours that are legible on a white and on a dark background."""

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon")
_DASHES = ("solid", "dash", "dot", "dashdot")
_INK, _GRID = "#3a3f45", "#dfe3e7"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Kind:
    """A kind of figure: its name on the page, title, caption, and the function that draws it.

    `draw` returns None if the runs contain nothing to draw.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[list[Record]], Plot | None]


@dataclass
class Views:
    """The views of a figure: the traces of each entry of its menu, and the layout it sets."""

    traces: list[Trace] = field(default_factory=list)
    of: list[int] = field(default_factory=list)
    entries: list[tuple[str, Layout]] = field(default_factory=list)

    def view(self, title: str, **layout: object) -> None:
        """Begin a view; traces added from now on belong to it."""
        self.entries.append((title, layout))

    def add(self, trace: Trace) -> None:
        """Add a trace to the current view."""
        self.traces.append(trace)
        self.of.append(len(self.entries) - 1)

    def figure(self, **layout: object) -> Plot | None:
        """The figure with its first view shown; None without a trace."""
        used = [i for i in range(len(self.entries)) if i in self.of]
        if not used:
            return None
        for trace, of in zip(self.traces, self.of, strict=True):
            trace.visible = of == used[0]
        plot = go.Figure(self.traces, layout=_layout(**layout))
        plot.update_layout(self.entries[used[0]][1])
        if "height" not in layout:  # room for the lines of the legend
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


def safe(text: str) -> str:
    """A user's text, escaped so that plotly shows its tags literally.

    >>> safe("<b>A & B</b>")
    '&lt;b&gt;A &amp; B&lt;/b&gt;'
    """
    return html.escape(text, quote=False)


def ordered(names: Iterable[str]) -> list[str]:
    """Metric names in the order of menus: accuracy, loss, clients, groups, then the others."""
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
        gap = find_metric(name).compares_groups
        kind = len(first) + (0 if gap else 1 if name.startswith("client.") else 2)
        return kind, "" if gap or name.startswith("client.") else name

    return sorted((n for n in names if n not in ("client.number", "client.left_out")), key=place)


def axis_titles(x: str | None = None, y: str | None = None) -> Layout:
    """Axis titles, already escaped, for the layout of a view."""
    found: Layout = {}
    if x is not None:
        found["xaxis.title.text"] = x
    if y is not None:
        found["yaxis.title.text"] = y
    return found


def metric_axis(name: str, over: str | None = None) -> str:
    """The metric's title; on a second line, what it is over and which direction is better."""
    metric = find_metric(name)
    way = metric.better
    details = [metric.scope if over is None else over, f"{way} is better" if way else ""]
    below = safe(", ".join(part for part in details if part))
    top = safe(metric.title)
    return f'{top}<br><span style="font-size:0.85em">{below}</span>' if below else top


def name_ticks(names: Sequence[str] | None) -> Layout:
    """The layout that puts names at 0, 1, 2, ... of the x axis; None restores its numbers."""
    return {
        "xaxis.tickmode": "auto" if names is None else "array",
        "xaxis.tickvals": None if names is None else list(range(len(names))),
        "xaxis.ticktext": None if names is None else [safe(shortened(name)) for name in names],
        # Plotly drops names that extend beyond the figure, so long names are rotated.
        "xaxis.tickangle": -40 if sum(len(shortened(name)) for name in names or ()) > 40 else 0,
        "xaxis.ticklabeloverflow": "allow",
    }


def shortened(name: str, most: int = 20) -> str:
    """A name with at most this many characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def colour(i: int) -> str:
    """The colour of the i-th method."""
    return PALETTE[i % len(PALETTE)]


def faint_colour(i: int) -> str:
    """The colour of the i-th method, almost transparent."""
    red, green, blue = (int(colour(i)[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def symbol(i: int) -> str:
    """The marker of the i-th method."""
    return _SYMBOLS[i % len(_SYMBOLS)]


def dash(i: int) -> str:
    """The line style of the i-th method, which differs where colours repeat."""
    return _DASHES[i // len(PALETTE) % len(_DASHES)]


def finite(at: float) -> float | None:
    """The number with seven significant digits; None, which JSON can store, if it is not finite."""
    return float(f"{at:.7g}") if math.isfinite(at) else None


def plus_minus(spread: float | None) -> str:
    """The spread as hover text; empty if there is none."""
    return "" if spread is None else f" ± {spread:.2g}"


def _layout(**layout: object) -> Any:
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
