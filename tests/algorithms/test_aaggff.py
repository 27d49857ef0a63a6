"""AAggFF: known weights for constant losses, an oracle for the program, a round by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from algorithms.group_by_hand import ENGINES, START, losses, play, step, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.aaggff import (
    AAggFF,
    Server,
    bounded,
    entropic_step,
    newton_step,
)
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)
WORST = torch.tensor([1.0, 1, 1, 1, 1, 1, 3], dtype=torch.float64)


def begin(clients: int, *, square: bool = True) -> Server:
    p = torch.full((clients,), 1 / clients, dtype=torch.float64)
    zero = torch.zeros(clients, dtype=torch.float64)
    return Server({}, p, zero, zero.diag() if square else ())


def test_weights_of_constant_losses() -> None:
    """Seven clients, one with three times the others' loss; public code: .146, .190, .377, .595."""
    server, ids = begin(7), torch.arange(7)
    found = []
    for t in range(1, 101):
        server = newton_step(server, ids, bounded(WORST, "weibull"))
        if t in (1, 10, 50, 100):
            found.append(float(server.p[-1]))
    assert found == pytest.approx([0.158, 0.295, 0.861, 1.00], abs=6e-4)


def test_the_newton_step_minimises_its_program() -> None:
    """The sum of the rounds' terms, minimised by scipy, for losses that change."""
    K, rounds = 5, 4
    draw = np.random.default_rng(0)
    server, ids, past = begin(K), torch.arange(K), []
    for _ in range(rounds):
        response = bounded(torch.tensor(draw.uniform(0.2, 3, K)), "gumbel")
        r, p = (response / K).numpy(), server.p.numpy()
        past.append((-r / (1 + p @ r), p))
        server = newton_step(server, ids, response)

    def program(p: np.ndarray) -> float:
        terms = (g @ p + K / 8 * (g @ (p - q)) ** 2 for g, q in past)
        return float(sum(terms) + 2 * p @ p)

    best = optimize.minimize(
        program, np.full(K, 1 / K), bounds=[(0, 1)] * K, method="SLSQP", tol=1e-14,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
    )  # fmt: skip
    assert server.p.numpy() == pytest.approx(best.x, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("weibull", stats.weibull_min(2)),
        ("exponential", stats.expon()),
        ("frechet", stats.invweibull(1)),
        ("normal", stats.norm(1)),
        ("gumbel", stats.gumbel_r(1)),
        ("logistic", stats.logistic(1)),
    ],
)
def test_distributions_are_scipys(name: Any, known: Any) -> None:
    x = torch.tensor([0.1, 0.6, 1.0, 2.3])
    assert bounded(x, name).numpy() == pytest.approx(known.cdf((x / x.mean()).numpy()), abs=1e-6)


def test_equal_losses_keep_weights_equal_and_scale_does_not_matter() -> None:
    ids = torch.arange(7)
    same = newton_step(begin(7), ids, bounded(torch.full((7,), 2.0), "normal"))
    assert same.p.numpy() == pytest.approx(1 / 7)
    one, other = (newton_step(begin(7), ids, bounded(WORST * c, "normal")).p for c in (1, 50))
    assert torch.allclose(one, other, atol=1e-9)


def test_a_step_of_devices_by_hand() -> None:
    """Every cohort of two in four; over all of them, the responses have the right sum."""
    K, m = 4, 2
    r = torch.tensor([0.1, 0.2, 0.3, 0.6], dtype=torch.float64)
    pairs = torch.combinations(torch.arange(K), m)
    total = torch.zeros(K, dtype=torch.float64)
    for ids in pairs:
        mean = r[ids].mean()
        total += torch.full_like(r, float(mean)).index_copy(0, ids, mean + (r[ids] - mean) * K / m)
        moved = entropic_step(begin(K, square=False), ids, r[ids], m / K, 1)
        D = 1 + mean * m / K
        expected = torch.zeros(K, dtype=torch.float64)
        expected[ids] = (r[ids] - mean) / D  # up to a constant, which weights do not depend on
        rate = math.sqrt(math.log(K)) / (2.5 * math.sqrt(2))
        assert moved.p.numpy() == pytest.approx(torch.softmax(rate * expected, 0).numpy())
    shift = total / len(pairs) - r
    assert float(shift.sum()) == pytest.approx(0, abs=1e-12)


@both
@pytest.mark.parametrize("setting", ["silo", "device"])
def test_a_round_by_hand(kind: type[Engine], setting: Any) -> None:
    """The new weights are used in the same round."""
    server, _ = play(AAggFF(setting=setting, cdf="exponential", eta=0.5), kind)
    F = np.array([losses(START, k).mean() for k in range(3)])
    r = 1 - np.exp(-F / F.mean())
    if setting == "silo":
        p = newton_step(begin(3), torch.arange(3), torch.tensor(r)).p.numpy()
    else:
        g = -r / (1 + r.mean())
        p = np.exp(-math.sqrt(math.log(3)) / (3 * math.sqrt(2)) * g)
        p = p / p.sum()
    assert server.p.numpy() == pytest.approx(p, abs=1e-6)
    mean = float(p @ [step(START, k) for k in range(3)])
    assert weight_of(server) == pytest.approx(START + 0.5 * (mean - START), abs=1e-6)


def test_bad_options_are_refused() -> None:
    for options in ({"eta": 0.0}, {"cdf": "cauchy"}, {"setting": "phone"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("aaggff", options)
