"""EquiFL: the penalty and the part of the model that is not shared, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from algorithms.group_by_hand import (
    ENGINES,
    RATE,
    SIZES,
    START,
    TWO,
    X,
    Y,
    by_size,
    play,
    sigmoid,
    slopes,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.equifl import EquiFL
from isonomy.contract.checks import silent
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


@both
def test_covariance_by_hand(kind: type[Engine]) -> None:
    """Two groups have opposite covariances, so the penalty is twice one's absolute value."""
    own = []
    for k in range(3):
        z = (TWO[k] == 1) - (TWO[k] == 1).mean()
        h = sigmoid(START * X[k])
        cov = (z * h).mean()
        penalty = 2 * 3.0 * np.sign(cov) * (z * h * (1 - h) * X[k]).mean()
        own.append(START - RATE * (slopes(START, k).mean() + penalty))
    server, _ = play(EquiFL(penalty=3.0), kind)
    assert weight_of(server) == pytest.approx(by_size(own), abs=1e-6)


@both
def test_product_by_hand(kind: type[Engine]) -> None:
    """mean ((z - mean z) (o - mean o))^2 with o = w x: its derivative is 2 / w times itself."""
    own = []
    for k in range(3):
        z, o = TWO[k] - TWO[k].mean(), START * (X[k] - X[k].mean())
        penalty = 0.5 * 2 / START * ((z * o) ** 2).mean()
        own.append(START - RATE * (slopes(START, k).mean() + penalty))
    server, _ = play(EquiFL(penalty=0.5, form="product"), kind)
    assert weight_of(server) == pytest.approx(by_size(own), abs=1e-6)


def with_bias() -> Task:
    return Task(lambda: nn.Linear(1, 1), loss_name="logistic", classes=2, levels=(2,))


@both
def test_what_stays_with_the_client(kind: type[Engine]) -> None:
    """The weight is averaged; each client keeps its own bias and predicts with it."""
    how, task, federation = EquiFL(penalty=0.0), with_bias(), world()[1]
    params = {"weight": torch.tensor([[START]]), "bias": torch.zeros(1)}
    engine = kind(task, federation)
    engine.reset(how.init_client(task, params))
    server = how.init_server(task, params, 3)
    work = Work(epochs=1, batch=0, lr=RATE)
    w, bias = START, np.zeros(3)
    for r in range(2):
        server = how.round(server, engine.cohort(torch.arange(3), work=work, round=r))
        g = [sigmoid(w * X[k] + bias[k]) - Y[k] for k in range(3)]
        w = by_size([w - RATE * (g[k] * X[k]).mean() for k in range(3)])
        bias = bias - RATE * np.array([g[k].mean() for k in range(3)])
    states = engine.states.take(engine.everyone())
    assert set(states) == {"bias"}
    assert states["bias"].flatten().tolist() == pytest.approx(bias.tolist(), abs=1e-6)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert float(server.params["bias"]) == 0.0
    out = how.predict(task, server, {"bias": states["bias"][1]}, torch.tensor([[2.0]]))
    assert float(out) == pytest.approx(2 * w + bias[1], abs=1e-6)


def test_what_is_shared() -> None:
    names = {"a.weight": 0, "a.bias": 0, "b.weight": 0, "b.bias": 0}
    assert set(EquiFL().init_client(with_bias(), names)) == set(names) - {"a.weight"}
    assert set(EquiFL(shared="first_layer").init_client(with_bias(), names)) == {
        "b.weight",
        "b.bias",
    }
    assert EquiFL(shared="all").init_client(with_bias(), names) == {}


def test_silent_and_single_clients() -> None:
    quiet = play(EquiFL(), Loop, wrap=(silent({0: {1}}),))[0]
    assert weight_of(quiet) == weight_of(play(EquiFL(), Loop, ids=(0, 2))[0])
    one, _ = play(EquiFL(penalty=100.0), Loop, ids=(2,))  # one group: nothing to penalise
    assert weight_of(one) == pytest.approx(START - RATE * slopes(START, 2).mean(), abs=1e-6)
    assert SIZES[2] == 2


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="penalty"):
        make("equifl", {"penalty": -1.0})
    task: Any = world()[0]
    with pytest.raises(ConfigError, match="two classes"):
        EquiFL().init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
