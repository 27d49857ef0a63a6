"""pFedFair: a round by hand, its limits, and fairer personal models; smooth gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from algorithms.group_by_hand import (
    ENGINES,
    RATE,
    SIZES,
    START,
    by_size,
    gap_slope,
    people,
    play,
    slopes,
    step,
    train,
    weight_of,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.pfedfair import PFedFair
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.blocks.soft_rates import soft_accuracy, soft_gap
from isonomy.core.notions import NOTIONS
from isonomy.core.task import Batch, Task
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


@both
def test_a_round_by_hand(kind: type[Engine]) -> None:
    """One step: v - eta (F' + lam rho'), then the exact pull to w; the common model is FedAvg's."""
    lam, gamma = 0.7, 2.0
    server, engine = play(PFedFair(lam=lam, gamma=gamma), kind)
    assert weight_of(server) == pytest.approx(by_size([step(START, k) for k in range(3)]), abs=1e-6)
    for k in range(3):
        moved = START - RATE * (slopes(START, k).mean() + lam * gap_slope(START, k))
        wanted = (moved + RATE * gamma * START) / (1 + RATE * gamma)
        got = float(engine.states.stacked["params"]["weight"][k])
        assert got == pytest.approx(wanted, abs=1e-6)
    assert SIZES.sum() == 10


@both
def test_without_fairness_it_is_fmtl(kind: type[Engine]) -> None:
    """And a strong pull leaves the model that was sent."""
    ours, first = play(PFedFair(lam=0.0, gamma=1.5), kind, rounds=3)
    other, second = play(FMTL(lam=1.5, pull="proximal", weight="size"), kind, rounds=3)
    assert weight_of(ours) == weight_of(other)
    a, b = (e.states.stacked["params"]["weight"] for e in (first, second))
    assert torch.equal(a, b)
    before, _ = play(PFedFair(), kind, rounds=2)
    _, tight = play(PFedFair(gamma=1e9), kind, rounds=3)
    held = tight.states.stacked["params"]["weight"].flatten()
    assert held.tolist() == pytest.approx([weight_of(before)] * 3, abs=1e-6)


def personal_gap(task: Task, made: Any, states: Any) -> float:
    gaps = []
    for k in range(len(made)):
        rows = made.rows(k)
        batch = Batch(made.x[rows], made.y[rows], made.groups[rows], torch.ones(len(made.y[rows])))
        params = {name: value[k] for name, value in states["params"].items()}
        gaps.append(float(soft_gap(task, task.outputs(params, batch.x), batch, 0, NOTIONS["dp"])))
    return float(np.mean(gaps))


def test_gaps_fall_with_lam() -> None:
    task, made = people(3, clients=3, n=80)
    found = []
    for lam in (0.0, 0.3, 3.0):
        engine = Batched(task, made)
        algorithm = PFedFair(lam=lam)
        engine.reset(algorithm.init_client(task, task.init(0)))
        server = algorithm.init_server(task, task.init(0), 3)
        from isonomy.core.work import Work

        for r in range(15):
            cohort = engine.cohort(engine.everyone(), work=Work(batch=0, lr=0.3), round=r)
            server = algorithm.round(server, cohort)
        found.append(personal_gap(task, made, engine.states.stacked))
    assert found[0] > found[1] > found[2]
    assert found[2] < 0.3 * found[0]


def test_smooth_gaps() -> None:
    """Three groups, one of them absent; equal opportunity compares label 1 only."""
    task = Task(lambda: torch.nn.Linear(1, 2), levels=(3,), attributes=("a",))
    p = torch.tensor([0.1, 0.5, 0.8, 0.6, 0.9])
    outputs = torch.stack([torch.zeros(5), p.logit()], 1)
    y, z = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([[0], [0], [2], [2], [2]])
    batch = Batch(torch.zeros(5, 1), y, z, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))
    assert float(soft_gap(task, outputs, batch, 0, NOTIONS["dp"])) == pytest.approx(0.7 - 0.3)
    assert float(soft_gap(task, outputs, batch, 0, NOTIONS["eo"])) == pytest.approx(0.7 - 0.1)
    right = (0.1 + 0.5 + 0.8 + 0.6) / 4
    assert float(soft_accuracy(task, outputs, batch)) == pytest.approx(right)
    alone = batch._replace(groups=torch.ones(5, 1, dtype=torch.int64))
    assert float(soft_gap(task, outputs, alone, 0, NOTIONS["dp"])) == 0
    slope = torch.func.grad(lambda o: soft_gap(task, o, alone, 0, NOTIONS["dp"]))(outputs)
    assert not slope.any()


def test_bad_input_is_refused() -> None:
    for options in ({"lam": -1.0}, {"gamma": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("pfedfair", options)
    task, made = people(3, classes=3)
    with pytest.raises(ConfigError, match="two classes"):
        train(PFedFair(), task, made, rounds=1)
