"""Search spaces: the values of an option among which `isonomy tune` searches.

They are declared beside the option, `option(0.1, "strength", search=Range(0.001, 10, log=True))`.
An option without one is not tuned.

>>> Range(0.001, 1, log=True).text, Grid((0.1, 1, 5)).text
('0.001 to 1, logarithmic', '0.1, 1, 5')
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included; with `log`, small ones as often as large."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"a range from {self.low} to {self.high}: give a finite low < high.")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range from {self.low}: give a low above 0.")

    @property
    def text(self) -> str:
        """The range in words."""
        return f"{self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that decide whether all are allowed."""
        return self.low, self.high

    def contains(self, value: Any) -> bool:
        """Whether the value is in the range."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high


@dataclass(frozen=True)
class Grid:
    """These values only: numbers, strings, true or false; usually the grid of the paper."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(set(self.values)) != len(self.values):
            raise ValueError(f"a grid of {self.values}: give two or more different values.")

    @property
    def text(self) -> str:
        """The values in words."""
        return ", ".join(json.dumps(value) for value in self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that decide whether all are allowed."""
        return self.values

    def contains(self, value: Any) -> bool:
        """Whether the value is one of these."""
        return any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values
        )


SearchSpace = Range | Grid
