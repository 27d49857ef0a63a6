"""Distances and tests of shares, against SciPy and by hand."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import jensenshannon

from isonomy.data.profile.measures import (
    _moments,
    association,
    chance_spread,
    distances,
    gini,
    margin,
)
from isonomy.metrics import client

RNG = np.random.default_rng(0)


def test_gini_is_that_of_the_metrics():
    for sizes in ([1, 2, 3], [5], [7, 7], RNG.integers(1, 1000, 50)):
        assert gini(sizes) == pytest.approx(float(client.gini(sizes)))
    assert gini([0, 0]) == 0


def test_distances_by_hand_and_by_scipy():
    counts = np.array([[30, 10, 0], [10, 30, 20], [100, 0, 100]])
    whole = counts.sum(0) / counts.sum()
    far = distances(counts)
    for k, row in enumerate(counts / counts.sum(1, keepdims=True)):
        assert far.variation[k] == pytest.approx(np.abs(row - whole).sum() / 2)
        assert far.shannon[k] == pytest.approx(jensenshannon(row, whole, base=2))


def test_a_client_without_rows_has_no_distance():
    far = distances([[3, 1], [0, 0]])
    assert far.variation[0] == 0
    assert np.isnan(far.variation[1])
    assert np.isnan(far.shannon[1])


@pytest.mark.parametrize(
    ("clients", "rows", "p"),
    [
        (200, 12, (0.9, 0.08, 0.02)),
        (20, 100, (0.5, 0.5)),
        (5, 8, (0.25,) * 4),
        (3, 1000, (0.99, 0.01)),
    ],
)
def test_chance_is_what_chance_gives(clients, rows, p):
    """The expected distance of clients drawn from one distribution, over 400 draws."""
    far = [distances(RNG.multinomial(rows, p, size=clients)) for _ in range(400)]
    found = np.mean([one.variation.mean() for one in far])
    said = np.mean([one.chance.mean() for one in far])
    spread = np.std([one.variation.mean() - one.chance.mean() for one in far]) / 20
    assert abs(found - said) < max(3 * spread, 0.05 * found)


def test_association_is_scipys_where_counts_are_large():
    counts = RNG.integers(20, 200, (6, 4))
    statistic, p, _, _ = stats.chi2_contingency(counts, correction=False)
    found = association(counts)
    assert found.p == pytest.approx(p)
    n, r, c = counts.sum(), 6, 4
    phi = statistic / n - (r - 1) * (c - 1) / (n - 1)
    narrow = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1))
    assert found.v == pytest.approx(np.sqrt(phi / (narrow - 1)))


def test_the_statistics_moments_are_those_of_random_tables():
    for rows, columns in (([3, 4, 5, 6, 2], [10, 8, 2]), ([30, 40, 5, 1], [70, 6])):
        tables = stats.random_table(rows, columns).rvs(20_000, random_state=1)
        expected = np.outer(rows, columns) / np.sum(rows)
        values = ((tables - expected) ** 2 / expected).sum((1, 2))
        mean, variance = _moments(np.array(rows, float), np.array(columns, float))
        assert values.mean() == pytest.approx(mean, rel=0.02)
        assert values.var() == pytest.approx(variance, rel=0.06)


def test_a_table_whose_statistic_cannot_vary_says_nothing():
    assert association(np.eye(5)).p == 1
    assert association([[4, 4]]) == (0.0, 1.0)
    assert association([[4, 0], [3, 0]]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("clients", "rows", "p"),
    [(100, 12, (0.9, 0.08, 0.02)), (10, 30, (0.97, 0.03)), (5, 400, (0.3, 0.7))],
)
def test_false_alarms_are_as_many_as_said(clients, rows, p):
    """At 5 %, of 600 draws without association; 2 to 8 % allows for the draws' own chance."""
    found = [association(RNG.multinomial(rows, p, size=clients)) for _ in range(600)]
    assert 0.02 < np.mean([one.p <= 0.05 for one in found]) < 0.08
    assert np.mean([one.v for one in found]) < 0.06  # small clients do not look heterogeneous


def test_association_is_found():
    shares = RNG.dirichlet((2, 2), size=20)
    found = association(np.stack([RNG.multinomial(50, p) for p in shares]))
    assert found.p < 1e-6
    assert found.v > 0.2


def test_margins_are_normal_intervals():
    assert margin(384) == pytest.approx(0.05, abs=1e-4)
    assert margin([0, 1]).tolist() == pytest.approx([1.0, 0.98], abs=1e-3)


def test_the_spread_by_chance_is_that_of_drawn_accuracies():
    rows = np.array([20, 50, 200, 1000])
    drawn = RNG.binomial(rows, 0.8, size=(20_000, 4)) / rows
    assert chance_spread(rows, 0.8) == pytest.approx(np.sqrt(drawn.var(0).mean()), rel=0.02)
    assert chance_spread([0, 0], 0.8) == 0
