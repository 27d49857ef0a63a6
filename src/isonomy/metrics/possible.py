"""Requirements that no predictions at all can meet, proved by a linear program.

Whatever a model is, its predictions on some examples are shares q(k, g, y, p): of the examples of
client k, group g and label y, how many are predicted p. Every rate that a requirement bounds is
linear in them, the labels of the examples being known. So

    min v   such that every requirement is missed by at most v,  q >= 0,  sum_p q = 1,
            and the groups of an attribute together are everyone

is a linear program, and v > 0 proves that no predictions meet all requirements on these examples,
not even those of someone who knows all labels. For example, if the labels of two groups differ,
then equal rates cost accuracy. Examples of two attributes are only tied together by everyone's
counts, which allows more predictions than there are, so a proof remains one; v = 0 proves nothing.

Losses are left out: predictions that know the labels have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from isonomy.core.notions import NOTIONS
from isonomy.metrics.counts import Counts, Floats
from isonomy.metrics.quantities import Target
from isonomy.metrics.requirements import Requirement

LEAST = 1e-6  # a smaller v can be a rounding error of the solver
MOST = 60_000  # shares in the largest program that is solved


@dataclass(frozen=True)
class Conflict:
    """Requirements that cannot be met together on some examples.

    Each of `best` is the best value of that requirement's quantity that any predictions have which
    meet the others. `examples` is the number of examples.
    """

    requirements: tuple[Requirement, ...]
    best: tuple[float, ...]
    examples: int

    @property
    def text(self) -> str:
        """The proof as a sentence."""
        every = " and ".join(one.text for one in self.requirements)
        on = f"on the {self.examples:,} training examples"
        if len(self.requirements) == 1:
            return (
                f"No predictions at all meet {every} {on}, not even correct ones; the best value "
                f"is {self.best[0]:.4f}."
            )
        first, value = self.requirements[0], self.best[0]
        others = " and ".join(one.text for one in self.requirements[1:])
        word = "at most" if first.sign == ">=" else "at least"
        return (
            f"No predictions at all, whatever the model, meet {every} {on}: the labels of the "
            f"groups or clients differ too much. With {others}, {first.target.text} is {word} "
            f"{value:.4f}."
        )


def conflict(requirements: Sequence[Requirement], counts: Counts) -> Conflict | None:
    """The smallest set of requirements that no predictions meet together; None if none is found.

    `counts` are those of any model on the examples: only their labels are used.
    """
    known = [one for one in requirements if not one.target.quantity.is_loss]
    for number in range(1, len(known) + 1):
        for some in combinations(known, number):
            program = _Program(some, counts)
            if program.size > MOST or not program.least(range(number)) > LEAST:
                continue
            best = []
            for i, one in enumerate(some):
                over = program.least([i])
                best.append(one.bound + over if one.sign == "<=" else one.bound - over)
            return Conflict(some, tuple(best), int(counts.sizes.sum()))
    return None


@dataclass(frozen=True)
class Rate:
    """A rate as a linear function of the shares: sum of weight * q at (client, row, label, class).

    It is over the examples of these clients in a row of the counts.
    """

    at: tuple[tuple[int, int, int, int], ...]
    weight: tuple[float, ...]


def rates_of(target: Target, counts: Counts) -> list[list[Rate]]:
    """The rates that a quantity compares, as `Target.families`; those without examples left out."""
    quantity, clients = target.quantity, range(len(counts))
    labels = counts.counts.sum(-1).astype(np.float64)
    groups = range(0)
    if quantity.needs_attribute:
        rows = counts.rows(target.attribute)
        groups = range(rows.start, rows.stop)
    units: dict[str, list[list[tuple[list[int], int]]]] = {
        "everyone": [[(list(clients), 0)]],
        "clients": [[([k], 0) for k in clients]],
        "groups": [[(list(clients), g) for g in groups]],
        "groups in each client": [[([k], g) for g in groups] for k in clients],
    }
    out = []
    for family in units[quantity.whose]:
        for cells in _cells(target, counts.classes):
            out.append([rate for who, row in family for rate in _rate(who, row, cells, labels)])
    if quantity.rates == "recall":  # one family of all classes
        out = [[rate for family in out for rate in family]]
    return out


def _cells(target: Target, classes: int) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """For each rate: the labels of the examples that it is over, and (label, class) that count."""
    every, name = list(range(classes)), target.quantity.rates
    if name == "accuracy":
        yield every, [(y, y) for y in every]
    elif name == "recall":
        for y in every:
            yield [y], [(y, y)]
    else:
        for given in NOTIONS[name].given:
            for c in every[1:] if classes == 2 else every:
                over = every if given is None else [y for y in every if (y == c) == bool(given)]
                yield over, [(y, c) for y in over]


def _rate(
    who: list[int], row: int, cells: tuple[list[int], list[tuple[int, int]]], labels: Floats
) -> list[Rate]:
    over, counted = cells
    size = float(labels[who, row][:, over].sum())
    if not size > 0:
        return []
    at = [(k, row, y, p) for k in who for y, p in counted if labels[k, row, y] > 0]
    return [Rate(tuple(at), tuple(float(labels[k, g, y]) / size for k, g, y, _ in at))]


class _Program:
    """The linear program of some requirements."""

    def __init__(self, requirements: Sequence[Requirement], counts: Counts) -> None:
        local = {"clients", "groups in each client"}
        if not any(one.target.quantity.whose in local for one in requirements):
            counts = counts.pooled()
        self.requirements = requirements
        self.labels = counts.counts.sum(-1)
        self.classes = counts.classes
        names = dict.fromkeys(one.target.attribute for one in requirements if one.target.attribute)
        self.attributes = [counts.rows(name) for name in names]
        rows = [0, *(g for at in self.attributes for g in range(at.start, at.stop))]
        self.column: dict[tuple[int, int, int, int], int] = {}
        for k in range(len(counts)):
            for g in rows:
                for y in range(self.classes):
                    if self.labels[k, g, y] > 0:
                        for p in range(self.classes):
                            self.column[k, g, y, p] = len(self.column)
        self.families = [rates_of(one.target, counts) for one in requirements]

    @property
    def size(self) -> int:
        """The number of shares."""
        return len(self.column)

    def least(self, relaxed: Sequence[int]) -> float:
        """The least v by which these requirements have to be missed; the others hold."""
        from scipy.optimize import linprog  # takes half a second, so import it only here
        from scipy.sparse import coo_array

        shares = self.size
        low = shares + 1  # one column for the lower end of each compared family
        ends = sum(
            len(families)
            for one, families in zip(self.requirements, self.families, strict=True)
            if one.target.quantity.form == "difference"
        )
        width = low + ends
        above, equal = _Rows(), _Rows()
        self._add_shares(equal, above)
        for i, (one, families) in enumerate(zip(self.requirements, self.families, strict=True)):
            v = {shares: -1.0} if i in relaxed else {}
            form = one.target.quantity.form
            for family in families:
                if form == "difference":
                    for rate in family:
                        at = self._at(rate)
                        above.add({**{c: -w for c, w in at.items()}, low: 1.0}, 0.0)
                        above.add({**at, low: -1.0, **v}, one.bound)
                    low += 1
                elif form == "mean":
                    mean: dict[int, float] = {}
                    for rate in family:
                        for c, w in self._at(rate).items():
                            mean[c] = mean.get(c, 0.0) - w / len(family)
                    above.add({**mean, **v}, -one.bound)
                else:
                    for rate in family:
                        above.add({**{c: -w for c, w in self._at(rate).items()}, **v}, -one.bound)
        cost = np.zeros(width)
        cost[shares] = 1.0
        found = linprog(
            cost,
            A_ub=coo_array(above.entries, shape=(above.number, width)),
            b_ub=above.right,
            A_eq=coo_array(equal.entries, shape=(equal.number, width)),
            b_eq=equal.right,
            bounds=[(0.0, 1.0)] * shares + [(0.0, None)] * (width - shares),
            method="highs",
        )
        return float(found.fun) if found.status == 0 else 0.0  # without an optimum, no proof

    def _at(self, rate: Rate) -> dict[int, float]:
        return {self.column[cell]: w for cell, w in zip(rate.at, rate.weight, strict=True)}

    def _add_shares(self, equal: _Rows, above: _Rows) -> None:
        """Shares are 1 together, and the groups of an attribute are everyone or part of it."""
        cells = {(k, g, y) for k, g, y, _ in self.column}
        for k, g, y in cells:
            equal.add({self.column[k, g, y, p]: 1.0 for p in range(self.classes)}, 1.0)
        for k, g, y in cells:
            if g:
                continue
            whole = float(self.labels[k, 0, y])
            for rows in self.attributes:
                inside = [h for h in range(rows.start, rows.stop) if (k, h, y) in cells]
                complete = sum(self.labels[k, h, y] for h in inside) == self.labels[k, 0, y]
                for p in range(self.classes):
                    line = {
                        self.column[k, h, y, p]: float(self.labels[k, h, y]) / whole for h in inside
                    }
                    line[self.column[k, 0, y, p]] = -1.0
                    (equal if complete else above).add(line, 0.0)


class _Rows:
    """Rows of a sparse matrix with their right-hand sides."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.right: list[float] = []

    @property
    def number(self) -> int:
        return len(self.right)

    @property
    def entries(self) -> tuple[list[float], tuple[list[int], list[int]]]:
        return self.values, (self.rows, self.columns)

    def add(self, line: dict[int, float], right: float) -> None:
        self.values += line.values()
        self.rows += [len(self.right)] * len(line)
        self.columns += line
        self.right.append(right)
