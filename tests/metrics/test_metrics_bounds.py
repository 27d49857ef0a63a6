"""Confidence bounds of errors and gaps: their coverage, and that of a choice among many models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from isonomy.metrics import bounds


def gap_counts(k: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Counts [..., 3, 1, 2] of two groups with k [..., 2] of n [..., 2] predicted positive."""
    k, n = np.broadcast_arrays(k, n)
    both = np.stack([k, n], -1)
    return np.concatenate([both.sum(-2, keepdims=True), both], -2)[..., None, :]


def test_the_error_is_bounded_as_by_clopper_and_pearson() -> None:
    for k, n in ((0, 9), (3, 20), (20, 20), (40, 1000)):
        low, high = bounds.interval(np.array([[[k, n]]]), 0.9)
        exact = binomtest(k, n).proportion_ci(0.9, method="exact")
        assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-9)
        upper = float(bounds.upper(np.array([[[k, n]]]), 0.05))
        assert upper == pytest.approx(exact.high, abs=1e-9)


def test_a_gap_by_hand() -> None:
    """12 of 30 and 18 of 70: the rates are .4 and .257, everyone's .3, so the gap is .1."""
    counts = gap_counts(np.array([12, 18]), np.array([30, 70]))
    assert float(bounds.value(counts)) == pytest.approx(0.1)
    p, q = (binomtest(k, n).proportion_ci(0.95, method="exact") for k, n in ((12, 30), (18, 70)))
    d = 12 / 30 - 18 / 70
    high = d + np.hypot(p.high - 12 / 30, 18 / 70 - q.low)
    assert float(bounds.upper(counts, 0.05)) == pytest.approx(0.7 * high)


@pytest.mark.parametrize("alpha", [0.05, 0.0025, bounds.FINEST])
@pytest.mark.parametrize("sizes", [(9, 9), (10, 60), (30, 65), (100, 300)])
def test_the_limit_of_a_gap_covers(sizes: tuple[int, int], alpha: float) -> None:
    """By enumeration of all outcomes: the probability that the limit is below the true gap."""
    n = np.array(sizes)
    weight = 1 - n / n.sum()
    grid = np.stack(np.meshgrid(np.arange(n[0] + 1), np.arange(n[1] + 1), indexing="ij"), -1)
    limit = bounds.upper(gap_counts(grid, n), alpha)
    for p in (0.02, 0.05, 0.1, 0.3, 0.5):
        for d in (0.0, 0.03, 0.1, 0.2, 0.3):
            for q in (each for each in (p + d, p - d) if 0 <= each <= 1):
                true = weight.max() * abs(p - q)
                chance = np.outer(
                    binom.pmf(np.arange(n[0] + 1), n[0], p), binom.pmf(np.arange(n[1] + 1), n[1], q)
                )
                assert chance[limit < true - 1e-12].sum() <= alpha


def test_the_interval_of_many_groups_covers() -> None:
    """Five groups whose sizes are drawn too: the interval misses in at most 5 % of 1,000 draws."""
    draw = np.random.default_rng(0)
    share, rate = np.array([0.05, 0.1, 0.15, 0.3, 0.4]), np.array([0.3, 0.2, 0.25, 0.22, 0.3])
    true = np.abs(rate - share @ rate).max()
    missed = 0
    for _ in range(1000):
        n = draw.multinomial(400, share)
        k = draw.binomial(n, rate)
        both = np.stack([k, n], -1)
        counts = np.concatenate([both.sum(0, keepdims=True), both])[:, None, :]
        low, high = bounds.interval(counts)
        missed += not low <= true <= high
    assert missed / 1000 <= 0.05


def curve(draw: np.random.Generator, rates: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Counts of a family of models on the same examples: each has a threshold on one score."""
    scores = [draw.uniform(size=size) for size in n]
    k = np.stack([(s < r[:, None]).sum(1) for s, r in zip(scores, rates.T, strict=True)], -1)
    return gap_counts(k, n)


@pytest.mark.parametrize("n", [(30, 65), (400, 800)])
def test_a_choice_among_many_models_is_within_its_limit(n: tuple[int, int]) -> None:
    """A family of 101 models whose gap is above the limit at most places, by little.

    With probability .95 no chosen model is above the limit. The model of least measured error
    among those measured to be within it, the choice without a margin, is above it far more often.
    """
    draw = np.random.default_rng(1)
    at = np.linspace(0, 1, 101)
    rates = np.stack([0.3 + 0.2 * at, 0.3 - 0.1 * at * (at > 0.2)], -1)
    size = np.array(n)
    weight = (1 - size / size.sum()).max()
    gap = weight * np.abs(rates[:, 0] - rates[:, 1])
    most = 0.06
    missed = naive = 0
    for _ in range(200):
        counts = curve(draw, rates, size)
        found = bounds.within_limits(bounds.levels_needed([bounds.Limit(counts, most)]), 0.05)
        missed += any(gap[i] > most for i in found)
        measured = bounds.value(counts)
        naive += bool(gap[np.flatnonzero(measured <= most).max(initial=0)] > most)
    assert missed / 200 <= 0.05
    assert naive / 200 > 0.25


def test_alpha_is_handed_on_to_neighbours() -> None:
    """What passes grows from the starts; where the parts of two starts meet, they are added."""
    needed = np.zeros(10)
    needed[4] = 0.051
    found = bounds.within_limits(needed, 0.05, starts=2)  # at 0 and 9
    assert found == pytest.approx({i: 0.025 for i in range(10) if i != 4})
    needed[4] = 0.05
    assert bounds.within_limits(needed, 0.05, starts=2)[4] == pytest.approx(0.05)
    needed = np.ones(11)
    needed[4:7] = 0.0
    needed[3] = 0.01
    found = bounds.within_limits(needed, 0.06, starts=3)  # at 0, 5 and 10
    assert found == pytest.approx({5: 0.02, 4: 0.01, 6: 0.01, 3: 0.01})
    needed[5] = 0.021
    assert bounds.within_limits(needed, 0.06, starts=3) == {}


def test_needed_levels_invert_the_limit() -> None:
    k = np.stack([np.arange(20, 45), np.full(25, 40)], -1)
    counts = gap_counts(k, np.array([100, 200]))
    needed = bounds.levels_needed([bounds.Limit(counts, 0.06)])
    assert (needed[bounds.value(counts) > 0.06] == 1).all()
    inside = (needed < 0.5) & (needed > 1.01 * bounds.FINEST)
    assert inside.sum() > 3
    most = np.full(inside.sum(), 0.06)
    assert bounds.upper(counts[inside], needed[inside]) == pytest.approx(most, abs=2e-4)


def test_more_examples_narrow_the_limit() -> None:
    each = [
        float(bounds.upper(gap_counts(np.array([3, 6]) * m, np.array([10, 20]) * m), 0.05))
        for m in (1, 4, 16, 64)
    ]
    assert all(a > b for a, b in pairwise(each))
