"""The linear program behind the rules: mixtures of decision rules of least error within budgets.

For every cell (client k, group a) some candidate rules are given, such as thresholds, each with its
utility (the number of correct decisions) and the numerators of the rates that the notion compares.
The program chooses weights w >= 0 of the candidates that sum to 1 in each cell:

    maximise    sum of w * utility
    subject to  low_r <= rate_r(a) <= low_r + budget              over all clients, for every rate r
                low_kr <= rate_kr(a) <= low_kr + local budget     in each client k

where low is free, so the bounds hold for the difference of every two groups. A rate of a group
without examples is left out. Constant decisions are among the candidates, so a solution exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isonomy.errors import TrainingError
from isonomy.metrics.counts import Floats

SMALL = 1e-9  # weights below this are 0

Cell = tuple[int, int]
"""A client and a group."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidate rules of one cell: their utility [m], numerators [m, rates] and denominators."""

    utility: Floats
    above: Floats
    below: Floats  # [rates]


@dataclass(frozen=True, eq=False)
class Solution:
    """Each cell's weights of its candidates, the utility, and the prices of the budgets.

    `price[k, a, r]` is what a decision that counts in rate r costs in client k and group a, in
    units of utility: the multipliers of both budgets, each divided by its denominator.
    """

    weights: dict[Cell, Floats]
    utility: float
    price: Floats


def solve(
    cells: Mapping[Cell, Candidates],
    clients: int,
    levels: int,
    budget: float,
    local: float | None = None,
) -> Solution:
    """The best mixtures within the budgets; a budget of 1 or more is no constraint."""
    order = list(cells)
    rates = len(next(iter(cells.values())).below)
    sizes = [len(cells[cell].utility) for cell in order]
    starts = dict(zip(order, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    total = sum(sizes)
    below = np.zeros((clients, levels, rates))
    for at, found_in in cells.items():
        below[at] = found_in.below
    made = _Rows(total)
    everyone = list(range(clients))
    if budget < 1:
        for r in range(rates):
            made.band(cells, starts, everyone, below.sum(0)[:, r], r, budget)
    if local is not None and local < 1:
        for k in everyone:
            for r in range(rates):
                made.band(cells, starts, [k], below[k, :, r], r, local)
    scale = max(sum(float(np.abs(each.utility).max()) for each in cells.values()), 1.0)
    utility = np.concatenate([cells[cell].utility for cell in order])
    found = made.solved(-utility / scale, sizes)
    weights = {}
    for cell, size in zip(order, sizes, strict=True):
        w = np.clip(found.x[starts[cell] : starts[cell] + size], 0, None)
        w = np.where(w < SMALL, 0.0, w)
        weights[cell] = w / w.sum()
    price = np.zeros((clients, levels, rates))
    for row, (who, a, r, sign) in enumerate(made.about):
        paid = -float(found.ineqlin.marginals[row]) * scale
        price[who, a, r] += sign * paid / below[who, a, r].sum()
    best = sum(float(weights[cell] @ cells[cell].utility) for cell in order)
    return Solution(weights, best, price)


class _Rows:
    """The inequalities, in the order in which they are added."""

    def __init__(self, columns: int) -> None:
        self.columns = columns  # of weights; the free `low` of each band come after them
        self.lows = 0
        self.entries: list[tuple[int, int, float]] = []
        self.right: list[float] = []
        self.about: list[tuple[list[int], int, int, float]] = []  # clients, group, rate, sign

    def band(
        self,
        cells: Mapping[Cell, Candidates],
        starts: Mapping[Cell, int],
        who: list[int],
        below: Floats,
        rate: int,
        width: float,
    ) -> None:
        """All groups' rates among some clients lie in a band of this width."""
        groups = [a for a in range(len(below)) if below[a] > 0]
        if len(groups) < 2:
            return
        low = self.columns + self.lows
        self.lows += 1
        for a in groups:
            for sign, right in ((1.0, width), (-1.0, 0.0)):
                row = len(self.right)
                for k in who:
                    if (k, a) in cells:
                        above = cells[k, a].above[:, rate] / below[a]
                        at = np.flatnonzero(above)
                        first = starts[k, a]
                        self.entries += [(row, first + int(m), sign * above[m]) for m in at]
                self.entries.append((row, low, -sign))
                self.right.append(right)
                self.about.append((who, a, rate, sign))

    def solved(self, cost: Floats, sizes: list[int]) -> Any:
        """The solution of HiGHS; raises TrainingError if it finds none."""
        from scipy.optimize import linprog  # slow to import
        from scipy.sparse import coo_array

        whole = self.columns + self.lows
        row, column, value = zip(*self.entries, strict=True) if self.entries else ((), (), ())
        where = np.repeat(np.arange(len(sizes)), sizes)
        once = coo_array(
            (np.ones(self.columns), (where, np.arange(self.columns))), shape=(len(sizes), whole)
        )
        bands = coo_array((value, (row, column)), shape=(len(self.right), whole))
        found = linprog(
            np.append(cost, np.zeros(self.lows)),
            A_ub=bands.tocsr(),
            b_ub=self.right,
            A_eq=once.tocsr(),
            b_eq=np.ones(len(sizes)),
            bounds=[(0, None)] * self.columns + [(None, None)] * self.lows,
            method="highs",
        )
        if found.x is None:
            raise TrainingError(
                f"the linear program of the post-processing was not solved ({found.message}); "
                "raise its budgets."
            )
        return found
