import pytest
import torch

from isonomy.data import load
from isonomy.data.datasets.linear import parameters
from isonomy.errors import ConfigError


def excess(mu, w):
    """Excess risk of w at every client when x ~ N(0, I): |w - mu_e|^2."""
    return ((w - mu) ** 2).sum(-1)


def test_closed_form_of_the_mean_model():
    """r = 0: FAA of the population minimiser of the mean loss is R^2 (E-2)/E."""
    mu = parameters(10, 0, R=1.0, r=0.0)
    found = excess(mu, mu.mean(0))
    assert float(found.max() - found.min()) == pytest.approx(0.8, abs=1e-12)
    assert float(found[9]) == pytest.approx(0.81, abs=1e-12)  # ((E-1)/E)^2 R^2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("r", [0.01, 0.2])
def test_bounds_of_the_theorem(seed, r):
    E, R = 10, 1.0
    mu = parameters(E, seed, R=R, r=r)
    normals = mu[:9]
    centre = normals.mean(0)
    assert float((normals - centre).norm(dim=1).max()) == pytest.approx(r, abs=1e-12)
    assert float((mu[9] - centre).norm()) == pytest.approx(R, abs=1e-12)
    assert float(excess(normals, centre).max()) <= r**2 + 1e-12  # FOCUS: cluster means
    found = excess(mu, mu.mean(0))
    bound = R**2 * (E - 2) / E - 2 * R * r / E - r**2
    assert float(found.max() - found.min()) >= bound - 1e-12


def test_examples_follow_the_parameters():
    federation = load("linear", seed=4, options={"n": 4000, "d": 5})
    mu = parameters(10, 4, d=5)
    for e in range(10):
        rows = federation.rows(e)
        x, y = federation.x[rows].double(), federation.y[rows].double()
        fit = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        assert float((fit - mu[e]).norm()) < 0.01
        assert float((y - x @ mu[e]).std()) == pytest.approx(0.1, abs=0.005)


def test_the_federation():
    federation = load("linear", clients=6, options={"outliers": 2, "d": 3, "n": 50, "n_test": 7})
    assert federation.clusters == (0, 0, 0, 0, 1, 1)
    assert federation.names[0] == "client 0"
    assert federation.names[5] == "outlier 5"
    assert federation.classes == 0
    assert federation.y.dtype == torch.float32
    assert federation.groups.shape == (6 * 157, 0)
    assert federation.sizes().tolist() == [50] * 6
    assert federation.sizes("test").tolist() == [7] * 6
    mu = parameters(6, 0, d=3, outliers=2)
    assert float((mu[4:].mean(0) - mu[:4].mean(0)).norm()) == pytest.approx(1.0, abs=1e-12)
    assert torch.equal(
        federation.x,
        load("linear", clients=6, options={"outliers": 2, "d": 3, "n": 50, "n_test": 7}).x,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 2, "options": {"outliers": 2}}, "2 outliers among 2 clients"),
        ({"options": {"d": 0}}, "d is 0; set it to 1 or more"),
        ({"options": {"n": 0}}, "n is 0; set it to 1 or more"),
        ({"options": {"sigma": -0.1}}, "sigma is -0.1"),
        ({"options": {"R": float("nan")}}, "R is nan"),
        ({"partition": "iid"}, "unknown partition 'iid'"),
        ({"clients": 0}, "clients is 0"),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load("linear", **arguments)
