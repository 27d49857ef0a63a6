"""Whether features, or their relation to the label, differ between clients beyond chance.

Three questions, from the weakest to the strongest:

- `moved`: do the means of features differ? Different shares of labels alone make them differ.
- `moved_given_label`: do they differ among rows with the same label? Label shift does not do that.
- `related`: does the difference between the means of two classes differ? Neither label shift nor
  an offset that a client adds to all its rows does that. For regression: the slope.

The last is what a change of the relation of features to the label looks like in sums. It is not
the only thing that looks so: where a client sees another range of people under the same rule,
differences of class means change too. Sums alone do not tell the two apart.

The reference of a client is the others together, without those found to differ, as long as these
are the minority: one odd client must not make the rest look odd. Standard errors come from
variances inside clients and classes; tails allow for the estimates' skewness and kurtosis, since
indicators of rare categories and heavy-tailed numbers are far from normal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import special

from isonomy.data.describe.measures import gamma_tail
from isonomy.data.describe.portrait import Integers, Mask, Portrait, Reals

LEAST_ROWS = 10  # of a class at a client, for its mean to be compared
MOST_SKEW, MOST_EXCESS = 1.0, 1.5  # of an estimate, for its tails to be known
MOST_PAIRS = 66  # of classes: all pairs of 12
ALPHA = 0.01  # chance of any false alarm among all comparisons of one question
LEAST_EFFECT = 0.3  # in standard deviations, for a client to be named
_AGAIN = 5  # rounds of setting clients apart
_TINY = 1e-6


@dataclass(frozen=True)
class Cells:
    """Means of client x label cells, and how well they are known.

    `rows` [K, L]; `mean` and `variance` (of one row) [K, L, D]; `skew` and `excess` [L, D] of one
    row; `unit` [D], the standard deviation inside labels, over all clients.
    """

    rows: Reals
    mean: Reals
    variance: Reals
    skew: Reals
    excess: Reals
    unit: Reals


@dataclass(frozen=True)
class Estimates:
    """A number a client and column [K, D], its sampling variance, third and fourth cumulant."""

    value: Reals
    variance: Reals
    third: Reals
    fourth: Reals


@dataclass(frozen=True)
class Finding:
    """A client that differs from the others in a column: both values, and the size in units.

    `labels` are the two classes compared, or None; `reversed` says the two values have opposite
    signs and neither is small.
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
        """Whether the relation has the opposite sign here."""
        return self.own * self.others < 0


@dataclass(frozen=True)
class Shift:
    """The answer to one question.

    `spread` is the largest standard deviation between clients that sampling does not explain, in
    units, found in `column` (and `labels`), 0 where no column's test passes; `p` is of the test
    that no column differs between any clients. `findings` are the clients that differ by
    themselves, a finding each, largest first. `effects` [K] is each client's largest effect that
    passed the test, else 0; `tested` [K] whether it has rows enough.
    """

    spread: float
    column: int
    p: float
    findings: tuple[Finding, ...]
    effects: Reals
    tested: Mask
    labels: tuple[int, int] | None = None


# --- the questions -------------------------------------------------------------------------------


def moved(portrait: Portrait, without: Mask | None = None) -> Shift:
    """Differences of features' means between clients, whatever explains them.

    Features in `without` [features] are not looked at.
    """
    return _ask(_features(portrait, without, together=True))


def moved_given_label(portrait: Portrait, without: Mask | None = None) -> Shift:
    """Differences of features' means among rows with the same label, averaged over labels."""
    return _ask(_features(portrait, without, together=False))


def _features(portrait: Portrait, without: Mask | None, together: bool) -> Cells:
    """Cells of the features alone, of all labels together or of each."""
    width = len(portrait.shape.features)
    parts = [portrait.first, portrait.second, portrait.third, portrait.fourth]
    parts = [at[..., :width] for at in parts]
    rows = portrait.rows
    if together:
        parts = [at.sum(-2, keepdims=True) for at in parts]
        rows = rows.sum(1, keepdims=True)
    at = cells(rows, *parts)
    return at if without is None else replace(at, unit=np.where(without, 0.0, at.unit))


