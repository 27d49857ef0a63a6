"""Preferences: samples have their distribution, and the NES gradient is the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import digamma
from torch import Tensor

from isonomy.blocks import pareto, preferences
from isonomy.blocks.preferences import Draws
from isonomy.core import random


def given(count: int, m: int, seed: int = 0) -> Draws:
    """Random numbers as a client draws them."""
    key = random.key(seed)
    inner = (count, m, preferences.TRIES)
    normal, uniform = random.normal(key, "n", inner), random.uniform(key, "u", inner)
    return Draws(normal, uniform, random.uniform(key, "p", (count,)))


@pytest.mark.parametrize("alpha", [1.0, 1.7, 5.0])
def test_gamma_has_its_distribution(alpha: float) -> None:
    draws = given(20_000, 1)
    got = preferences.gamma(torch.full((20_000, 1), alpha), draws.normal, draws.uniform)
    assert stats.kstest(got.flatten().numpy(), "gamma", args=(alpha,)).pvalue > 0.01


def test_two_objectives_are_beta() -> None:
    got = preferences.sample(
        {"alpha": torch.tensor([[1.5, 3.0]]), "logits": torch.zeros(1)}, given(20_000, 2)
    )
    assert got.sum(-1).numpy() == pytest.approx(1, abs=1e-5)
    assert stats.kstest(got[:, 0].numpy(), "beta", args=(1.5, 3.0)).pvalue > 0.01


def test_mixture_has_its_distribution_and_density() -> None:
    """3/4 of Beta(4, 1) and 1/4 of Beta(1, 3)."""
    mixture = {
        "alpha": torch.tensor([[4.0, 1.0], [1.0, 3.0]]),
        "logits": torch.tensor([3.0, 1.0]).log(),
    }
    got = preferences.sample(mixture, given(20_000, 2))[:, 0].numpy()

    def both(f: str, x: np.ndarray) -> np.ndarray:
        return 0.75 * getattr(stats.beta(4, 1), f)(x) + 0.25 * getattr(stats.beta(1, 3), f)(x)

    assert stats.kstest(got, lambda x: both("cdf", x)).pvalue > 0.01
    for x in (0.1, 0.6):
        log = preferences.log_density(mixture, torch.tensor([x, 1 - x]))
        assert float(log.exp()) == pytest.approx(both("pdf", np.array(x)), rel=1e-4)


def test_samples_do_not_depend_on_others() -> None:
    """The first ten samples are the same, whatever else is sampled."""
    few, many = given(10, 3), given(50, 3)
    mixture = preferences.start(2, 3, 1.05)
    same = preferences.sample(mixture, many)[:10]
    assert torch.equal(preferences.sample(mixture, few), same)


def test_evolution_is_the_closed_form() -> None:
    """One Dirichlet: grad log p = log lam - digamma(alpha) + digamma(sum alpha)."""
    alpha = np.array([1.3, 2.4])
    mixture = {"alpha": torch.tensor([alpha.tolist()]), "logits": torch.zeros(1)}
    lam, gain = np.array([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]]), np.array([0.4, 0.1, 0.0])
    score = np.log(lam) - digamma(alpha) + digamma(alpha.sum())
    points, worth = torch.tensor(lam).float(), torch.tensor(gain).float()
    got = preferences.evolution(mixture, points, worth)
    assert got["alpha"][0].numpy() == pytest.approx(-(gain[:, None] * score).mean(0), rel=1e-4)
    assert got["logits"].tolist() == [0.0]


def test_density_gradient_against_finite_differences() -> None:
    """Of a mixture of two, in double precision."""
    mixture = {
        "alpha": torch.tensor([[1.2, 3.0], [2.0, 1.1]], dtype=torch.float64),
        "logits": torch.tensor([0.3, -0.2], dtype=torch.float64),
    }
    point = torch.tensor([[0.35, 0.65]], dtype=torch.float64)
    got = preferences.evolution(mixture, point, torch.ones(1, dtype=torch.float64))
    step = 1e-6
    for name, at in (("alpha", (0, 1)), ("alpha", (1, 0)), ("logits", (0,))):
        ends = []
        for sign in (1, -1):
            moved = {k: v.clone() for k, v in mixture.items()}
            moved[name][at] += sign * step
            ends.append(float(preferences.log_density(moved, point[0])))
        assert float(got[name][at]) == pytest.approx(-(ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_evolution_estimates_the_analytic_gradient() -> None:
    """With gain lam_1, E = a / (a + b): the gradient is (b, -a) / (a + b)^2."""
    a, b = 1.5, 2.5
    mixture = {"alpha": torch.tensor([[a, b]]), "logits": torch.zeros(1)}
    points = preferences.sample(mixture, given(40_000, 2))
    got = -preferences.evolution(mixture, points, points[:, 0])["alpha"][0]
    expected = np.array([b, -a]) / (a + b) ** 2
    assert got.numpy() == pytest.approx(expected, abs=0.006)


def toy(points: Tensor) -> Tensor:
    """A front that only preferences with lam_1 below .4 reach; the others all give one point."""
    lam = points[:, 0].clamp(max=0.4)
    return torch.stack([lam / 0.4, 1 - lam / 0.4], -1) * 0.9


def test_sampling_adapts_where_it_should() -> None:
    """Preferences above .4 repeat one point, so mass must move below, and the volume grow."""
    reference, m = torch.ones(2), 2
    mixture = preferences.start(1, m, 1.05)

    def volume(now: dict[str, Tensor]) -> float:
        each = [
            pareto.hypervolume2(toy(preferences.sample(now, given(8, m, 900 + i))), reference)
            for i in range(200)
        ]
        return float(torch.stack(each).mean())

    before, uniform = volume(mixture), mixture
    for t in range(150):
        points = preferences.sample(mixture, given(8, m, t))
        gain = pareto.contributions(toy(points), reference)
        g = preferences.evolution(mixture, points, gain)
        mixture = {k: v - 1.0 * g[k] for k, v in mixture.items()}
        mixture = preferences.bounded(mixture, 1.0, 5.0)
    below = (preferences.sample(mixture, given(4000, m))[:, 0] < 0.4).float().mean()
    first = (preferences.sample(uniform, given(4000, m))[:, 0] < 0.4).float().mean()
    assert float(below) > float(first) + 0.2
    assert volume(mixture) > before + 0.02


def test_grid() -> None:
    assert preferences.grid(1000, 2).shape == (1001, 2)
    assert preferences.grid(1000, 2)[250].tolist() == pytest.approx([0.25, 0.75])
    three = preferences.grid(1000, 3)
    assert three.shape == (990, 3)  # 43 steps: 44 * 45 / 2
    assert three.sum(1).numpy() == pytest.approx(1, abs=1e-6)
    assert len({tuple(r) for r in three.tolist()}) == 990


def test_components_of_a_mixture_start_different() -> None:
    alone = preferences.start(1, 2, 1.05)
    assert alone["alpha"].tolist() == [[pytest.approx(1.05)] * 2]
    two = preferences.start(2, 2, 1.05)["alpha"].numpy()
    assert two == pytest.approx(np.array([[2.05, 1.05], [1.05, 2.05]]))
