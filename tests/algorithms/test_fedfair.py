"""FedFair: rounds by hand, for two groups and for three, and the limits of its multipliers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from algorithms.exchanges import Asked, listening
from algorithms.group_by_hand import (
    ENGINES,
    START,
    TWO,
    Y,
    by_size,
    parts,
    play,
    step,
    sums,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.fedfair import FedFair
from isonomy.contract.checks import silent
from isonomy.core.task import Task
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


@both
def test_two_rounds_by_hand(kind: type[Engine]) -> None:
    """Both multipliers by their own formula; weights 1 +- (a - b) n / M on label 1."""
    w, a, b = START, 0.0, 0.0
    for _ in range(2):
        count, loss, _ = sums(w)
        d = loss[1, 0] / count[1, 0] - loss[1, 1] / count[1, 1]
        a, b = max(0, a + 0.1 * (d - 0.02)), max(0, b + 0.1 * (-d - 0.02))
        n = count.sum()
        v = np.ones((2, 2))
        v[1] += (a - b) * n / count[1] * [1, -1]
        w = by_size([step(w, k, v[Y[k], TWO[k]]) for k in range(3)])
    assert max(a, b) > 0
    server, _ = play(FedFair(epsilon=0.02), kind, rounds=2)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert server.multipliers.flatten().tolist() == pytest.approx([a, b], abs=1e-6)


@both
def test_three_groups_by_hand(kind: type[Engine]) -> None:
    """All examples: a pair of multipliers for each group against group 0."""
    count, loss, _ = sums(START, 3)
    m, mean = count.sum(0), loss.sum(0) / count.sum(0)
    net = np.zeros(3)
    for z in (1, 2):
        d = mean[0] - mean[z]
        net[z] = max(0, 0.1 * d) - max(0, -0.1 * d)
    v = 1 + np.array([net.sum(), -net[1], -net[2]]) * count.sum() / m
    w = by_size([step(START, k, v[parts(3)[k]]) for k in range(3)])
    server, _ = play(FedFair(epsilon=0.0, given="all"), kind, groups=3)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)


def test_the_weighted_losses_are_the_lagrangian() -> None:
    """A step on the weighted means is a step on L + (a - b) d: the gradient by differences."""
    multiplier = 0.37

    def lagrangian(w: float) -> float:
        count, loss, _ = sums(w)
        d = loss[1, 0] / count[1, 0] - loss[1, 1] / count[1, 1]
        return float(loss.sum() / count.sum() + multiplier * d)

    slope = (lagrangian(START + 1e-5) - lagrangian(START - 1e-5)) / 2e-5
    task, _ = world()
    import torch

    from isonomy.blocks.groups import Cells

    got = Cells(*(torch.tensor(t) for t in sums(START)))
    table = FedFair().table(got, torch.tensor([[multiplier], [0.0]], dtype=torch.float64)).numpy()
    w = by_size([step(START, k, table[Y[k], TWO[k]]) for k in range(3)])
    assert (START - w) / 0.1 == pytest.approx(slope, abs=1e-6)
    assert task.levels == (2,)


def test_multipliers_are_bounded() -> None:
    server, _ = play(FedFair(epsilon=0.0, eta=100.0, most=0.3), Loop)
    assert float(server.multipliers.max()) == 0.3
    assert float(server.multipliers.min()) == 0.0
    server, _ = play(FedFair(epsilon=math.inf), Loop, rounds=2)
    assert server.multipliers.tolist() == [[0.0], [0.0]]


def test_only_sums_are_sent() -> None:
    heard: list[Asked] = []
    play(FedFair(), Loop, wrap=(listening(heard),))
    assert [a.replied for a in heard] == [("cells",), ("params",)]


def test_silent_clients_and_a_missing_group() -> None:
    quiet = play(FedFair(), Loop, wrap=(silent({0: {1}}),))[0]
    assert weight_of(quiet) == weight_of(play(FedFair(), Loop, ids=(0, 2))[0])
    alone, _ = play(FedFair(epsilon=0.0), Loop, ids=(2,))
    assert alone.multipliers.tolist() == [[0.0], [0.0]]
    assert weight_of(alone) == pytest.approx(step(START, 2), abs=1e-6)


@pytest.mark.parametrize("name", ["epsilon", "eta", "most"])
def test_bad_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make("fedfair", {name: -1.0})


def test_more_classes_are_refused() -> None:
    task, _ = world()
    with pytest.raises(ConfigError, match="two classes"):
        FedFair().init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
