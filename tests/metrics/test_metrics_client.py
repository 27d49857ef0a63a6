import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from isonomy.errors import ConfigError
from isonomy.metrics import Counts, best, client_accuracy, client_loss, interval, spread, worst
from isonomy.metrics.client import entropy, gini, jain, mean, std, variance, variation
from isonomy.metrics.registry import CLIENT_SUMMARIES

quick = settings(max_examples=100, deadline=None, derandomize=True)
some_values = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


def test_each_client_counts_its_own_examples():
    counts = Counts(
        np.array([[[[3, 1], [0, 4]]], [[[0, 0], [0, 0]]], [[[0, 1], [1, 0]]]]),
        np.array([[[2.0, 6.0]], [[0.0, 0.0]], [[1.0, 2.0]]]),
    )
    np.testing.assert_array_equal(client_accuracy(counts), [7 / 8, np.nan, 0])
    np.testing.assert_array_equal(client_loss(counts), [1, np.nan, 1.5])


def test_summaries_by_hand():
    # 1, 2, 3, 6: sum 12, squares 50, mean 3, squared distances 4 + 1 + 0 + 9 = 14.
    values = [3.0, 1.0, 6.0, 2.0]
    assert float(mean(values)) == 3
    assert float(variance(values)) == 3.5
    assert float(std(values)) == pytest.approx(3.5**0.5)
    assert float(jain(values)) == pytest.approx(144 / 200)
    # Pairwise distances 1 + 2 + 5 + 1 + 4 + 3 = 16, twice 32, over 2 * 4 * 12.
    assert float(gini(values)) == pytest.approx(32 / 96)
    shares = [1 / 12, 1 / 6, 1 / 4, 1 / 2]
    assert float(entropy(values)) == pytest.approx(-sum(p * np.log(p) for p in shares) / np.log(4))
    assert float(variation(values)) == pytest.approx(3.5**0.5 / 3)


def test_one_client_with_everything():
    values = [0.0, 0.0, 0.0, 8.0]
    assert float(jain(values)) == 0.25
    assert float(gini(values)) == 0.75
    assert float(entropy(values)) == 0
    assert float(variation(values)) == pytest.approx(3**0.5)


def test_worst_and_best_take_the_right_end():
    values = np.arange(40) / 40  # 5 % are 2 clients, 10 % are 4
    assert float(worst(values, 0.05, better="higher")) == pytest.approx(0.5 / 40)
    assert float(worst(values, 0.10, better="higher")) == pytest.approx(1.5 / 40)
    assert float(best(values, 0.05, better="higher")) == pytest.approx(38.5 / 40)
    assert float(worst(values, 0.05, better="lower")) == pytest.approx(38.5 / 40)
    assert float(best(values, 0.05, better="lower")) == pytest.approx(0.5 / 40)
    found = spread(values, better="lower")
    assert float(found["worst10"]) == pytest.approx(37.5 / 40)
    assert float(found["best5"]) == pytest.approx(0.5 / 40)


@pytest.mark.parametrize(
    ("clients", "share", "number"),
    [(1, 0.05, 1), (20, 0.05, 1), (21, 0.05, 2), (30, 0.1, 3), (100, 0.07, 7), (3, 1.0, 3)],
)
def test_a_share_of_the_clients_is_rounded_up(clients, share, number):
    assert float(worst(np.arange(clients), share, better="higher")) == (number - 1) / 2


def test_equal_zeros_are_equal():
    found = spread(np.zeros(5), better="higher")
    assert {name: float(value) for name, value in found.items()} == {
        **dict.fromkeys(CLIENT_SUMMARIES, 0.0),
        "jain": 1.0,
        "entropy": 1.0,
    }


def test_no_clients_have_no_summary():
    found = spread([], better="higher")
    assert list(found) == list(CLIENT_SUMMARIES)
    assert all(np.isnan(value) for value in found.values())
    for single in (mean, variance, std, jain, gini, entropy, variation):
        assert np.isnan(single([]))
    assert np.isnan(worst([], 0.05, better="higher"))


@pytest.mark.parametrize("lost", [np.nan, np.inf])
@pytest.mark.parametrize("end", ["higher", "lower"])
def test_a_diverged_client_is_not_hidden(lost, end):
    found = spread([0.1, lost, 0.2], better=end)
    assert not np.isfinite(found["mean"])
    assert not np.isfinite(found["jain"])
    assert not np.isfinite(found["worst5" if end == "lower" else "best5"])
    if np.isnan(lost):
        assert np.isnan([found[name] for name in CLIENT_SUMMARIES]).all()