def related(portrait: Portrait) -> Shift:
    """Differences in how features, and groups, go with the label."""
    if portrait.shape.regression:
        return _slopes(portrait)
    at = cells(portrait.rows, portrait.first, portrait.second, portrait.third, portrait.fourth)
    pairs = held_pairs(portrait.rows)
    if not pairs:
        return _nothing(len(portrait.rows))
    tests = sum(_tests(_enough(at.rows, pair), at.unit) for pair in pairs)

    def test(apart: Mask) -> Shift:
        parts = []
        for pair in pairs:
            contrasts, weight, enough = _contrasts(at, pair)
            found = _compare(contrasts, np.where(apart, 0.0, weight), enough, at.unit)
            parts.append(_conclude(found, enough, tests, pair))
        return _together(parts)

    return _settled(test, len(at.rows))


def _ask(at: Cells) -> Shift:
    offsets, weight, enough = _offsets(at)
    if enough.sum() < 2 or not (at.unit > 0).any():
        return _nothing(len(enough))
    tests = _tests(enough, at.unit)

    def test(apart: Mask) -> Shift:
        found = _compare(offsets, np.where(apart, 0.0, weight), enough, at.unit)
        return _conclude(found, enough, tests)

    return _settled(test, len(enough))


def _settled(test: Callable[[Mask], Shift], clients: int) -> Shift:
    """Test again without the clients found in the others' mean, the clearest ones first.

    Where the majority is found there is no mean to speak of, and the first answer stands.
    """
    apart: Mask = np.zeros(clients, dtype=np.bool_)
    first = now = test(apart)
    for _ in range(_AGAIN):
        new = np.where(apart, 0.0, now.effects)
        if not new.any():
            break
        apart = apart | (new >= max(LEAST_EFFECT, new.max() / 2))
        if 2 * apart.sum() >= first.tested.sum():
            return first
        now = test(apart)
    return replace(first, findings=now.findings, effects=now.effects)


def held_pairs(rows: Integers) -> list[tuple[int, int]]:
    """The pairs of classes that two clients or more hold enough of; the commonest of many."""
    enough = (rows >= LEAST_ROWS).astype(np.int64)
    both = enough.T @ enough
    pairs = [(a, b) for a, b in combinations(range(rows.shape[1]), 2) if both[a, b] > 1]
    return sorted(sorted(pairs, key=lambda pair: -both[pair])[:MOST_PAIRS])


# --- cells ---------------------------------------------------------------------------------------


def cells(rows: Integers, first: Reals, second: Reals, third: Reals, fourth: Reals) -> Cells:
    """Means and variances of client x label cells from sums of powers."""
    n = rows.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n[..., None] > 0, first / n[..., None], 0.0)
        squares = np.maximum(second - first * mean, 0.0)  # about the cell's own mean
        freedom = np.maximum(n - 1, 0).sum(0)[:, None]
        within = np.where(freedom > 0, squares.sum(0) / freedom, 0.0)
        total = second.sum((0, 1)) / max(float(n.sum()), 1.0)
        by_label = second.sum(0) - np.square(first.sum(0)) / np.maximum(n.sum(0), 1)[:, None]
        unit = np.sqrt(np.maximum(by_label.sum(0) / max(float(n.sum()), 1.0), _TINY**2 * total))
        skew, excess = _shape_of(n.sum(0)[:, None], first.sum(0), second.sum(0), third, fourth)
        within = np.maximum(within, _TINY**2 * total)
        # a client whose own rows vary clearly more than all do is judged by its own variance
        own = squares / np.maximum(n - 1, 1)[..., None]
        clearly = 1 + 3 * np.sqrt((excess + 2) / np.maximum(n, 1)[..., None])
        variance = np.where((own > within * clearly) & (n[..., None] >= 2), own, within)
    return Cells(n, mean, variance, skew, excess, unit)


def _shape_of(
    n: Reals, first: Reals, second: Reals, third: Reals, fourth: Reals
) -> tuple[Reals, Reals]:
    """Skewness and excess kurtosis of a row, from sums of powers about one centre."""
    n = np.maximum(n, 1)
    m, s2, s3, s4 = first / n, second / n, third / n, fourth / n
    variance = s2 - m**2
    flat = variance <= np.square(_TINY) * s2
    safe = np.where(flat, 1.0, variance)
    skew = (s3 - 3 * m * s2 + 2 * m**3) / safe**1.5
    excess = (s4 - 4 * m * s3 + 6 * m**2 * s2 - 3 * m**4) / safe**2 - 3
    return np.where(flat, 0.0, skew), np.where(flat, 0.0, np.maximum(excess, -2.0))


