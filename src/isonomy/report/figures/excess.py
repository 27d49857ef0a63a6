"""The excess risk of each client, and how FAA depends on the length of the surrogate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Chart, Line, Points, Rule
from isonomy.runs.record import Record

Z = 1.96  # standard errors on each side of a client's excess


def draw(records: list[Record]) -> list[View]:
    """Each client's excess with its interval, and FAA against the surrogate's length."""
    found = [
        (i, m, [run for run in m.runs if run.excess]) for i, m in enumerate(runs.methods(records))
    ]
    found = [(i, method, measured) for i, method, measured in found if measured]
    names = list(
        dict.fromkeys(n for _, _, at in found for run in at for n in run.excess["clients"])
    )
    clients = Chart(
        Axis(names=names), Axis("excess loss over the surrogate", "0: as good as the surrogate")
    )
    lengths = Chart(
        Axis("steps of a surrogate that is not chosen", zero=True), Axis("FAA", "lower is better")
    )
    for i, method, at in found:
        clients.add(_clients(i, method, at, names, len(found)))
        lengths.add(*_lengths(i, method, at))
    if clients.marks:
        clients.add(Rule(y=0.0))
    return drawn(
        [
            View("excess risk of each client", clients),
            View("FAA against the surrogate's length", lengths),
        ]
    )


def _clients(i: int, method: Method, at: list[Record], names: list[str], of: int) -> Points:
    """The mean excess over seeds, with the interval of a single client's excess over examples."""
    values: dict[str, list[tuple[float, float]]] = {}
    for run in at:
        rows = zip(run.excess["clients"], run.excess["excess"], run.excess["error"], strict=True)
        for name, value, error in rows:
            if value is not None:
                values.setdefault(name, []).append((value, error or 0.0))
    shown = [name for name in names if name in values]
    mean, error = zip(*(pooled(values[n]) for n in shown), strict=True) if shown else ((), ())
    aside = 0.5 * (i / (of - 1) - 0.5) if of > 1 else 0.0  # so that methods do not overlap
    return Points(
        [names.index(n) + aside for n in shown],
        mean,
        series=i,
        name=method.title,
        y_error=error,
        tips=[f"{method.title}\n{n}: {v:.4g}" for n, v in zip(shown, mean, strict=True)],
        size=4,
    )


def pooled(measured: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean over runs of (excess, its standard error), and half of its 95 % interval.

    >>> pooled([(0.1, 0.03), (0.3, 0.04)])
    (0.2, 0.049)
    """
    mean = sum(value for value, _ in measured) / len(measured)
    return mean, Z * math.sqrt(sum(error * error for _, error in measured)) / len(measured)


def _lengths(i: int, method: Method, at: list[Record]) -> list[Line | Points]:
    """FAA by the number of steps, and as a level line with the chosen surrogate."""
    steps = at[0].excess["lengths"]
    same = [run.excess["by_length"] for run in at if run.excess["lengths"] == steps]
    mean = [
        None if any(v is None for v in column) else sum(column) / len(column)
        for column in zip(*same, strict=True)
    ]
    chosen = [run.excess["faa"] for run in at if run.excess["faa"] is not None]
    tips = ["" if v is None else f"{method.title}\n{n} steps: {v:.4g}"
            for n, v in zip(steps, mean, strict=True)]  # fmt: skip
    out: list[Line | Points] = [
        Line(steps, mean, series=i, name=method.title),
        Points(steps, mean, series=i, name=method.title, tips=tips, size=3.2),
    ]
    if chosen:
        level = sum(chosen) / len(chosen)
        name = f"{method.title}, chosen surrogate"
        ends = [steps[0], steps[-1]]
        out.append(Line(ends, [level] * 2, series=i, name=name, dotted=True, tip=f"{level:.4g}"))
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
