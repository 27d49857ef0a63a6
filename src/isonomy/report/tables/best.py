"""Which values of a table are marked as best: those that are better than chance explains.

A method is marked if it is better than every other method on the same data:

- with three or more common seeds, by a paired t test over seeds (two-sided, 5 %);
- with fewer, if the bootstrap intervals over clients do not overlap, in every common seed.

Methods with exactly the same values share a mark. If methods do not differ, a column has a mark in
at most about 5 % of cases, whatever their number; a simulation in the tests checks it. Bytes are
exact, so the least is marked. Methods that are of no use are never marked, and do not keep others
from being marked: those that predict one class for everyone, and those less accurate than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from isonomy.metrics.client import Better
from isonomy.report import runs
from isonomy.report.runs import Method

LEVEL = 0.05
LEAST_SEEDS = 3  # for a test over seeds
RULE = (
    "better than that of every other method beyond chance: by a paired t test over seeds at the "
    "5 % level with three or more seeds, else if the intervals over clients do not overlap. Of "
    "twenty columns, about one has a mark by chance."
)


@dataclass(frozen=True)
class Values:
    """A method's values of one column by seed, and their intervals where they are known."""

    by_seed: Mapping[int, float]
    intervals: Mapping[int, tuple[float, float]]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return sum(self.by_seed.values()) / len(self.by_seed)


def values(method: Method, name: str) -> Values | None:
    """A method's values; None if it is not finished, or a seed has no finite value."""
    found = {run.seed: runs.value(run, name) for run in method.runs}
    each = {seed: at for seed, at in found.items() if at is not None and math.isfinite(at)}
    if not method.finished or len(each) < len(found):
        return None
    ends = {run.seed: runs.interval(run, name) for run in method.runs}
    return Values(each, {seed: at for seed, at in ends.items() if at is not None})


def best(given: Mapping[int, Values], better: Better, *, exact: bool = False) -> set[int]:
    """The keys of the values to mark; empty if none is better than all others beyond chance.

    >>> a = Values({0: 0.80, 1: 0.82, 2: 0.81}, {})
    >>> b = Values({0: 0.70, 1: 0.71, 2: 0.72}, {})
    >>> c = Values({0: 0.70, 1: 0.92, 2: 0.79}, {})
    >>> best({0: a, 1: b}, "higher"), best({0: a, 1: c}, "higher")
    ({0}, set())
    """
    if len(given) < 2:
        return set()
    top = (max if better == "higher" else min)(given, key=lambda key: given[key].mean)
    same = {key for key, at in given.items() if at.by_seed == given[top].by_seed}
    others = [at for key, at in given.items() if key not in same]
    if not others:
        return set()
    if exact:
        return same if all(at.mean != given[top].mean for at in others) else set()
    return same if all(_beats(given[top], at, better) for at in others) else set()


def _beats(one: Values, other: Values, better: Better) -> bool:
    sign = 1.0 if better == "higher" else -1.0
    seeds = sorted(set(one.by_seed) & set(other.by_seed))
    if len(seeds) >= LEAST_SEEDS:
        ahead = [sign * (one.by_seed[s] - other.by_seed[s]) for s in seeds]
        return sum(ahead) > 0 and p_value(ahead) < LEVEL
    for seed in seeds:
        mine, theirs = one.intervals.get(seed), other.intervals.get(seed)
        if mine is None or theirs is None:
            return False
        apart = mine[0] > theirs[1] if better == "higher" else mine[1] < theirs[0]
        if not apart:
            return False
    return bool(seeds)


def p_value(differences: Sequence[float]) -> float:
    """The two-sided p-value of a t test that the mean of the differences is 0.

    >>> round(p_value([1.0, 2.0, 3.0]), 4), p_value([0.0, 0.0, 0.0])
    (0.0742, 1.0)
    """
    from scipy.special import stdtr  # slow to import

    n = len(differences)
    mean = sum(differences) / n
    variance = sum((d - mean) ** 2 for d in differences) / (n - 1)
    if mean == 0:
        return 1.0
    if variance == 0:
        return 0.0
    return float(2 * stdtr(n - 1, -abs(mean) / math.sqrt(variance / n)))


def tested(differences: Sequence[float]) -> str:
    """The p-value of a paired t test as text; differences without spread have none.

    >>> tested([1.0, 2.0, 3.0]), tested([0.5, 0.5, 0.5]), tested([0.0, 0.0])
    ('p = 0.074', 'no p, the differences are equal', 'p = 1')
    """
    least, most = min(differences), max(differences)
    if most - least < 1e-9 * max(abs(least), abs(most)):  # rounding
        return "no p, the differences are equal"
    return f"p = {p_value(differences):.2g}"


def half_width(values: Sequence[float]) -> float:
    """Half of the width of the 95 % interval of a mean, by Student's t; two values or more.

    >>> round(half_width([0.7, 0.8, 0.9]), 4)
    0.2484
    """
    from scipy.special import stdtrit  # slow to import

    n = len(values)
    return float(stdtrit(n - 1, 1 - LEVEL / 2)) * stdev(values) / math.sqrt(n)


def of_use(method: Method, constant: Mapping[str, float]) -> bool:
    """Whether a method may be best: its model is no worse than predicting one class for all."""
    if any(runs.only_class(run) for run in method.runs):
        return False
    return not below_constant(method, constant)


def below_constant(method: Method, constant: Mapping[str, float]) -> bool:
    """Whether a method's accuracy is below that of the constant prediction."""
    own, least = runs.stat(method.values("accuracy")), constant.get("accuracy")
    return least is not None and own.n > 0 and own.mean < least


def dominated(
    objectives: Mapping[str, Better], found: Sequence[Method], usable: Sequence[bool]
) -> dict[int, int]:
    """Which methods are worse than another in the mean of every objective, and than which one."""
    means = [{n: runs.stat(m.values(n)).mean for n in objectives} for m in found]
    out: dict[int, int] = {}
    for i, own in enumerate(means):
        worse = [
            j
            for j, at in enumerate(means)
            if usable[j] and found[j].finished and found[j].data == found[i].data
            if _worse(own, at, objectives)
        ]
        if worse:
            first, way = next(iter(objectives.items()))
            out[i] = (max if way == "higher" else min)(worse, key=lambda j: means[j][first])
    return out


def _worse(
    own: Mapping[str, float], other: Mapping[str, float], objectives: Mapping[str, Better]
) -> bool:
    """Whether one method is worse in each of the two or more objectives that both have."""
    both = [n for n in objectives if math.isfinite(own[n]) and math.isfinite(other[n])]
    return len(both) > 1 and all(
        other[n] > own[n] if objectives[n] == "higher" else other[n] < own[n] for n in both
    )
