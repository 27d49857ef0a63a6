import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isonomy.blocks.point_estimation import Points
from isonomy.core.examples import SPLITS
from isonomy.core.task import Batch
from isonomy.data import load
from isonomy.data.datasets.points import parameters
from isonomy.errors import ConfigError
from isonomy.models import make_task


def whole(federation, client, split="train"):
    rows = federation.rows(client, split)
    x, y = federation.x[rows].double(), federation.y[rows].double()
    return Batch(x, y, federation.groups[rows], torch.ones_like(y))


def descend(task, batch, w, mu=0.0, anchor=None, steps=400):
    """Plain gradient descent on the task's loss and (mu / 2) |w - anchor|^2."""
    for _ in range(steps):
        w = w.detach().requires_grad_()
        loss = task.loss({"linear.weight": w[None]}, batch)
        if anchor is not None:
            loss = loss + mu / 2 * (w - anchor).square().sum()
        w = w - 0.2 * torch.autograd.grad(loss, w)[0]
    return w.detach()


@given(
    clients=st.integers(1, 6),
    d=st.integers(1, 4),
    n=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    theta=st.floats(-5, 5),
    tau=st.floats(0, 3),
)
def test_the_minimiser_of_a_clients_loss_is_the_mean_of_its_points(clients, d, n, seed, theta, tau):
    """Its gradient there is zero, and the loss is (2 / d) f_k and what does not depend on w."""
    options = {"d": d, "n": n, "theta": theta, "tau": tau}
    federation = load("points", clients=clients, seed=seed, options=options)
    task = make_task("linear", federation, {"bias": False})
    for k in range(clients):
        batch = whole(federation, k)
        points = batch.y.reshape(n, d)
        mean = points.mean(0).requires_grad_()
        loss = task.loss({"linear.weight": mean[None]}, batch)
        slope = torch.autograd.grad(loss, mean)[0]
        assert float(slope.abs().max()) < 1e-9
        w = torch.linspace(-1, 2, d, dtype=torch.float64)
        f = 0.5 * (w - mean.detach()).square().sum()
        rest = (points - mean.detach()).square().mean()
        found = task.loss({"linear.weight": w[None]}, batch)
        torch.testing.assert_close(found, 2 / d * f + rest)


@pytest.mark.parametrize("d", [1, 3])
def test_lemma_3_in_this_librarys_terms(d):
    """With mu = 2 lambda / d the minimiser is lambda/(1+lambda) w* + 1/(1+lambda) mean."""
    lam, federation = 0.7, load("points", clients=4, options={"d": d, "n": 6, "tau": 1.0})
    task = make_task("linear", federation, {"bias": False})
    means = torch.stack([whole(federation, k).y.reshape(6, d).mean(0) for k in range(4)])
    star = means.mean(0)
    for k in range(4):
        start = torch.zeros(d, dtype=torch.float64)
        found = descend(task, whole(federation, k), start, mu=2 * lam / d, anchor=star)
        torch.testing.assert_close(found, (lam * star + means[k]) / (1 + lam))


def test_the_linear_model_estimates_exactly_the_point():
    federation = load("points", clients=2, options={"d": 3})
    task = make_task("linear", federation, {"bias": False})
    params = task.init(0)
    assert {name: tuple(value.shape) for name, value in params.items()} == {"linear.weight": (1, 3)}
    outputs = task.outputs(params, federation.x[:3])
    assert torch.equal(outputs[:, 0], params["linear.weight"][0])


@pytest.mark.parametrize(("tau", "sigma"), [(0.2, 1.0), (2.0, 0.5)])
def test_what_is_drawn_has_the_stated_spread(tau, sigma):
    K, n = 2_000, 40
    options = {"n": n, "tau": tau, "sigma": sigma, "theta": 1.5}
    federation = load("points", clients=K, seed=3, options=options)
    w, theta = parameters(K, 3, tau=tau, theta=1.5)
    assert theta.tolist() == [1.5]
    assert float(w.mean()) == pytest.approx(1.5, abs=4 * tau / K**0.5)
    assert float(w.std()) == pytest.approx(tau, rel=4 / (2 * K) ** 0.5)
    points = torch.stack([federation.y[federation.rows(k)] for k in range(K)]).double()
    noise = points - w
    assert float(noise.mean()) == pytest.approx(0, abs=4 * sigma / (K * n) ** 0.5)
    assert float(noise.std()) == pytest.approx(sigma, rel=4 / (2 * K * n) ** 0.5)
    means = points.mean(1) - w[:, 0]  # sigma_n^2 = sigma^2 / n
    assert float(means.var()) == pytest.approx(sigma**2 / n, rel=4 * (2 / K) ** 0.5)
    together = np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]
    assert abs(together) < 4 / K**0.5