def _enough(rows: Reals, labels: tuple[int, ...]) -> Mask:
    """The clients [K] with enough rows of all these labels."""
    out: Mask = np.asarray((rows[:, list(labels)] >= LEAST_ROWS).all(1))
    return out


def _mean_of(at: Cells, label: int) -> Estimates:
    """The cells' means of one label, and the cumulants of their sampling errors."""
    n = np.maximum(at.rows[:, label], 1)[:, None]
    variance = at.variance[:, label]
    third = at.skew[label] * variance**1.5 / n**2
    fourth = at.excess[label] * variance**2 / n**3
    return Estimates(at.mean[:, label], variance / n, third, fourth)


def _contrasts(at: Cells, pair: tuple[int, int]) -> tuple[Estimates, Reals, Mask]:
    """Each client's difference of two classes' means, and its weight among others."""
    low, high = (_mean_of(at, label) for label in pair)
    out = Estimates(
        high.value - low.value,
        high.variance + low.variance,
        high.third - low.third,
        high.fourth + low.fourth,
    )
    enough = _enough(at.rows, pair)
    a, b = (at.rows[:, label] for label in pair)
    return out, np.where(enough, a * b / np.maximum(a + b, 1), 0.0), enough


def _offsets(at: Cells) -> tuple[Estimates, Reals, Mask]:
    """Each client's distance to all clients' class means, averaged over the classes it holds.

    Subtracting the whole's class means first lets clients with other labels be compared.
    """
    n = at.rows[..., None]
    whole = (n * at.mean).sum(0) / np.maximum(n.sum(0), 1)
    held = at.rows >= LEAST_ROWS
    share = held / np.maximum(held.sum(1, keepdims=True), 1)
    value, variance, third, fourth = (np.zeros(at.mean[:, 0].shape) for _ in range(4))
    for label in range(at.rows.shape[1]):
        one, weight = _mean_of(at, label), share[:, [label]]
        value += weight * (one.value - whole[label])
        variance += weight**2 * one.variance
        third += weight**3 * one.third
        fourth += weight**4 * one.fourth
    enough: Mask = np.asarray(held.any(1))
    # the fewer rows of a class that counts as much as the others, the less a client's offset weighs
    with np.errstate(divide="ignore"):
        weight = np.where(enough, 1 / (share**2 / np.maximum(at.rows, 1)).sum(1), 0.0)
    return Estimates(value, variance, third, fourth), weight, enough


def _slopes(portrait: Portrait) -> Shift:
    """For regression: the slopes of y on each feature and of each feature on y.

    Other features at a client change the second, other targets the first; a client is named only
    where both differ the same way, so neither explains it alone.
    """
    n = portrait.rows.sum(1).astype(np.float64)
    width = len(portrait.shape.features)
    x1, x2 = portrait.first[:, 0, :width], portrait.second[:, 0, :width]
    y1, y2 = portrait.target[:, :1], portrait.target[:, 1:]
    size = n[:, None]
    xx = np.maximum(x2 - x1**2 / size, 0.0)
    yy = np.broadcast_to(np.maximum(y2 - y1**2 / size, 0.0), xx.shape)
    xy = portrait.cross[:, :width] - x1 * y1 / size
    enough: Mask = n >= 2 * LEAST_ROWS
    if enough.sum() < 2 or not (yy > 0).any():
        return _nothing(len(n))
    freedom = np.maximum(size - 1, 0).sum()
    sd_x, sd_y = (np.sqrt(at.sum(0) / freedom) for at in (xx, yy))
    alive = (sd_x > 0) & (xx.sum(0) > _TINY**2 * x2.sum(0))
    sd_x = np.where(alive, sd_x, 1.0)
    forward = _slope(xy / (sd_x * sd_y), xx / sd_x**2, yy / sd_y**2, n, enough)
    inverse = _slope(xy / (sd_x * sd_y), yy / sd_y**2, xx / sd_x**2, n, enough)

    def test(apart: Mask) -> Shift:
        return _conclude(_both(forward, inverse, apart, enough, alive), enough, tests)

    tests = _tests(enough, alive)
    return _settled(test, len(n))


