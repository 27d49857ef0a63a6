"""TERM by hand: clients tilted by t, examples by tau."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.by_hand import ENGINES, check_weight, rounds
from algorithms.exchanges import lines, play, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.term import TERM
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


@pytest.mark.parametrize("t", [-1.0, 0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("weight", ["size", "equal"])
def test_by_hand(t: float, weight: Any) -> None:
    """Losses at w = 1: 0.5 and 4; two steps lead to 1.15 and 0.28; sizes 2 and 1."""
    p = np.array([2.0, 1.0] if weight == "size" else [1.0, 1.0]) * np.exp([t * 0.5, t * 4.0])
    check_weight(TERM(t=t, weight=weight), float(p @ [1.15, 0.28] / p.sum()), steps=2)


def test_tilted_examples_by_hand() -> None:
    """Client 0 has examples with losses (w - 2)^2 and (2 w - 2)^2: 1 and 0 at w = 1.

    tau = 0.7: its risk is log((e^0.7 + 1) / 2) / 0.7, and its gradient weighs the examples' own,
    -2 and 0, by e^0.7 and 1. Client 1 has one example: nothing to tilt, 1 - 0.1 * 4 = 0.6.
    """
    e = math.exp(0.7)
    risk = math.log((e + 1) / 2) / 0.7
    own = 1 + 0.1 * 2 * e / (e + 1)
    p = np.array([2.0, 1.0]) * np.exp([0.3 * risk, 0.3 * 4.0])
    check_weight(TERM(t=0.3, tau=0.7), float(p @ [own, 0.6] / p.sum()), steps=1)


def test_negative_tilt_of_examples_is_robust() -> None:
    """tau = -50: the example that fits decides, so client 0 stays at w = 1."""
    check_weight(TERM(t=0.0, tau=-50.0), 1.0, steps=3, ids=(0,))


@both
def test_examples_of_a_client_count_once_each(kind: type[Engine]) -> None:
    """1,100 copies of an example are as one, whatever pages and batches they come in."""
    many = [((1.0,), 2.0)] * 1100
    task, federation = lines([many, [((1.0,), -1.0)]])
    work = Work(epochs=1, batch=0, lr=0.1)
    server = play(TERM(t=1.0, tau=2.0, weight="equal"), kind, task, federation, [1.0], work)
    p = np.exp([1.0, 4.0])
    assert weight_of(server).item() == pytest.approx(float(p @ [1.2, 0.6] / p.sum()), abs=1e-5)


@both
@pytest.mark.parametrize("t", [1e4, -1e4])
def test_huge_tilts_do_not_overflow(kind: type[Engine], t: float) -> None:
    server, _ = rounds(TERM(t=t), kind, steps=2)
    expected = 0.28 if t > 0 else 1.15
    assert server.params["weight"].item() == pytest.approx(expected, abs=1e-6)


@both
def test_huge_and_no_losses(kind: type[Engine]) -> None:
    task, federation = lines([[((1.0,), 0.0)], [((1.0,), 1e9)]])
    work = Work(epochs=1, batch=0, lr=0.1)
    for tau in (0.0, 1.0):
        server = play(TERM(t=2.0, tau=tau), kind, task, federation, [0.0], work)
        assert weight_of(server).item() == pytest.approx(2e8, rel=1e-6)
    server = play(TERM(t=2.0, tau=1.0), kind, task, federation, [0.0], work, ids=[0])
    assert weight_of(server).item() == 0.0


def test_a_large_tilt_ends_where_the_worst_loss_is_least() -> None:
    """(w - 2)^2, (w - 1.9)^2 and (w + 1)^2: FedAvg ends at 0.967, the least worst is at 0.5."""
    task, federation = lines([[((1.0,), 2.0)], [((1.0,), 1.9)], [((1.0,), -1.0)]])
    work = Work(epochs=1, batch=0, lr=0.05)

    def ends(t: float) -> float:
        return weight_of(play(TERM(t=t), Batched, task, federation, [0.9], work, rounds=30)).item()

    at = [ends(t) for t in (0.0, 0.3, 10.0)]
    assert at[0] == pytest.approx(2.9 / 3, abs=0.01)
    assert at == sorted(at, reverse=True)
    assert at[-1] == pytest.approx(0.5, abs=0.15)  # it goes to and fro there


@both
def test_the_whole_gradient_is_that_of_the_hierarchical_objective(kind: type[Engine]) -> None:
    """One step: w - rate * d/dw (1/t) log sum_k (n_k / n) exp(t R_k), by differences at w = 1."""
    t, tau, h = 0.4, 0.6, 1e-5
    f = [lambda w: np.array([(w - 2) ** 2, (2 * w - 2) ** 2]), lambda w: np.array([(w + 1) ** 2])]

    def whole(w: float) -> float:
        risks = [np.log(np.mean(np.exp(tau * g(w)))) / tau for g in f]
        return math.log((2 * math.exp(t * risks[0]) + math.exp(t * risks[1])) / 3) / t

    expected = 1 - 0.1 * (whole(1 + h) - whole(1 - h)) / (2 * h)
    server, _ = rounds(TERM(t=t, tau=tau), kind, steps=1)
    assert server.params["weight"].item() == pytest.approx(expected, abs=1e-5)
    assert torch.isfinite(server.params["weight"]).all()


@pytest.mark.parametrize(
    ("options", "words"), [({"t": math.inf}, "t = inf"), ({"tau": math.nan}, "tau = nan")]
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("term", options)
