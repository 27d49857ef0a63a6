"""Tests of each client against the other clients.

A client is compared with all others together, without those found to differ as long as these are
a minority: one unusual client must not make the others look unusual. The tests take skewness and
kurtosis into account, because indicators of rare categories and heavy-tailed numbers are far from
normally distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from isonomy.data.profile.estimates import TINY, Estimates
from isonomy.data.profile.measures import gamma_tail
from isonomy.data.profile.statistics import Mask, Reals

ALPHA = 0.01  # probability of any false alarm among all comparisons of one question
LEAST_EFFECT = 0.3  # in standard deviations, for a client to be named
MOST_SKEW, MOST_EXCESS = 1.0, 1.5  # of an estimate, for its tails to be known
_REPETITIONS = 5  # of the test without outliers


@dataclass(frozen=True)
class Finding:
    """A client that differs from the others in a column: both values, and the effect in units.

    `labels` are the two compared classes, or None.
    """

    client: int
    column: int
    own: float
    others: float
    effect: float
    p: float
    labels: tuple[int, int] | None = None

    @property
    def reversed(self) -> bool:
        """Whether the relation has the opposite sign at this client."""
        return self.own * self.others < 0


@dataclass(frozen=True)
class Shift:
    """The result of one test of all clients.

    `spread` is the largest standard deviation between clients that sampling does not explain, in
    units, found in `column` (and `labels`); 0 if no column is significant. `p` is the p-value of
    no difference in any column. `findings` has one finding per client that differs, largest first.
    `effects` [K] is each client's largest significant effect, else 0; `tested` [K] is whether it
    has enough rows.
    """

    spread: float
    column: int
    p: float
    findings: tuple[Finding, ...]
    effects: Reals
    tested: Mask
    labels: tuple[int, int] | None = None


@dataclass(frozen=True)
class Comparison:
    """Each client's value [K, D] and that of the others, their difference in units, its p-value.

    `spread` and `chance` [D]: the standard deviation between clients beyond sampling, in units,
    and its p-value.
    """

    own: Reals
    others: Reals
    effect: Reals
    p: Reals
    spread: Reals
    chance: Reals


def compare(at: Estimates, weight: Reals, enough: Mask, unit: Reals) -> Comparison:
    """Compare each client with the weighted mean of the others, and all clients at once."""
    others, gap = compare_with_others(at, weight, enough)
    scale = np.where(unit > 0, unit, np.inf)
    effect = np.where(enough[:, None], gap.value / scale, 0.0)
    p = np.ones(effect.shape)
    # the others cannot pass the test: their p-values are at least those of a normal variable
    worth = (np.abs(effect) >= LEAST_EFFECT) & (gap.value**2 > 2.5**2 * gap.variance)
    p[worth] = tail(gap.value[worth], gap.variance[worth], gap.third[worth], gap.fourth[worth])
    spread, chance = _spread(at, gap, enough, scale)
    return Comparison(at.value, others, effect, p, spread, chance)


def conclude(
    at: Comparison, enough: Mask, tests: int, labels: tuple[int, int] | None = None
) -> Shift:
    """Return the clients that differ, corrected for the number of tests, and the widest column."""
    passed = (at.p * tests <= ALPHA) & (np.abs(at.effect) >= LEAST_EFFECT)
    findings = []
    for k in np.flatnonzero(passed.any(1)):
        j = int(np.argmax(np.where(passed[k], np.abs(at.effect[k]), 0)))
        own, others, effect = (float(each[k, j]) for each in (at.own, at.others, at.effect))
        p = min(1.0, float(at.p[k, j] * tests))
        findings.append(Finding(int(k), j, own, others, effect, p, labels))
    columns = max(1, int(np.isfinite(at.chance).sum()))
    beyond = np.where(at.chance * columns <= ALPHA, at.spread, 0.0)
    j = int(np.argmax(beyond))
    return Shift(
        spread=float(beyond[j]),
        column=j,
        p=min(1.0, float(at.chance.min()) * columns),
        findings=tuple(sorted(findings, key=lambda one: -abs(one.effect))),
        effects=np.abs(np.where(passed, at.effect, 0)).max(1),
        tested=enough,
        labels=labels,
    )


def compare_with_others(at: Estimates, weight: Reals, enough: Mask) -> tuple[Reals, Estimates]:
    """Return the weighted mean of the others for each client, and the client's difference to it.

    `weight` is [K], or [K, D] if it differs between columns. Without other clients the difference
    is 0.
    """
    w = np.where(enough[:, None], weight if weight.ndim > 1 else weight[:, None], 0.0)
    rest = w.sum(0) - w
    alone = rest <= TINY**2 * w.sum(0)
    rest = np.where(alone, np.inf, rest)

    def left(values: Reals, power: int) -> Reals:
        own = np.where(w > 0, w**power * values, 0.0)
        out: Reals = (own.sum(0) - own) / rest**power
        return out

    with np.errstate(invalid="ignore"):
        others = left(at.value, 1)
        gap = Estimates(
            np.where(alone, 0.0, at.value - others),
            at.variance + np.maximum(left(at.variance, 2), 0),
            at.third - left(at.third, 3),
            at.fourth + left(at.fourth, 4),
        )
    return others, gap


def tail(value: Reals, variance: Reals, third: Reals, fourth: Reals) -> Reals:
    """Return two-sided p-values of estimates with mean 0 and these cumulants.

    The p-value is the largest of three: of a gamma distribution with the estimate's skewness, of a
    t distribution with its kurtosis, and of the normal distribution. It is 1 if the estimate is
    too far from normal for these.

    >>> tail(np.array([1.96]), np.array([1.0]), np.array([0.0]), np.array([0.0])).round(3).tolist()
    [0.05]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = value / np.sqrt(variance)
        skew, excess = third / variance**1.5, fourth / variance**2
    lean = np.abs(skew)
    plain = 2 * special.ndtr(-np.abs(z))
    shape = 4 / np.square(np.where(lean > 1e-3, lean, 1.0))
    at = np.maximum(shape + np.sign(skew) * z * np.sqrt(shape), 0)
    beyond = 2 * np.minimum(special.gammainc(shape, at), special.gammaincc(shape, at))
    freedom = 4 + 6 / np.clip(excess, 1e-6, MOST_EXCESS)
    heavy = 2 * special.stdtr(freedom, -np.abs(z) * np.sqrt(freedom / (freedom - 2)))
    out: Reals = np.maximum(np.where(lean > 1e-3, beyond, plain), np.maximum(plain, heavy))
    out = np.where((lean > MOST_SKEW) | (excess > MOST_EXCESS), 1.0, out)
    return np.minimum(np.nan_to_num(out, nan=1.0), 1.0)


