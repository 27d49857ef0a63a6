"""The excess risk of each client, and how FAA depends on the length of the surrogate."""

from __future__ import annotations

import math

from isonomy.report import runs
from isonomy.report.figures.drawing import (
    Kind,
    Plot,
    Views,
    axis_titles,
    colour,
    dash,
    finite,
    go,
    name_ticks,
    safe,
    symbol,
)
from isonomy.report.runs import Method
from isonomy.runs.record import Record

Z = 1.96  # standard errors on each side of a client's excess


def draw(records: list[Record]) -> Plot | None:
    """Each client's excess with its interval, and FAA against the surrogate's length."""
    found = [
        (i, m, [run for run in m.runs if run.excess]) for i, m in enumerate(runs.methods(records))
    ]
    found = [(i, method, measured) for i, method, measured in found if measured]
    names = list(
        dict.fromkeys(n for _, _, at in found for run in at for n in run.excess["clients"])
    )
    views = Views()
    views.view(
        "excess risk of each client",
        **axis_titles(x="", y="excess loss over the surrogate (0: as good)"),
        **name_ticks(names),
    )
    for i, method, at in found:
        views.add(_clients(i, method, at, names, len(found)))
    views.view(
        "FAA against the surrogate's length",
        **axis_titles(x="steps of a surrogate that is not chosen", y="FAA (lower is better)"),
        **name_ticks(None),
    )
    for i, method, at in found:
        for trace in _lengths(i, method, at):
            views.add(trace)
    return views.figure()


def _clients(i: int, method: Method, at: list[Record], names: list[str], of: int) -> object:
    """The mean excess over seeds, with the interval of a single client's excess over examples."""
    values: dict[str, list[tuple[float, float]]] = {}
    for run in at:
        rows = zip(run.excess["clients"], run.excess["excess"], run.excess["error"], strict=True)
        for name, value, error in rows:
            if value is not None:
                values.setdefault(name, []).append((value, error or 0.0))
    shown = [name for name in names if name in values]
    mean = [sum(v for v, _ in values[n]) / len(values[n]) for n in shown]
    aside = 0.5 * (i / (of - 1) - 0.5) if of > 1 else 0.0  # so that methods do not overlap
    error = [math.sqrt(sum(e * e for _, e in values[n])) / len(values[n]) for n in shown]
    return go.Scatter(
        x=[names.index(n) + aside for n in shown],
        y=[finite(v) for v in mean],
        error_y={"array": [finite(Z * e) for e in error], "thickness": 1.2, "width": 3},
        mode="markers",
        name=safe(method.title),
        marker={"color": colour(i), "symbol": symbol(i), "size": 8},
        customdata=[safe(n) for n in shown],
        hovertemplate="%{customdata}: %{y:.4g}<extra></extra>",
    )


def _lengths(i: int, method: Method, at: list[Record]) -> list[object]:
    """FAA by the number of steps, and as a level line with the chosen surrogate."""
    steps = at[0].excess["lengths"]
    same = [run.excess["by_length"] for run in at if run.excess["lengths"] == steps]
    mean = [
        None if any(v is None for v in column) else sum(column) / len(column)
        for column in zip(*same, strict=True)
    ]
    chosen = [run.excess["faa"] for run in at if run.excess["faa"] is not None]
    out = [
        go.Scatter(
            x=steps,
            y=mean,
            mode="lines+markers",
            name=safe(method.title),
            line={"color": colour(i), "width": 2, "dash": dash(i)},
            marker={"symbol": symbol(i), "size": 6},
            hovertemplate="%{x} steps: %{y:.4g}<extra></extra>",
        )
    ]
    if chosen:
        level = sum(chosen) / len(chosen)
        out.append(
            go.Scatter(
                x=[steps[0], steps[-1]],
                y=[level, level],
                mode="lines",
                name=safe(f"{method.title}, chosen surrogate"),
                line={"color": colour(i), "width": 1.2, "dash": "dot"},
                hovertemplate="chosen: %{y:.4g}<extra></extra>",
            )
        )
    return out


FIGURE = Kind(
    name="excess",
    title="Excess risk",
    caption=(
        "A client's excess is its loss minus that of its surrogate, on the same examples, as means "
        "over seeds. Bars are 95 % intervals over examples, for the trained models and surrogates. "
        "FAA is the distance between the highest and the lowest client. The second view shows the "
        "FAA that a surrogate of a fixed length would give, trained on its cluster alone; the "
        "dotted lines are FAA as reported, against surrogates chosen on held-out examples."
    ),
    draw=draw,
)
