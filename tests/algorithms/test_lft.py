"""LFT+FedAvg and LFT+Ensemble: FairBatch at each client by hand, the mixture, the weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.group_by_hand import (
    ENGINES,
    SIZES,
    START,
    TWO,
    X,
    Y,
    by_size,
    play,
    sigmoid,
    step,
    sums,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.lft_ensemble import LFTEnsemble
from isonomy.algorithms.group_fair.lft_fedavg import LFTFedAvg
from isonomy.contract.checks import silent
from isonomy.core import tree
from isonomy.core.task import Task
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def fair_step(w: float, k: int, ratio: np.ndarray, t: int, alpha: float) -> tuple[float, Any]:
    """Train with a client's weights, then update them from its own losses."""
    w = step(w, k, ratio[Y[k], TWO[k]])
    count, loss, _ = sums(w, ids=(k,))
    m = count.sum(0)
    if m.min() == 0:
        return w, ratio
    f = (loss[0] - loss[1] + count[1]) / m
    f = f - f[0]
    zero = ratio[0] + alpha / math.sqrt(t) * np.array([-f[1], f[1]]) * m.sum() / m
    zero = np.clip(zero, 0, 2)
    return w, np.stack([zero, 2 - zero])


@both
def test_averaging_by_hand(kind: type[Engine]) -> None:
    w, ratios = START, [np.ones((2, 2))] * 3
    for t in (1, 2, 3):
        made = [fair_step(w, k, ratios[k], t, 0.2) for k in range(3)]
        w, ratios = by_size([m[0] for m in made]), [m[1] for m in made]
    server, engine = play(LFTFedAvg(alpha=0.2), kind, rounds=3)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    got = engine.states.take(engine.everyone())["ratio"].numpy()
    assert got == pytest.approx(np.stack(ratios), abs=1e-5)
    assert np.abs(got[0] - 1).max() > 0.01
    assert got[2].tolist() == [[1.0, 1.0], [1.0, 1.0]]  # only one group there


@both
def test_ensemble_by_hand(kind: type[Engine]) -> None:
    own, ratios = [START] * 3, [np.ones((2, 2))] * 3
    for t in (1, 2):
        made = [fair_step(own[k], k, ratios[k], t, 0.2) for k in range(3)]
        own, ratios = [m[0] for m in made], [m[1] for m in made]
    how = LFTEnsemble(alpha=0.2)
    server, engine = play(how, kind, rounds=2)
    assert server.models["weight"].flatten().tolist() == pytest.approx(own, abs=1e-6)
    x = np.array([1.0, -0.7, 4.0])
    likely = sum(n * sigmoid(w * x) for n, w in zip(SIZES / SIZES.sum(), own, strict=True))
    state = tree.take(engine.states.take(engine.everyone()), 0)
    at = torch.tensor(x, dtype=torch.float32).unsqueeze(-1)
    out = how.predict(world()[0], server, state, at).flatten()
    assert out.sigmoid().tolist() == pytest.approx(likely.tolist(), abs=1e-6)


def test_a_client_that_never_took_part_has_no_weight() -> None:
    """A public implementation measures a network that was never trained."""
    how = LFTEnsemble()
    server, _ = play(how, Loop, wrap=(silent({0: {1, 2}}),))
    assert server.weight.tolist() == [5.0, 0.0, 0.0]
    x = torch.tensor(X[0], dtype=torch.float32).unsqueeze(-1)
    out = how.predict(world()[0], server, (), x).flatten()
    alone = float(server.models["weight"][0]) * X[0]
    assert out.tolist() == pytest.approx(alone.tolist(), abs=1e-5)
    assert alone.tolist() != pytest.approx((START * X[0]).tolist(), abs=1e-3)


def test_silent_clients_of_averaging() -> None:
    quiet = play(LFTFedAvg(), Loop, wrap=(silent({0: {1}}),))[0]
    assert weight_of(quiet) == weight_of(play(LFTFedAvg(), Loop, ids=(0, 2))[0])


@pytest.mark.parametrize("name", ["lft_fedavg", "lft_ensemble"])
def test_refusals(name: str) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        make(name, {"alpha": -0.1})
    task, _ = world()
    with pytest.raises(ConfigError, match="two classes"):
        make(name).init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