def _spread(at: Estimates, gap: Estimates, enough: Mask, scale: Reals) -> tuple[Reals, Reals]:
    """Return the standard deviation between clients beyond sampling [D], and its p-values [D].

    Cochran's Q of the estimates and the moment estimator of DerSimonian and Laird (1986); the
    variance of Q takes into account that rows are not normal. Columns without a test have p = 1.
    """
    own, both = at.variance[enough], gap.variance[enough]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = own / both
        q = (part * gap.value[enough] ** 2 / both).sum(0)
        freedom = part.sum(0)
        noise = 2 * freedom + (part**2 * gap.fourth[enough] / both**2).sum(0)
        w = 1 / own
        room = w.sum(0) - (w**2).sum(0) / w.sum(0)
        spread = np.sqrt(np.maximum(q - freedom, 0) / room) / scale
        p = gamma_tail(q, freedom, np.maximum(noise, 2 * freedom))
    untested = ~np.isfinite(spread) | ~np.isfinite(scale)
    return np.where(untested, 0.0, spread), np.where(untested, 1.0, p)


def repeat_without_outliers(test: Callable[[Mask], Shift], clients: int) -> Shift:
    """Repeat a test without the clients found, the clearest first, in the mean of the others.

    If these are the majority there is no common mean, and the first result is returned.
    """
    apart: Mask = np.zeros(clients, dtype=np.bool_)
    first = now = test(apart)
    for _ in range(_REPETITIONS):
        new = np.where(apart, 0.0, now.effects)
        if not new.any():
            break
        apart = apart | (new >= max(LEAST_EFFECT, new.max() / 2))
        if 2 * apart.sum() >= first.tested.sum():
            return first
        now = test(apart)
    return replace(first, findings=now.findings, effects=now.effects)


def number_of_tests(enough: Mask, unit: Reals) -> int:
    """Return the number of clients with enough rows times the number of varying columns."""
    return max(1, int(enough.sum()) * int((unit > 0).sum()))


def no_shift(clients: int) -> Shift:
    """Return the result if there is nothing to compare."""
    return Shift(0.0, 0, 1.0, (), np.zeros(clients), np.zeros(clients, dtype=np.bool_))


def combine(parts: list[Shift]) -> Shift:
    """Combine the results of several pairs of classes: the largest finding of each client."""
    widest = max(parts, key=lambda part: part.spread)
    best: dict[int, Finding] = {}
    for part in parts:
        for one in part.findings:
            if one.client not in best or abs(one.effect) > abs(best[one.client].effect):
                best[one.client] = one
    return Shift(
        spread=widest.spread,
        column=widest.column,
        p=min(1.0, len(parts) * min(part.p for part in parts)),
        findings=tuple(sorted(best.values(), key=lambda one: -abs(one.effect))),
        effects=np.max([part.effects for part in parts], axis=0),
        tested=np.any([part.tested for part in parts], axis=0),
        labels=widest.labels,
    )
