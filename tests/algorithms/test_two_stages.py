"""FedAvg, then a last stage with a pull: finetune, ewc, symmetric_kl, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from algorithms.by_hand import ENGINES, FEDERATION, TASK, rounds, start
from isonomy.algorithms import make
from isonomy.algorithms.personal.ewc import EWC
from isonomy.algorithms.personal.finetune import Finetune
from isonomy.algorithms.personal.symmetric_kl import SymmetricKL, divergence
from isonomy.core.algorithm import Algorithm
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

WORK = Work(epochs=1, batch=0, lr=0.1)


def finished(
    algorithm: Algorithm, kind: type[Engine], who: tuple[int, ...] = (0, 1)
) -> tuple[list[float], list[float]]:
    """Personal weights and predictions at x = 1, after one round and the last stage.

    One step of `by_hand` leads from 1 to 1.1 and 0.6, equally to w* = 0.85.
    """
    server, engine = rounds(algorithm, kind, steps=1)
    assert server.params["weight"].item() == pytest.approx(0.85)
    before = _served(algorithm, server, engine)
    assert before == pytest.approx([0.85, 0.85])  # until the last stage, the common model
    server = algorithm.finish(server, engine.cohort(torch.tensor(who), work=WORK, round=1))
    own = engine.states.stacked["params"]["weight"].flatten().tolist()
    return own, _served(algorithm, server, engine)


def _served(algorithm: Algorithm, server: Any, engine: Engine) -> list[float]:
    x = torch.tensor([[1.0]])
    states = [engine.states.take(torch.tensor([k])) for k in range(2)]
    one = [torch.utils._pytree.tree_map(lambda t: t[0], s) for s in states]
    return [algorithm.predict(TASK, algorithm.deployed(server), s, x).item() for s in one]


@pytest.mark.parametrize("kind", ENGINES)
def test_finetune_by_hand(kind: type[Engine]) -> None:
    """From 0.85, two steps with gradients 5 v - 6 and 2 (v + 1), rate 0.1.

    Plain: 0.85 + 0.175 = 1.025, then 1.1125; 0.85 - 0.37 = 0.48, then 0.184. With lam = 1 the
    second steps add v - 0.85: -0.875 + 0.175 = -0.7 to 1.095; 2.96 - 0.37 = 2.59 to 0.221.
    """
    assert finished(Finetune(steps=2), kind)[0] == pytest.approx([1.1125, 0.184])
    assert finished(Finetune(lam=1.0, epochs=2), kind)[0] == pytest.approx([1.095, 0.221])


def test_finetune_can_use_another_rate() -> None:
    """Rate 0.2, one step: 0.85 + 0.35 = 1.2 and 0.85 - 0.74 = 0.11."""
    assert finished(Finetune(steps=1, lr=0.2), Loop)[0] == pytest.approx([1.2, 0.11])


@pytest.mark.parametrize(
    "algorithm", [Finetune(steps=1), EWC(steps=1)], ids=lambda algorithm: algorithm.name
)
def test_a_client_that_misses_the_last_stage_keeps_the_common_model(algorithm: Algorithm) -> None:
    served = finished(algorithm, Loop, who=(1,))[1]
    assert served[0] == pytest.approx(0.85)
    assert served[1] == pytest.approx(0.48)


@pytest.mark.parametrize("kind", ENGINES)
def test_ewc_by_hand(kind: type[Engine]) -> None:
    """The squares at w* = 0.85 are of single examples' gradients 2 x (w x - y).

    Client 0: 2 (0.85 - 2) = -2.3 and 4 (1.7 - 2) = -1.2, so I = (5.29 + 1.44) / 2 = 3.365, where
    the square of the batch's gradient -1.75 is 3.0625. Client 1: 3.7^2 = 13.69. Two steps, lam =
    0.1: the first as without pull, 1.025 and 0.48; the second, -0.875 + 0.3365 * 0.175 =
    -0.8161125 to 1.10661125, and 2.96 - 1.369 * 0.37 = 2.45347 to 0.234653.
    """
    got = finished(EWC(lam=0.1, steps=2), kind)[0]
    assert got == pytest.approx([1.10661125, 0.234653])
    got = finished(EWC(lam=0.1, steps=2, fisher="batches", batches=3), kind)[0]
    second = -0.875 + 0.1 * 3.0625 * 0.175
    assert got == pytest.approx([1.025 - 0.1 * second, 0.234653])


@pytest.mark.parametrize("kind", ENGINES)
def test_ewc_with_an_implicit_pull_by_hand(kind: type[Engine]) -> None:
    """Gradients are 5 w - 6 and 2 w + 2; a step, then (v + s w*) / (1 + s) with s = 0.1 lam I."""
    for lam in (0.1, 1e6):
        want = []
        for slope, constant, fisher in ((5, -6, 3.365), (2, 2, 13.69)):
            v, s = 0.85, 0.1 * lam * fisher
            for _ in range(2):
                v = (v - 0.1 * (slope * v + constant) + s * 0.85) / (1 + s)
            want.append(v)
        assert finished(EWC(lam=lam, steps=2, pull="proximal"), kind)[0] == pytest.approx(want)
    held = finished(EWC(lam=1e6, steps=30, pull="proximal"), kind)[0]
    assert held == pytest.approx([0.85, 0.85], abs=1e-5)
    far = finished(EWC(lam=1e6, steps=30), kind)[0]
    assert not any(abs(v - 0.85) < 1 for v in far)  # against the gradient it flies apart


def test_divergence_by_hand() -> None:
    """KL(p || q) + KL(q || p) of p = (3/4, 1/4) and q = (1/2, 1/2).

    3/4 log(3/2) + 1/4 log(1/2) + 1/2 log(2/3) + 1/2 log 2 = (1/4) log 3.
    """
    logit = math.log(3)
    classes = Task(lambda: nn.Linear(1, 2), classes=2)
    mine, theirs = torch.tensor([[logit, 0.0]]), torch.tensor([[5.0, 5.0]])
    assert divergence(classes, mine, theirs).item() == pytest.approx(logit / 4)
    one = Task(lambda: nn.Linear(1, 1), loss_name="logistic")
    got = divergence(one, torch.tensor([[logit]]), torch.tensor([[0.0]]))
    assert got.item() == pytest.approx(logit / 4)


def test_symmetric_kl_keeps_predictions_close() -> None:
    """Logistic loss, one example (x, y) = (1, class 1), from w = 0, so p = 1/2.

    Plain steps, rate 1: w = 1/2, then w + 1 - s(w). With lam the second step adds minus lam times
    d/dw [(s(w) - 1/2) w] = s'(w) w + s(w) - 1/2.
    """
    task = Task(lambda: nn.Linear(1, 1, bias=False), loss_name="logistic")
    from isonomy.data.federation import build

    federation = build(
        torch.ones(1, 1),
        torch.tensor([1]),
        torch.zeros(1, 0, dtype=torch.int64),
        {"train": [torch.tensor([0])]},
        classes=2,
    )
    lam = 0.7
    algorithm = SymmetricKL(lam=lam, steps=2, lr=1.0)
    engine = Loop(task, federation)
    params = {"weight": torch.zeros(1, 1)}
    engine.reset(algorithm.init_client(task, params))
    server = algorithm.init_server(task, params, 1)
    algorithm.finish(server, engine.cohort(torch.tensor([0]), work=WORK, round=0))
    s = 1 / (1 + math.exp(-0.5))
    expected = 0.5 + (1 - s) - lam * (s * (1 - s) * 0.5 + s - 0.5)
    assert engine.states.stacked["params"]["weight"].item() == pytest.approx(expected)


def test_symmetric_kl_needs_probabilities() -> None:
    with pytest.raises(ConfigError, match=r"'squared' .* use .* cross_entropy or logistic"):
        SymmetricKL().init_server(TASK, start(), len(FEDERATION))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("finetune", {"epochs": 0}),
        ("finetune", {"lr": 0.0}),
        ("finetune", {"lam": -1.0}),
        ("ewc", {"steps": 0}),
        ("ewc", {"batches": 0}),
        ("symmetric_kl", {"lam": math.nan}),
    ],
)
def test_bad_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} = "):
        make(name, options)
