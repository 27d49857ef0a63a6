"""Robustness to attacks: a table of methods by settings, and a plot of mean against deviation.

Each cell is `mean (deviation)` over benign clients. As in the papers, the best method of a setting
is the one with the largest mean minus deviation.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from isonomy.report.figures.drawing import View, drawn, metric_axis
from isonomy.report.svg import Chart, Points
from isonomy.report.tables import Cell, Column, Table

Rows = list[dict[str, Any]]
Pair = tuple[str, str]
Whose = Literal["ours", "paper"]


def grid(rows: Rows, pair: Pair, whose: Whose = "ours", *, spreads: bool = False) -> Table:
    """One row per method, one column per setting; `rows` are those of `reproduce`.

    With `spreads`, a mean has its standard deviation over seeds.

    >>> rows = [dict(method="A", setting="clean", metric=m, ours=v) for m, v in
    ...         (("accuracy", 0.9), ("client.accuracy.std", 0.1))]
    >>> grid(rows, ("accuracy", "client.accuracy.std")).rows[0][1].value
    '0.900 (.100)'
    """
    found = _points(rows, pair, whose)
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    if whose == "paper":
        settings = [s for s in settings if any((m, s) in found for m in methods)]
        methods = [m for m in methods if any((m, s) in found for s in settings)]
    over_seeds = {
        (row["method"], row["setting"]): row.get("spread")
        for row in rows
        if row["metric"] == pair[0]
    }
    best = {}
    for setting in settings:
        worth = {m: mean - std for (m, s), (mean, std) in found.items() if s == setting}
        best[setting] = max(worth.values(), default=math.nan)
    body = []
    for method in methods:
        cells = [Cell(method)]
        for setting in settings:
            at = found.get((method, setting))
            if at is None:
                cells.append(Cell(None))
                continue
            mark = at[0] - at[1] == best[setting]
            spread = over_seeds.get((method, setting)) if spreads else None
            cells.append(Cell(_mean_deviation(*at, spread), best=mark))
        body.append(tuple(cells))
    heads = (
        Column("method", "method", text=True),
        *(Column(s, s or "value", text=True) for s in settings),
    )
    title = "Ours" if whose == "ours" else "The paper's"
    notes = (f"{pair[0]} ({pair[1]}) of benign clients; the best has the largest difference.",)
    return Table(f"{title}: mean (deviation)", heads, tuple(body), notes)


def plane(rows: Rows, pair: Pair) -> list[View]:
    """Accuracy against its deviation over clients: one point per method, one view per setting.

    Lower right is better: further right is more accurate under attack, lower is fairer.
    Returns no view if no method has both numbers.
    """
    found = _points(rows, pair, "ours")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    views = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        chart = Chart(metric_axis(pair[0]), metric_axis(pair[1]), height=420)
        for i, method in enumerate(methods):
            if (method, setting) in found:
                mean, std = found[method, setting]
                tip = f"{method}\n{mean:.4g} ({std:.4g})"
                chart.add(Points([mean], [std], series=i, name=method, tips=[tip], size=6))
        views.append(View(setting or "all", chart))
    return drawn(views)


def _points(rows: Rows, pair: Pair, whose: Whose) -> dict[tuple[str, str], tuple[float, float]]:
    """The mean and deviation of each method and setting that has both."""
    values = {
        (row["method"], row["setting"], row["metric"]): row[whose]
        for row in rows
        if row.get(whose) is not None and row[whose] == row[whose]
    }
    return {
        (method, setting): (mean, values[method, setting, pair[1]])
        for (method, setting, metric), mean in values.items()
        if metric == pair[0] and (method, setting, pair[1]) in values
    }


def _mean_deviation(mean: float, std: float, spread: float | None) -> str:
    """Format as `0.866 (.160)`, or `0.866 ± .012 (.160)`."""
    around = "" if spread is None else f" ± {f'{spread:.3f}'.removeprefix('0')}"
    return f"{mean:.3f}{around} ({f'{std:.3f}'.removeprefix('0')})"
