"""AgnosticFair: the adversary's program and a round by hand, with cells and with kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from algorithms.group_by_hand import (
    ENGINES,
    RATE,
    START,
    TWO,
    X,
    Y,
    by_size,
    losses,
    play,
    sigmoid,
    slopes,
    step,
    sums,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.agnosticfair import AgnosticFair
from isonomy.blocks.programs import mixture, worst
from isonomy.contract.checks import silent
from isonomy.core import random
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def greedy(gain: np.ndarray, mass: np.ndarray, most: float) -> np.ndarray:
    """The program has one constraint: the kernels with the largest gain per mass come first."""
    a, left = np.zeros(len(gain)), mass.sum()
    for m in np.argsort(-gain / mass):
        a[m] = min(most, left / mass[m])
        left -= a[m] * mass[m]
    return a


def test_the_worst_weights_solve_the_program() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        gain, mass = rng.random(6) * 100, rng.random(6) * 1000 + 1
        got = worst(torch.from_numpy(gain), torch.from_numpy(mass), 2.0)
        assert got is not None
        assert got.numpy() == pytest.approx(greedy(gain, mass, 2.0), abs=1e-6)


def test_the_mixture_is_no_worse_than_any_other() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        at = rng.normal(size=(4, 6)) * 1e-3
        products, goal = at @ at.T, at @ at.mean(0)
        got = mixture(torch.from_numpy(goal), torch.from_numpy(products))
        assert got is not None
        assert got.min() >= -1e-9
        assert float(got.sum()) == pytest.approx(1)
        assert (products @ got.numpy()).min() >= -1e-6 * np.abs(products).max()
        other = minimize(
            lambda a, g=goal: -(g @ a) * 1e6,
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints=[
                {"type": "eq", "fun": lambda a: a.sum() - 1},
                {"type": "ineq", "fun": lambda a, p=products: p @ a * 1e6},
            ],
        )
        assert goal @ got.numpy() >= goal @ other.x - 1e-9
    assert mixture(torch.tensor([1.0]), torch.tensor([[-1.0]])) is None


def by_hand(
    rounds: int, kernels: Any, *, pace: float, most: float, penalty: float, tau: float
) -> Any:
    """The rounds, with theta = sum_m a_m K_m and K = `kernels(k)` [n, kernels] at client k."""
    w, a, n = START, np.ones(kernels(0).shape[1]), 10.0
    share = sum((t == 1).sum() for t in TWO) / n
    for _ in range(rounds):
        mass = sum(kernels(k).sum(0) for k in range(3))
        gain = sum(losses(w, k) @ kernels(k) for k in range(3))
        a = a + pace * (greedy(gain, mass, most) - a)
        theta = [kernels(k) @ a for k in range(3)]
        c = (
            sum((theta[k] * ((TWO[k] == 1) - share) * sigmoid(w * X[k])).sum() for k in range(3))
            / n
        )
        pull = penalty * np.sign(c) * max(abs(c) - tau, 0)
        own = []
        for k in range(3):
            h = sigmoid(w * X[k])
            penalised = pull * ((TWO[k] == 1) - share) * h * (1 - h) * X[k]
            own.append(w - RATE * float((theta[k] * (slopes(w, k) + penalised)).mean()))
        w = by_size(own)
    return w, a, c


def cell(k: int) -> np.ndarray:
    return np.eye(4)[2 * Y[k] + TWO[k]]


def kernel(k: int) -> np.ndarray:
    centres = random.normal(random.key(1), "centres", (3, 1)).numpy()
    far = (X[k][:, None] - centres[:, 0]) ** 2
    raw = np.exp(-far / (2 * 0.7**2))
    return raw / raw.sum(1, keepdims=True)


@both
def test_cells_by_hand(kind: type[Engine]) -> None:
    how = {"pace": 0.5, "most": 1.5, "penalty": 30.0, "tau": 0.001}
    w, a, c = by_hand(2, cell, **how)
    assert abs(c) > 0.001
    server, _ = play(AgnosticFair(basis="cells", **how), kind, rounds=2)
    assert server.weights.numpy() == pytest.approx(a, abs=1e-5)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)


@both
def test_kernels_by_hand(kind: type[Engine]) -> None:
    how = {"pace": 1.0, "most": 1.8, "penalty": 10.0, "tau": 0.0}
    w, a, _ = by_hand(2, kernel, **how)
    server, _ = play(AgnosticFair(kernels=3, width=0.7, **how), kind, rounds=2)
    assert server.weights.numpy() == pytest.approx(a, abs=1e-4)
    assert weight_of(server) == pytest.approx(w, abs=1e-5)


def test_no_penalty_within_tau() -> None:
    server, _ = play(AgnosticFair(most=1.0, tau=10.0, penalty=1e6), Loop)
    assert weight_of(server) == pytest.approx(by_size([step(START, k) for k in range(3)]), abs=1e-6)


def reply_of_client_1(how: AgnosticFair) -> Any:
    """Its sums for the first model; it has two examples of group 0 and one of group 1."""
    task, federation = world()
    engine = Loop(task, federation)
    engine.reset(())
    cohort = engine.cohort(torch.tensor([1]), work=Work(lr=RATE), round=0)
    return cohort.sum(how.measure, {"params": {"weight": torch.tensor([[START]])}})


def test_small_groups_are_withheld() -> None:
    how = AgnosticFair(kernels=4)
    full, some = reply_of_client_1(how), reply_of_client_1(replace(how, least=2))
    assert full["groups"].tolist() == [2.0, 1.0]
    assert some["groups"].tolist() == [0.0, 0.0]  # 3 rows minus the 2 of group 0 would tell the 1
    assert full["hit"].all()
    assert not some["hit"].any()
    for name in ("mass", "loss", "positive", "size"):  # these are over all its examples
        assert torch.equal(full[name], some[name])
    server, _ = play(replace(how, least=100), Loop, rounds=2)
    assert weight_of(server) == weight_of(play(replace(how, penalty=0.0), Loop, rounds=2)[0])


def test_small_cells_are_withheld() -> None:
    """No cell of client 1 has two examples; if all are withheld, this is FedAvg."""
    how = AgnosticFair(basis="cells", least=2)
    assert reply_of_client_1(replace(how, least=1))["mass"].sum() == 3.0
    for name in ("mass", "loss", "positive", "hit"):
        assert not reply_of_client_1(how)[name].any()
    server, _ = play(replace(how, least=100), Loop)
    assert weight_of(server) == pytest.approx(by_size([step(START, k) for k in range(3)]), abs=1e-6)


def test_silent_and_single_clients() -> None:
    quiet = play(AgnosticFair(), Loop, wrap=(silent({0: {1}}),))[0]
    assert weight_of(quiet) == weight_of(play(AgnosticFair(), Loop, ids=(0, 2))[0])
    one, _ = play(AgnosticFair(basis="cells", most=3.0, pace=1.0), Loop, ids=(2,))
    count = sums(START, ids=(2,))[0]
    assert float((one.weights * torch.tensor(count).flatten()).sum()) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("penalty", -1.0),
        ("tau", -1.0),
        ("most", 0.5),
        ("pace", 0.0),
        ("kernels", 1),
        ("width", 0.0),
        ("least", -1),
    ],
)
def test_bad_options_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        make("agnosticfair", {name: value})


def test_more_classes_are_refused() -> None:
    task, _ = world()
    with pytest.raises(ConfigError, match="two classes"):
        AgnosticFair().init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
