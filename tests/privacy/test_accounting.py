"""Epsilons against closed forms, and against dp-accounting called on its own."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from isonomy.data.federation import build
from isonomy.engines.base import sample
from isonomy.errors import ConfigError
from isonomy.privacy.accounting import Event, epsilon, joint, multiplier_for

DELTA = 1e-5


def exact_delta(epsilon: float, multiplier: float) -> float:
    """Balle and Wang 2018, theorem 8, for sensitivity 1."""
    a, b = 1 / (2 * multiplier), epsilon * multiplier
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


@given(st.floats(0.5, 20), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_gaussian_is_the_closed_form(multiplier, count):
    found = epsilon({Event(multiplier): count}, DELTA)
    assert exact_delta(found, multiplier / math.sqrt(count)) == pytest.approx(DELTA, rel=1e-3)


def test_unlike_gaussians_compose():
    events = {Event(2.0): 4, Event(5.0): 3}
    one = joint([2.0] * 4 + [5.0] * 3)
    assert epsilon(events, DELTA) == pytest.approx(epsilon({Event(one): 1}, DELTA), rel=1e-9)


def test_poisson_is_dp_accounting():
    plain = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.1))
    fine = PLDAccountant().compose(plain, 50).get_epsilon(DELTA)
    assert fine <= epsilon({Event(1.1, 0.1): 50}, DELTA) * (1 + 1e-9) < 1.001 * fine
    loose = RdpAccountant().compose(plain, 50).get_epsilon(DELTA)
    assert loose <= epsilon({Event(1.1, 0.1): 50}, DELTA, "rdp") < 1.02 * loose


def test_sampled_and_whole_compose():
    both = PLDAccountant()
    both.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.1)), 50)
    both.compose(dp_event.GaussianDpEvent(4.0))
    ours = epsilon({Event(1.1, 0.1): 50, Event(4.0): 1}, DELTA)
    assert both.get_epsilon(DELTA) * (1 - 1e-9) <= ours < 1.001 * both.get_epsilon(DELTA)


def test_a_limited_sample_costs_more_than_an_unlimited_one():
    free = epsilon({Event(1.1, 0.1): 20}, DELTA)
    tight = epsilon({Event(1.1, 0.1, 100, 14): 20}, DELTA)
    wide = epsilon({Event(1.1, 0.1, 100, 40): 20}, DELTA)
    assert free * 0.999 < wide < 1.01 * free < tight


def test_multiplier_is_the_smallest():
    found = multiplier_for(lambda z: {Event(z): 50}, 4.0, DELTA)
    library = dp_accounting.get_sigma_gaussian(4.0, DELTA) * math.sqrt(50)
    assert library <= found * (1 + 1e-6) < 1.003 * library
    sampled = multiplier_for(lambda z: {Event(z, 0.1): 50}, 4.0, DELTA, "rdp")
    assert epsilon({Event(sampled, 0.1): 50}, DELTA, "rdp") <= 4.0
    assert epsilon({Event(sampled / 1.005, 0.1): 50}, DELTA, "rdp") > 4.0
    large = multiplier_for(lambda z: {Event(z): 1}, 30.0, DELTA)
    assert epsilon({Event(large): 1}, DELTA) <= 30.0 < epsilon({Event(large / 1.01): 1}, DELTA)


def test_no_noise_has_no_epsilon():
    assert epsilon({}, DELTA) == 0
    assert epsilon({Event(0.0): 1}, DELTA) == math.inf
    with pytest.raises(ConfigError, match="a million"):
        multiplier_for(lambda z: {Event(min(z, 0.5)): 1}, 0.1, DELTA)


def test_poisson_cohorts_are_independent_draws():
    clients, rounds, count = 40, 2000, 8
    x = torch.zeros(clients, 1)
    parts = {"train": [torch.tensor([k]) for k in range(clients)]}
    groups = torch.zeros(clients, 0, dtype=torch.int64)
    fed = build(x, torch.zeros(clients, dtype=torch.int64), groups, parts, classes=2)
    taken = np.zeros((rounds, clients))
    for r in range(rounds):
        taken[r, sample(fed, count, seed=3, round=r, how="poisson").numpy()] = 1
    rate = count / clients
    spread = math.sqrt(rate * (1 - rate) / rounds)
    assert np.abs(taken.mean(0) - rate).max() < 4 * spread
    sizes = taken.sum(1)  # binomial, not constant
    assert sizes.var() == pytest.approx(clients * rate * (1 - rate), rel=0.15)
    pairs = (taken.T @ taken / rounds)[~np.eye(clients, dtype=bool)]
    assert pairs.mean() == pytest.approx(rate**2, rel=0.05)