def test_adversaries_are_spread_further():
    K, Ka = 1_000, 400
    w, _ = parameters(K, 1, tau=0.1, adversaries=Ka, tau_a=2.0)
    assert float(w[: K - Ka].std()) == pytest.approx(0.1, rel=0.12)
    assert float(w[K - Ka :].std()) == pytest.approx(2.0, rel=0.15)
    benign, _ = parameters(K, 1, tau=0.1)
    assert torch.equal(w[: K - Ka], benign[: K - Ka])
    torch.testing.assert_close(w[K - Ka :], benign[K - Ka :] * 20)
    options = {"adversaries": 2, "tau_a": 5.0, "sigma": 0.0, "n": 3}
    federation = load("points", clients=5, seed=1, options=options)
    assert federation.names == ("client 0", "client 1", "client 2", "adversary 3", "adversary 4")
    w, _ = parameters(5, 1, adversaries=2, tau_a=5.0)
    for k in range(5):  # no noise: every example is the client's point
        assert federation.y[federation.rows(k)].tolist() == [float(w[k].float())] * 3


def test_the_test_example_is_the_point_itself_unless_drawn():
    federation = load("points", clients=3, options={"d": 2})
    w, _ = parameters(3, 0, d=2)
    assert [federation.sizes(split).tolist() for split in SPLITS] == [[50] * 3, [10] * 3, [2] * 3]
    for k in range(3):
        rows = federation.rows(k, "test")
        assert torch.equal(federation.x[rows], torch.eye(2))
        assert torch.equal(federation.y[rows], w[k].float())
    drawn = load("points", clients=3, options={"d": 2, "n_test": 500})
    found = drawn.y[drawn.rows(0, "test")].reshape(500, 2).double()
    assert float((found - w[0]).std()) == pytest.approx(1.0, rel=0.1)
    for k in range(3):  # more test points leave the training points alone
        assert torch.equal(drawn.y[drawn.rows(k)], federation.y[federation.rows(k)])


def test_the_best_lambda_is_best_over_many_draws():
    """Mean test error of benign clients over 200,000 draws, at lambda* and on either side."""
    K, Ka, n, sigma, tau, tau_a = 16, 8, 5, 0.4, 0.1, 0.5
    best = Points(K, n, sigma, tau, Ka, tau_a).best_lam
    assert best == pytest.approx(sigma**2 / n * K / (K * tau**2 + Ka / (K - 1) * (0.25 - 0.01)))
    rng = np.random.default_rng(0)
    spread = np.where(np.arange(K) < K - Ka, tau, tau_a)
    w = spread * rng.standard_normal((200_000, K))
    own = w + sigma / n**0.5 * rng.standard_normal((200_000, K))

    def error(lam):
        mixed = (lam * own.mean(1, keepdims=True) + own) / (1 + lam)
        return float(((mixed - w)[:, : K - Ka] ** 2).mean())

    assert error(best) < min(error(0.7 * best), error(1.4 * best))
    s, S = sigma**2 / n, K * tau**2 + Ka * (tau_a**2 - tau**2) / (K - 1)
    assert error(best) == pytest.approx(1 / (1 / s + (K - 1) / (S + s)), rel=0.01)
    assert Points(4, 2, 1.0, 0.0).best_lam == math.inf


def test_repeatable():
    one, two = (load("points", seed=5) for _ in range(2))
    assert torch.equal(one.y, two.y)
    assert not torch.equal(one.y, load("points", seed=6).y)
    assert (one.classes, one.features, one.clusters) == (0, ("one",), None)
    assert "bias = false" in one.notes[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 2, "options": {"adversaries": 2}}, "2 adversaries among 2 clients"),
        ({"options": {"adversaries": 2, "tau_a": 0.1}}, "tau_a is 0.1, below tau, 0.2"),
        ({"options": {"d": 0}}, "d is 0; set it to 1 or more"),
        ({"options": {"n": 0}}, "n is 0; set it to 1 or more"),
        ({"options": {"n_test": -1}}, "n_test is -1; set it to 0 or more"),
        ({"options": {"sigma": -0.1}}, "sigma is -0.1"),
        ({"options": {"theta": float("nan")}}, "theta is nan"),
        ({"partition": "iid"}, "unknown partition 'iid'"),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load("points", **arguments)
