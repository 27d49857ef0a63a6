from __future__ import annotations

from typing import Any

import pytest
import torch

from algorithms.by_hand import ENGINES, FEDERATION, TASK, rounds, start
from isonomy.algorithms import make
from isonomy.algorithms.personal.l2sgd import L2SGD
from isonomy.algorithms.personal.l2sgd_running import L2SGDRunning
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

WORK = Work(epochs=1, batch=0, lr=0.1)


def own(engine: Engine) -> list[float]:
    return engine.states.stacked["params"]["weight"].flatten().tolist()


def tosses(seed: int, count: int, p: float) -> list[bool]:
    """Whether each round takes the mean, as a cohort of that seed says."""
    engine = Loop(TASK, FEDERATION, seed=seed)
    return [
        float(engine.cohort(torch.arange(2), work=WORK, round=r).uniform("coin")) < p
        for r in range(count)
    ]


def played(kind: type[Engine], algorithm: Any, seed: int, count: int) -> tuple[Any, Engine]:
    engine = kind(TASK, FEDERATION, seed=seed)
    engine.reset(algorithm.init_client(TASK, start()))
    server = algorithm.init_server(TASK, start(), 2)
    for r in range(count):
        server = algorithm.round(server, engine.cohort(torch.arange(2), work=WORK, round=r))
    return server, engine


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_by_hand(kind: type[Engine], seed: int) -> None:
    """p = 0.5, lam = 2, rate 0.1: training at 0.2, the mean by a share of 0.1 * 2 / 0.5 = 0.4."""
    coins = tosses(seed, 6, 0.5)
    a = b = 1.0
    last = 1.0
    for mean in coins:
        if mean:
            last = (a + b) / 2
            a, b = a + 0.4 * (last - a), b + 0.4 * (last - b)
        else:
            a, b = a - 0.2 * (5 * a - 6), b - 0.2 * 2 * (b + 1)
    server, engine = played(kind, L2SGD(lam=2.0, p=0.5), seed, 6)
    assert own(engine) == pytest.approx([a, b], abs=1e-6)
    assert server.params["weight"].item() == pytest.approx(last, abs=1e-6)


def test_the_coin_is_drawn_by_seed_and_round() -> None:
    """The same for the same seed, about p of the time, and another for another seed."""
    assert tosses(3, 400, 0.3) == tosses(3, 400, 0.3)
    assert tosses(3, 400, 0.3) != tosses(4, 400, 0.3)
    assert 0.22 < sum(tosses(3, 400, 0.3)) / 400 < 0.38


def test_a_step_is_the_objectives_gradient_on_average() -> None:
    """(1 - p) eta / (1 - p) grad F + p (eta lam / p) (v - mean) is eta times the gradient."""
    eta, lam, p, v, other = 0.1, 2.0, 0.25, 0.4, 1.8
    mean = (v + other) / 2
    train = v - eta / (1 - p) * 2 * (v + 1)
    approach = v + eta * lam / p * (mean - v)
    expected = v - eta * (2 * (v + 1) + lam * (v - mean))
    assert (1 - p) * train + p * approach == pytest.approx(expected)


@pytest.mark.parametrize("kind", ENGINES)
def test_running_by_hand(kind: type[Engine]) -> None:
    """lam = 0.5, one step a round, clients 0 and 1, then client 1 alone.

    Round 1 from v = w = 1: 1.1 and 0.6, mean 0.85, all of two clients: w = 0.85. Round 2, client
    1: gradient 3.2 + 0.5 (0.6 - 0.85) = 3.075, v = 0.2925; half of the clients: w = 0.57125.
    """
    algorithm = L2SGDRunning(lam=0.5)
    engine = kind(TASK, FEDERATION)
    engine.reset(algorithm.init_client(TASK, start()))
    server = algorithm.init_server(TASK, start(), 2)
    server = algorithm.round(server, engine.cohort(torch.arange(2), work=WORK, round=0))
    assert server.params["weight"].item() == pytest.approx(0.85)
    server = algorithm.round(server, engine.cohort(torch.tensor([1]), work=WORK, round=1))
    assert own(engine) == pytest.approx([1.1, 0.2925])
    assert server.params["weight"].item() == pytest.approx(0.57125)


def test_the_two_are_not_the_same() -> None:
    """The variant has no coin: its first round moves as no toss of the original does."""
    running = own(rounds(L2SGDRunning(lam=2.0), Loop, steps=1, rounds=2)[1])
    coins = {tuple(own(played(Loop, L2SGD(lam=2.0, p=0.5), s, 2)[1])) for s in range(8)}
    assert len(coins) > 1
    assert all(c != pytest.approx(running, abs=1e-4) for c in coins)


def test_steps_that_would_diverge_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.lam = 2 .* diverge; lower lam"):
        rounds(L2SGD(lam=2.0, p=0.1), Loop, steps=1)


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 1.0}, {"lam": -1.0}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} = "):
        make("l2sgd", options)
