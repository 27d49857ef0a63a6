"""FCFL: both stages by hand, and what the linear programs guarantee."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.group_by_hand import (
    ENGINES,
    RATE,
    START,
    THREE,
    TWO,
    X,
    Y,
    losses,
    overhearing,
    play,
    sigmoid,
    slopes,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.fcfl import FCFL
from isonomy.blocks.vectors import gram
from isonomy.contract.checks import silent
from isonomy.core.task import Task
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def disparity(w: float, k: int, positive: bool = False) -> tuple[float, float]:
    """The difference of mean sigmoid(10 w x), and its slope; 0 where a group is missing."""
    seen = Y[k] == 1 if positive else np.ones(len(Y[k]), bool)
    groups = [seen & (TWO[k] == z) for z in (0, 1)]
    if not (groups[0].any() and groups[1].any()):
        return 0.0, 0.0
    s = sigmoid(10 * w * X[k])
    ds = 10 * X[k] * s * (1 - s)
    return (
        float(s[groups[0]].mean() - s[groups[1]].mean()),
        float(ds[groups[0]].mean() - ds[groups[1]].mean()),
    )


def softmax(t: np.ndarray) -> np.ndarray:
    e = np.exp(t - t.max())
    return e / e.sum()


def stage_one(w: float, epsilon: float, delta: Any, positive: bool = False) -> tuple[float, Any]:
    """With one weight, gradients are numbers, and the program's corners can be listed."""
    mean = np.array([losses(w, k).mean() for k in range(3)])
    g = np.array([slopes(w, k).mean() for k in range(3)])
    d, u = np.array([disparity(w, k, positive) for k in range(3)]).T
    gl = softmax(mean / delta[0]) @ g
    gd = (softmax(np.abs(d) / delta[1]) * np.sign(d)) @ u
    if np.abs(d).max() > epsilon:
        # the largest a_1 gl gd + a_2 gd gd with a_1 gl gl + a_2 gd gl >= 0
        corners = [(1.0, 0.0)]
        if gd * gl >= 0:
            corners.append((0.0, 1.0))
        else:
            t = gl * gl / (gl * gl - gd * gl)
            corners.append((1 - t, t))
        a = max(corners, key=lambda a: a[0] * gl * gd + a[1] * gd * gd)
    else:
        a = (1.0, 0.0) if gl * gl >= gd * gl else (0.0, 1.0)
    small = 0.1 * np.abs([gl, gd]) <= delta
    return w - RATE * (a[0] * gl + a[1] * gd), np.where(
        small, np.maximum(delta * 0.01, 1e-4), delta
    )


@both
@pytest.mark.parametrize("epsilon", [0.01, 0.9])
@pytest.mark.parametrize("notion", ["dp", "eo"])
def test_stage_one_by_hand(kind: type[Engine], epsilon: float, notion: Any) -> None:
    w, delta = START, np.array([0.5, 0.5])
    for _ in range(3):
        w, delta = stage_one(w, epsilon, delta, notion == "eo")
    server, _ = play(FCFL(first=3, epsilon=epsilon, notion=notion), kind, rounds=3)
    assert weight_of(server) == pytest.approx(w, abs=1e-5)
    assert server.delta.tolist() == pytest.approx(delta.tolist())


@both
def test_stage_two_by_hand(kind: type[Engine]) -> None:
    """One weight: if gradients differ in sign, only a step of 0 increases no client's loss."""
    g = np.array([slopes(START, k).mean() for k in range(3)])
    assert g.min() < 0 < g.max()
    server, _ = play(FCFL(first=0, epsilon=1.0), kind)
    assert weight_of(server) == pytest.approx(START, abs=1e-6)


def test_stage_two_increases_no_loss() -> None:
    """Random gradients in many dimensions: aligned with the mean, opposed to none of them."""
    rng = np.random.default_rng(0)
    how = FCFL()
    for trial in range(20):
        at = torch.from_numpy(rng.normal(size=(6, 8)) * 10.0 ** (trial % 5 - 2))
        products = gram(at)
        mean = torch.full((5,), 0.2, dtype=torch.float64)
        weight = how.stage_two(products, mean, over=True)
        towards = products @ weight
        assert float(towards.min()) >= -1e-6 * float(products.abs().max())
        shortest = torch.full((6,), 1 / 6, dtype=torch.float64)
        assert float(weight.sum()) == pytest.approx(float(shortest.sum()))
        plain = how.stage_two(products, mean, over=False)
        gain = mean @ products[:-1]
        assert float(gain @ plain) >= float(gain @ weight) - 1e-9 * float(products.abs().max())


def test_without_a_bound_only_the_worst_loss_matters() -> None:
    server, _ = play(FCFL(epsilon=math.inf, delta=1e-4), Loop, rounds=1)
    worst = int(np.argmax([losses(START, k).mean() for k in range(3)]))
    assert weight_of(server) == pytest.approx(START - RATE * slopes(START, worst).mean(), abs=1e-5)


def test_small_groups_are_withheld() -> None:
    """Client 0 has two examples of group 1, client 1 one, client 2 none."""
    for least, kept in ((0, (0, 1)), (2, (0,)), (3, ())):
        sent: list[float] = []
        play(FCFL(least=least), Loop, wrap=(overhearing("disparity", sent),))
        by_hand = [disparity(START, k)[0] if k in kept else 0.0 for k in range(3)]
        assert sent == pytest.approx(by_hand, abs=1e-6)


def test_silent_clients_are_left_out() -> None:
    quiet = play(FCFL(first=1), Loop, wrap=(silent({0: {0}}),))[0]
    assert weight_of(quiet) == weight_of(play(FCFL(first=1), Loop, ids=(1, 2))[0])
    one, _ = play(FCFL(first=0, epsilon=1.0), Loop, ids=(1,))
    assert weight_of(one) != START


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", -1.0), ("first", -1), ("delta", 0.0), ("shrink", 1.0)]
)
def test_bad_options_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        make("fcfl", {name: value})


def test_three_groups_compare_the_largest_difference_by_hand() -> None:
    """Client 2 has no example of group 1, which is not compared there."""
    sent: list[float] = []
    play(FCFL(), Loop, groups=3, wrap=(overhearing("disparity", sent),))
    expected = []
    for k in range(3):
        s = sigmoid(10 * START * X[k])
        rates = [s[THREE[k] == z].mean() for z in np.unique(THREE[k])]
        expected.append(max(rates) - min(rates))
    assert sent == pytest.approx(expected, abs=1e-6)
    assert len(np.unique(THREE[2])) == 2


def test_three_classes_are_refused() -> None:
    task, _ = world(3)
    with pytest.raises(ConfigError, match="two classes"):
        FCFL().init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
