"""PropFair by hand, its logarithm and what follows it, and its limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.by_hand import ENGINES, check_weight
from algorithms.exchanges import lines, play, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.client_fair.propfair import PropFair
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def test_by_hand() -> None:
    """M = 5, two steps from w = 1, rate 0.1: the gradient is divided by 5 - loss.

    Client 0: loss 0.5, gradient -1: 1 + 0.1 / 4.5 = 1.0222222; there loss 0.4789, and so on.
    """

    def ends(loss: Any, slope: Any) -> float:
        w = 1.0
        for _ in range(2):
            w -= 0.1 * slope(w) / (5 - loss(w))
        return w

    first = ends(lambda w: ((w - 2) ** 2 + (2 * w - 2) ** 2) / 2, lambda w: 5 * w - 6)
    second = ends(lambda w: (w + 1) ** 2, lambda w: 2 * (w + 1))
    check_weight(PropFair(M=5.0), (2 * first + second) / 3, steps=2)
    check_weight(PropFair(M=5.0, weight="equal"), (first + second) / 2, steps=2)


@pytest.mark.parametrize(("beyond", "factor"), [("tangent", 4.0), ("flat", 1 / 4.1)])
def test_the_continued_logarithm_by_hand(beyond: Any, factor: float) -> None:
    """M = 4.1, epsilon = 0.25: client 1's utility at w = 1 is 0.1, its gradient 4."""
    how = PropFair(M=4.1, epsilon=0.25, beyond=beyond)
    check_weight(how, 1 - 0.1 * 4 * factor, steps=1, ids=(1,))


def test_the_surrogate_and_its_slope() -> None:
    """Continuous with a continuous slope for the tangent; never decreasing, never infinite."""
    how = PropFair(M=3.0, epsilon=0.5)
    losses = torch.tensor([0.0, 1.0, 2.4999, 2.5, 2.5001, 3.0, 10.0, 1e6])
    value = torch.vmap(how.surrogate)(losses)
    slope = torch.vmap(torch.func.grad(how.surrogate))(losses)
    expected = 1 / np.maximum(3.0 - losses.double().numpy(), 0.5)
    assert slope.tolist() == pytest.approx(expected, rel=1e-4)
    assert value[:2].tolist() == pytest.approx([-math.log(3), -math.log(2)])
    assert value[5].item() == pytest.approx(-math.log(0.5) + 1)
    assert (value.diff() > 0).all()
    flat = torch.vmap(torch.func.grad(PropFair(M=3.0, epsilon=0.5, beyond="flat").surrogate))
    assert flat(losses)[-2:].tolist() == pytest.approx([1 / 3, 1 / 3])


def test_larger_losses_have_more_influence() -> None:
    """The fixed point of (w - 2)^2, (w - 1.9)^2 and (w + 1)^2 moves from the mean to the middle."""
    task, federation = lines([[((1.0,), 2.0)], [((1.0,), 1.9)], [((1.0,), -1.0)]])

    def ends(how: Any, lr: float) -> float:
        work = Work(epochs=1, batch=0, lr=lr)
        return weight_of(play(how, Batched, task, federation, [0.9], work, rounds=30)).item()

    mean = ends(FedAvg(), 0.1)
    assert mean == pytest.approx(2.9 / 3, abs=1e-3)
    assert mean > ends(PropFair(M=10.0), 1.0) > ends(PropFair(M=5.0), 0.5) > 0.5


@both
def test_a_large_m_with_a_rate_that_grows_with_it_is_fedavg(kind: type[Engine]) -> None:
    task, federation = lines([[((1.0,), 2.0)], [((1.0,), -1.0)]])
    one = play(PropFair(M=1e5), kind, task, federation, [1.0], Work(epochs=3, batch=0, lr=1e4))
    other = play(FedAvg(), kind, task, federation, [1.0], Work(epochs=3, batch=0, lr=0.1))
    assert weight_of(one).item() == pytest.approx(weight_of(other).item(), abs=1e-4)


@both
def test_huge_losses(kind: type[Engine]) -> None:
    """A loss of 1e12 is on the tangent: gradient / epsilon, finite."""
    task, federation = lines([[((1.0,), 1e6)]])
    got = play(PropFair(M=5.0, epsilon=0.2), kind, task, federation, [0.0], Work(batch=0, lr=0.01))
    assert weight_of(got).item() == pytest.approx(0.01 * 2e6 / 0.2, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"M": 0.0}, "M = 0.0"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"M": 1.0, "epsilon": 2.0}, "at most M"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("propfair", options)
