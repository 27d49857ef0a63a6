import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from isonomy.data import load
from isonomy.data.datasets import synthetic
from isonomy.data.partition import generator
from isonomy.errors import ConfigError, DataError

GAUSSIANS = [multivariate_normal(synthetic.MEANS[y], synthetic.COVARIANCES[y]) for y in (0, 1)]


def reference(count):
    """The definition, example by example, with the library calls that the papers' code makes."""
    rng = np.random.RandomState(123)
    y = rng.binomial(1, 0.6, count)
    x, z = np.empty((count, 2)), np.empty(count, dtype=np.int64)
    c, s = math.cos(math.pi / 4), math.sin(math.pi / 4)
    for i in range(count):
        x[i] = GAUSSIANS[y[i]].rvs(1, random_state=rng)
        turned = [x[i, 0] * c - x[i, 1] * s, x[i, 0] * s + x[i, 1] * c]
        one, zero = GAUSSIANS[1].pdf(turned), GAUSSIANS[0].pdf(turned)
        z[i] = rng.binomial(1, one / (one + zero))
    return x, y, z


def test_paper_examples_are_drawn_as_the_code_draws_them():
    x, y, z = synthetic.paper_sample(800)
    x_, y_, z_ = reference(800)
    np.testing.assert_allclose(x, x_, atol=1e-12)
    np.testing.assert_array_equal(y, y_)
    np.testing.assert_array_equal(z, z_)


def test_paper_numbers():
    """Sizes and rates measured on the papers' public code."""
    federation = load("synthetic", partition="paper")
    assert federation.sizes("train").tolist() == [1193, 1071, 884]
    assert federation.sizes("validation").tolist() == [133, 120, 99]
    assert federation.sizes("test").tolist() == [574, 508, 418]
    _, y, z = synthetic.paper_sample(5000)
    assert round(y[:3500].mean(), 3) == 0.598
    assert round(y[3500:].mean(), 3) == 0.605
    assert round(y[:3500][z[:3500] == 0].mean(), 3) == 0.262
    assert round(y[:3500][z[:3500] == 1].mean(), 3) == 0.824
    assert federation.features == ("x1", "x2", "z")
    torch.testing.assert_close(federation.x[:, 2], federation.groups[:, 0].float())
    assert torch.equal(federation.x, load("synthetic", partition="paper", seed=9).x)


def test_paper_lists():
    _, _, z = synthetic.paper_sample(5000)
    parts = synthetic.paper_parts(z, 3500, synthetic.LEVELS["default"])
    ones = np.flatnonzero(z[:3500] == 1)
    zeros = np.flatnonzero(z[:3500] == 0)
    first = torch.cat([parts["train"][0], parts["validation"][0]]).tolist()
    assert sorted(first) == sorted([*ones[:1045], *zeros[:281]])  # 0.5 of 2091, 0.2 of 1409
    assert first != sorted(first)
    everything = torch.cat([piece for pieces in parts.values() for piece in pieces])
    assert torch.equal(everything.sort().values, torch.arange(5000))


@pytest.mark.parametrize("level", list(synthetic.LEVELS))
def test_levels(level):
    federation = load("synthetic", partition={"name": "paper", "level": level})
    sizes = sum(federation.sizes(split) for split in ("train", "validation"))
    assert int(sizes.sum()) == 3500
    shares = np.array(synthetic.LEVELS[level])
    expected = shares @ np.array([2091, 1409])
    assert np.abs(sizes.numpy() - expected).max() < 3
    np.testing.assert_allclose(shares.sum(0), 1, atol=1e-6)


@pytest.mark.parametrize(("clients", "train", "test"), [(10, 5000, 2000), (50, 15000, 5000)])
def test_more_clients(clients, train, test):
    federation = load("synthetic", partition="paper", clients=clients)
    assert len(federation) == clients
    assert int(federation.sizes("test").sum()) == test
    assert int(federation.sizes().sum() + federation.sizes("validation").sum()) == train


@pytest.mark.parametrize("clients", list(synthetic.MORE))
def test_shares_add_up(clients):
    shares = np.array(synthetic.MORE[clients][2])
    assert shares.shape == (clients, 2)
    np.testing.assert_allclose(shares.sum(0), 1)


def test_the_generator_has_the_right_distribution():
    x, y, z = synthetic.sample(200_000, generator("test", 0))
    assert abs(y.mean() - 0.6) < 0.005
    for label in (0, 1):
        np.testing.assert_allclose(x[y == label].mean(0), synthetic.MEANS[label], atol=0.05)
        np.testing.assert_allclose(np.cov(x[y == label].T), synthetic.COVARIANCES[label], atol=0.15)
    assert abs(y[z == 0].mean() - 0.262) < 0.02
    assert abs(y[z == 1].mean() - 0.824) < 0.02


def test_group_probability():
    # x = (sqrt 2, 0) turned by 45 degrees is (1, 1)
    one, zero = GAUSSIANS[1].pdf([1, 1]), GAUSSIANS[0].pdf([1, 1])
    found = synthetic.group_probability(np.array([[math.sqrt(2), 0.0], [1e4, 1e4]]))
    assert found[0] == pytest.approx(one / (one + zero), rel=1e-12)
    assert np.isfinite(found).all()


def test_any_number_of_clients():
    federation = load("synthetic", clients=20, seed=3, options={"examples": 4000})
    assert len(federation) == 20
    assert federation.x.shape == (4000, 3)
    share = [float(federation.groups[federation.rows(k)].float().mean()) for k in range(20)]
    assert np.std(share) > 0.2  # clients differ in their share of a group
    even = load(
        "synthetic", clients=20, partition={"name": "dirichlet", "by": "group", "beta": 1e6}
    )
    share = [float(even.groups[even.rows(k)].float().mean()) for k in range(20)]
    assert np.std(share) < 0.02
    plain = load("synthetic", options={"keep_protected": False})
    assert plain.features == ("x1", "x2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"partition": {"name": "paper", "level": "7"}}, "unknown level"),
        ({"partition": "paper", "clients": 4}, "not defined for 4 clients"),
        (
            {"partition": {"name": "paper", "level": "5"}, "clients": 10},
            "not defined for 10 clients at level",
        ),
        ({"partition": "paper", "options": {"examples": 10}}, "remove 'examples'"),
        ({"partition": "papper"}, "Did you mean 'paper'"),
        ({"options": {"example": 1}}, "Did you mean 'examples'"),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load("synthetic", **arguments)


@pytest.mark.parametrize("examples", [0, -4, 12])
def test_too_few_examples(examples):
    with pytest.raises((DataError, ConfigError), match=r"clients|examples"):
        load("synthetic", options={"examples": examples})
