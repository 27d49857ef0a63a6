"""A table of published numbers beside ours."""

from __future__ import annotations

from typing import Any

from isonomy.errors import ConfigError
from isonomy.report.tables.cells import ABSENT, MOST_DIGITS, Cell, Column, digits_for, optional
from isonomy.report.tables.table import Table


def reproduction(rows: list[dict[str, Any]], scale: str = "") -> Table:
    """Published numbers beside ours, with the difference.

    Each row has `preset`, `method`, `setting`, `metric`, `paper` (None if the paper gives no
    number), `ours`, `spread` (None with one seed) and `seeds` (how many). `scale` names the scale
    of the preset that our numbers are from. A `verdict` (how the runs of the method ended) is shown
    if any row has one. Raises ConfigError if a row lacks one of these.

    >>> row = dict(preset="focus", method="FedAvg", setting="mu=0.1", metric="accuracy",
    ...            paper=0.81, ours=0.8, spread=0.012, seeds=3)
    >>> print(reproduction([row]).rows[0][6].value)
    -0.01
    """
    wanted = ("preset", "method", "setting", "metric", "paper", "ours", "spread", "seeds")
    heads = (
        *(Column(name, name, text=True) for name in wanted[:4]),
        Column("paper", "paper"),
        Column("ours", "ours"),
        Column("difference", "difference"),
        Column("seeds", "seeds", digits=0),
    )
    judged = any(row.get("verdict") for row in rows)
    if judged:
        heads = (*heads, Column("verdict", "verdict", text=True))
    body = []
    for i, row in enumerate(rows):
        if missing := [name for name in wanted if name not in row]:
            raise ConfigError(f"reproduction row {i} lacks {', '.join(missing)}; add them.")
        paper, ours, spread = (optional(row[name]) for name in ("paper", "ours", "spread"))
        seeds = len(row["seeds"]) if isinstance(row["seeds"], list | tuple) else row["seeds"]
        digits = max(2, min(_decimals(paper), MOST_DIGITS)) if paper is not None else None
        if digits is None:
            digits = digits_for([ours], [spread])
        gap = None if paper is None or ours is None else round(ours - paper, 12)
        body.append(
            (
                *(Cell(str(row[name])) for name in wanted[:4]),
                Cell(paper, digits=digits),
                Cell(ours, spread=spread, digits=digits),
                Cell(gap, digits=digits, signed=True),
                Cell(float(seeds)),
                *([Cell(str(row.get("verdict") or ""))] if judged else []),
            )
        )
    notes = [
        "Difference: our number minus the paper's, before rounding.",
        "± is the standard deviation over seeds.",
    ]
    if judged:
        notes.append(
            "Verdict: the number of runs with each verdict of the method on its own model."
        )
    if any(row[4].value is None for row in body):
        notes.append(f"{ABSENT} in column paper: the paper gives no number.")
    if any(row[5].value is None for row in body):
        notes.append(f"{ABSENT} in column ours: not run yet.")
    title = "Published numbers and ours" + (f", scale {scale}" if scale else "")
    return Table(title, heads, tuple(body), tuple(notes))


def _decimals(number: float) -> int:
    """The number of decimals with which a number was given."""
    return len(f"{number!r}".partition("e")[0].partition(".")[2])
