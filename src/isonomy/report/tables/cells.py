"""Columns and cells of a table, and how the number in a cell is shown.

A cell keeps the full number; the number of digits shown is decided once per column. A missing
number is never an empty cell: a dash means that the run does not have it, and `undefined` that it
has no value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isonomy.metrics.client import Better

ABSENT = "–"
UNDEFINED = "undefined"
MOST_DIGITS = 6


@dataclass(frozen=True)
class Column:
    """A heading: the metric's name, title, exact meaning, and which direction is better.

    Numbers are divided by `scale` and shown with `digits` decimals; `text` columns contain text.
    """

    name: str
    title: str
    meaning: str = ""
    better: Better | None = None
    scope: str = ""
    text: bool = False
    digits: int = 3
    scale: float = 1.0


@dataclass(frozen=True)
class Cell:
    """A value with its spread or interval, the number of runs it is from, and if it is the best.

    `n` of the `of` runs have the value; `digits` overrides the column's digits; `signed` always
    shows a sign; `note` follows the number.
    """

    value: float | str | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    of: int = 0
    best: bool = False
    digits: int | None = None
    signed: bool = False
    note: str = ""


def parts(cell: Cell, column: Column) -> tuple[str, str]:
    """The value as shown, and the text after it: spread, interval, number of runs."""
    at = cell.value
    if at is None:
        return ABSENT, ""
    if isinstance(at, str):
        return at, ""
    digits = column.digits if cell.digits is None else cell.digits
    if math.isnan(at):
        return UNDEFINED, ""

    def show(number: float, signed: bool = False) -> str:
        return _number(number / column.scale, digits, signed)

    rest = ""
    if cell.spread is not None and math.isfinite(cell.spread):
        rest += f" ± {show(cell.spread)}"
    elif cell.low is not None and cell.high is not None:
        rest += f" [{show(cell.low)}, {show(cell.high)}]"
    if cell.n < cell.of:
        rest += f" ({cell.n} of {cell.of})"
    rest += f" {cell.note}" if cell.note else ""
    return show(at, cell.signed), rest


def shown(cell: Cell, column: Column) -> str:
    """The text of the whole cell."""
    return "".join(parts(cell, column))


def optional(value: float | str | None) -> float | None:
    """A number read from a file, or None."""
    return None if value is None else float(value)


def digits_for(values: Sequence[float | None], spreads: Sequence[float | None]) -> int:
    """The number of decimals: three or four digits of the largest value, one of the spread."""
    top = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    if not top:
        return 3
    power = math.floor(math.log10(top))
    digits = 3 - power if power >= 0 else 2 - power
    wide = max((s for s in spreads if s is not None and math.isfinite(s)), default=0.0)
    if wide:
        digits = max(digits, min(-math.floor(math.log10(wide)), digits + 2))
    return max(0, min(digits, MOST_DIGITS))


def _number(at: float, digits: int, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if math.isinf(at):
        return f"{'-' if at < 0 else sign}∞"
    tiny = digits >= MOST_DIGITS and 0 < abs(at) < 0.5 * 10**-MOST_DIGITS
    if tiny or abs(at) >= 1e12:
        return f"{at:{sign}.3g}"
    comma = "," if abs(at) >= 1e5 else ""
    return f"{round(at, digits) + 0.0:{sign}{comma}.{digits}f}"  # + 0.0 avoids -0
