"""Ranks of methods over several data sets: mean ranks, Friedman's test, critical differences.

After Demšar, "Statistical comparisons of classifiers over multiple data sets" (JMLR 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Ranking", "nondominated", "rank"]


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over data sets; rank 1 is the best.

    Two methods whose mean ranks differ by less than `critical` are not told apart by Nemenyi's
    test at the level of 5 %. `p` is that of Friedman's test that all methods are equally good.
    """

    ranks: Mapping[str, float]
    data: Sequence[str]
    p: float
    critical: float

    def near(self, method: str) -> list[str]:
        """The methods that Nemenyi's test does not tell apart from this one, best first."""
        at = self.ranks[method]
        return [name for name, rank in self.ranks.items() if abs(rank - at) < self.critical]


def rank(values: Mapping[str, Mapping[str, float]], *, higher: bool) -> Ranking | None:
    """Rank the methods that have a value for every data set; None if there are fewer than two.

    `values` has for each method its value for each data set; equal values share their mean rank.

    >>> found = rank({"a": {"x": 0.9, "y": 0.8}, "b": {"x": 0.7, "y": 0.8}}, higher=True)
    >>> found.ranks
    {'a': 1.25, 'b': 1.75}
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range  # slow to import

    data = sorted(set().union(*values.values())) if values else []
    full = [name for name, own in values.items() if all(one in own for one in data)]
    if len(full) < 2 or not data:
        return None
    table = np.array([[values[name][one] for one in data] for name in full])
    ranks = rankdata(-table if higher else table, axis=0)
    means = ranks.mean(axis=1)
    k, n = len(full), len(data)
    p = math.nan
    if k > 2 and n > 1:
        with np.errstate(invalid="ignore"):
            p = float(friedmanchisquare(*table).pvalue)
    critical = float(studentized_range.ppf(0.95, k, np.inf)) / math.sqrt(2)
    critical *= math.sqrt(k * (k + 1) / (6 * n))
    order = sorted(range(k), key=lambda i: (means[i], full[i]))
    return Ranking({full[i]: float(means[i]) for i in order}, data, p, critical)


def nondominated(points: Mapping[str, Sequence[float]]) -> list[str]:
    """The names of the points that no other point beats: less is better in every coordinate.

    >>> nondominated({"a": (0.1, 0.5), "b": (0.2, 0.4), "c": (0.2, 0.5)})
    ['a', 'b']
    """

    def beaten(at: Sequence[float]) -> bool:
        return any(
            all(x <= y for x, y in zip(other, at, strict=True)) and tuple(other) != tuple(at)
            for other in points.values()
        )

    return [name for name, at in points.items() if not beaten(at)]