def _both(
    forward: tuple[Estimates, Reals],
    inverse: tuple[Estimates, Reals],
    apart: Mask,
    enough: Mask,
    alive: Mask,
) -> Comparison:
    """What holds of the slopes in both directions."""
    one, two = (
        _compare(at, np.where(apart[:, None], 0.0, weight), enough, alive.astype(np.float64))
        for at, weight in (forward, inverse)
    )
    smaller = np.where(np.abs(one.effect) < np.abs(two.effect), one.effect, two.effect)
    return Comparison(
        own=one.own,
        others=one.others,
        effect=np.where(one.effect * two.effect > 0, smaller, 0.0),
        p=np.maximum(one.p, two.p),
        spread=np.minimum(one.spread, two.spread),
        chance=np.maximum(one.chance, two.chance),
    )


def _slope(xy: Reals, xx: Reals, yy: Reals, n: Reals, enough: Mask) -> tuple[Estimates, Reals]:
    """Slopes of y on x [K, D] from sums of squares and products, and their weights."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(xx > 0, xy / xx, 0.0)
        squares = np.maximum(yy - value * xy, 0.0)
        freedom = np.maximum(n - 2, 1)[:, None]
        within = squares[enough].sum(0) / freedom[enough].sum()
        own = squares / freedom
        clearly = 1 + 3 * np.sqrt(2 / freedom)
        variance = np.maximum(np.where(own > within * clearly, own, within), _TINY**2)
        none = np.zeros(value.shape)
        known = np.where(xx > 0, variance / xx, np.inf)
    return Estimates(value, known, none, none), np.where(enough[:, None], xx, 0.0)


# --- tests ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Each client's value [K, D] beside the others', their difference in units and its p-value.

    `spread` and `chance` [D]: the standard deviation between clients beyond sampling, in units,
    and the p-value of there being none.
    """

    own: Reals
    others: Reals
    effect: Reals
    p: Reals
    spread: Reals
    chance: Reals


def _compare(at: Estimates, weight: Reals, enough: Mask, unit: Reals) -> Comparison:
    """Each client against the weighted mean of the others, and all of them at once."""
    others, gap = against_others(at, weight, enough)
    scale = np.where(unit > 0, unit, np.inf)
    effect = np.where(enough[:, None], gap.value / scale, 0.0)
    p = np.ones(effect.shape)
    # nobody asks for the p-value of the rest, which is no smaller than a normal variable's
    worth = (np.abs(effect) >= LEAST_EFFECT) & (gap.value**2 > 2.5**2 * gap.variance)
    p[worth] = tail(gap.value[worth], gap.variance[worth], gap.third[worth], gap.fourth[worth])
    spread, chance = _spread(at, gap, enough, scale)
    return Comparison(at.value, others, effect, p, spread, chance)


def _conclude(
    at: Comparison, enough: Mask, tests: int, labels: tuple[int, int] | None = None
) -> Shift:
    """The clients that differ, allowing for so many tests; the column that differs most."""
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


def against_others(at: Estimates, weight: Reals, enough: Mask) -> tuple[Reals, Estimates]:
    """The others' weighted mean for each client, and the client's difference to it.

    `weight` is [K], or [K, D] where columns weigh clients differently. A client without others
    does not differ from them.
    """
    w = np.where(enough[:, None], weight if weight.ndim > 1 else weight[:, None], 0.0)
    rest = w.sum(0) - w
    alone = rest <= _TINY**2 * w.sum(0)
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
    """Two-sided p-values of estimates with mean 0 and these cumulants.

    The largest of three: of a gamma distribution with the estimate's skewness, of a t distribution
    with its kurtosis, and of the normal one, which both are when there is none. An estimate too
    far from normal for that says nothing: 1.

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
    """Between clients: standard deviation beyond sampling [D] in units, and its p-values [D].

    Cochran's Q of the estimates and the moment estimator of DerSimonian and Laird (1986); the
    variance of Q allows for rows that are not normal. NaN where a column has nothing to test.
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
    dull = ~np.isfinite(spread) | ~np.isfinite(scale)
    return np.where(dull, 0.0, spread), np.where(dull, 1.0, p)


def _tests(enough: Mask, unit: Reals) -> int:
    return max(1, int(enough.sum()) * int((unit > 0).sum()))


def _nothing(clients: int) -> Shift:
    return Shift(0.0, 0, 1.0, (), np.zeros(clients), np.zeros(clients, dtype=np.bool_))


def _together(parts: list[Shift]) -> Shift:
    """The answers of several pairs of classes as one: each client's largest finding."""
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