def test_evenness_of_negative_values_is_undefined():
    for single in (jain, gini, entropy, variation):
        assert np.isnan(single([1.0, -0.5]))
        assert np.isnan(single([-1.0]))


@quick
@given(some_values)
def test_evenness_stays_in_its_range(values):
    n = len(values)
    assert 1 / n - 1e-12 <= jain(values) <= 1 + 1e-12
    assert -1e-12 <= gini(values) <= 1 - 1 / n + 1e-12
    assert -1e-12 <= entropy(values) <= 1 + 1e-12
    assert -1e-12 <= variation(values) <= (n - 1) ** 0.5 + 1e-9


@quick
@given(some_values)
def test_jain_follows_from_the_coefficient_of_variation(values):
    assert float(jain(values)) == pytest.approx(1 / (1 + float(variation(values)) ** 2))


@quick
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=40))
def test_summaries_agree_with_scipy_and_numpy(values):
    found = spread(values, better="higher")
    assert float(found["mean"]) == pytest.approx(np.mean(values))
    assert float(found["variance"]) == pytest.approx(np.var(values), abs=1e-9)
    assert float(found["cv"]) == pytest.approx(stats.variation(values), abs=1e-9)
    assert float(found["entropy"]) == pytest.approx(stats.entropy(values, base=len(values)))
    at = np.asarray(values)
    pairs = np.abs(at[:, None] - at).sum() / (2 * len(at) * at.sum())
    assert float(found["gini"]) == pytest.approx(pairs, abs=1e-12)


@quick
@given(some_values, st.randoms(use_true_random=False), st.sampled_from(["higher", "lower"]))
def test_the_order_of_clients_does_not_matter(values, random, end):
    shuffled = random.sample(values, len(values))
    one, other = spread(values, better=end), spread(shuffled, better=end)
    for name in CLIENT_SUMMARIES:
        assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-9, abs=1e-9)


@quick
@given(some_values)
def test_worst_is_below_mean_is_below_best(values):
    found = spread(values, better="higher")
    slack = 1e-9 * (1 + max(values))
    assert found["worst5"] <= found["worst10"] + slack
    assert found["worst10"] <= found["mean"] + slack
    assert found["mean"] <= found["best5"] + slack


def test_rows_are_summarised_apart():
    values = np.random.default_rng(0).random((6, 2, 30))
    values[0, 0] = 0
    together = spread(values, better="lower")
    for at in np.ndindex(6, 2):
        alone = spread(values[at], better="lower")
        for name in CLIENT_SUMMARIES:
            assert float(together[name][at]) == pytest.approx(float(alone[name]), rel=1e-12)


def test_interval_agrees_with_scipy():
    values = np.random.default_rng(1).exponential(1, 80)
    for statistic in (mean, std, gini):
        low, high = interval(values, statistic, replicates=20_000, seed=4)
        oracle = stats.bootstrap(
            (values,),
            lambda v, axis, at=statistic: at(np.moveaxis(v, axis, -1)),
            method="percentile",
            n_resamples=20_000,
            rng=np.random.default_rng(7),
        ).confidence_interval
        width = oracle.high - oracle.low
        assert low == pytest.approx(oracle.low, abs=0.04 * width)
        assert high == pytest.approx(oracle.high, abs=0.04 * width)


def test_interval_is_seeded_and_widens_with_the_level():
    values = np.random.default_rng(2).random(30)
    assert interval(values, mean, seed=1) == interval(values, mean, seed=1)
    assert interval(values, mean, seed=1) != interval(values, mean, seed=2)
    low, high = interval(values, mean, level=0.5)
    lower, higher = interval(values, mean, level=0.99)
    assert lower < low < values.mean() < high < higher


def test_interval_of_one_two_or_no_clients():
    assert interval([0.25], mean) == (0.25, 0.25)
    # Of two clients a quarter of the resamples are all 0, a quarter all 1.
    assert interval([0.0, 1.0], mean, seed=3) == (0, 1)
    assert np.isnan(interval([], mean)).all()
    assert np.isnan(interval([0.1, np.nan, 0.2], mean)).all()


def test_interval_in_blocks_draws_every_replicate():
    values = np.random.default_rng(3).random(1_500_000)  # more than one block
    found = []
    interval(values, lambda at: (found.append(at.ndim == 2 and len(at)), mean(at))[1], replicates=3)
    assert sum(found) == 3


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        interval([1.0], mean, replicates=0)
    with pytest.raises(ConfigError, match="confidence level 95"):
        interval([1.0], mean, level=95)
    with pytest.raises(ConfigError, match="a share of 5"):
        worst([1.0], 5, better="higher")
