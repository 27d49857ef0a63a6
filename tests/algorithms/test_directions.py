"""FedMDFG and FedLF: rounds by hand, common descent, and the parts of the direction."""

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
    X,
    losses,
    people,
    play,
    slopes,
    weight_of,
)
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.fedlf import FedLF, directions
from isonomy.algorithms.client_fair.fedmdfg import FedMDFG, _shortest
from isonomy.blocks.equality import angle, towards_equal
from isonomy.core.task import Batch, Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def loss(w: float) -> np.ndarray:
    return np.array([losses(w, k).mean() for k in range(len(X))])


def slope(w: float) -> np.ndarray:
    return np.array([slopes(w, k).mean() for k in range(len(X))])


def test_the_derivative_of_the_angle() -> None:
    F = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

    def cosine(v: torch.Tensor) -> torch.Tensor:
        return -v.sum() / (v.norm() * math.sqrt(len(v)))

    torch.testing.assert_close(towards_equal(F), torch.func.grad(cosine)(F))
    assert angle(F) == pytest.approx(math.acos(-float(cosine(F))))
    assert not towards_equal(torch.full((3,), 0.7)).any()


@both
def test_a_round_of_fedmdfg_by_hand(kind: type[Engine]) -> None:
    """One parameter; the clients of the cohort agree, so d is the shortest of scaled gradients."""
    ids = [k for k in range(3) if slope(START)[k] > 0]
    g, old = slope(START)[ids], loss(START)[ids]
    assert len(ids) == 2
    d = g.mean()  # of one sign: every combination is rescaled to the mean
    t = RATE
    while True:
        new = loss(START - t * d)[ids]
        if (old - new >= 1e-4 * t * g * d).all():
            break
        t /= 2
    server, _ = play(FedMDFG(theta=math.pi / 2, s=3), kind, ids=ids)
    assert weight_of(server) == pytest.approx(START - t * d, abs=1e-6)
    again, _ = play(FedMDFG(theta=math.pi / 2, s=3), kind, ids=ids, rounds=2)
    w = weight_of(server)
    t, d = RATE * 8, slope(w)[ids].mean()  # the same cohort: from 2^s times the rate
    while not (loss(w)[ids] - loss(w - t * d)[ids] >= 1e-4 * t * slope(w)[ids] * d).all():
        t /= 2
    assert weight_of(again) == pytest.approx(w - t * d, abs=1e-6)


def test_clients_that_disagree_stop_fedmdfg() -> None:
    """In one dimension, opposite gradients have the combination 0: nothing lowers both losses."""
    signs = np.sign(slope(START))
    assert len(set(signs)) == 2
    server, _ = play(FedMDFG(), ENGINES[0])
    assert weight_of(server) == START


def client_losses(task: Any, made: Any, params: Any, clients: int) -> torch.Tensor:
    out = []
    for k in range(clients):
        rows = made.rows(k, "train")
        batch = Batch(made.x[rows], made.y[rows], made.groups[rows], torch.ones(len(made.y[rows])))
        out.append(task.loss(params, batch))
    return torch.stack(out).double()


@pytest.mark.parametrize(
    "algorithm", [FedMDFG(s=3), FedMDFG(theta=0.0, s=3), FedLF(gradient="full")]
)
def test_every_clients_loss_falls(algorithm: Any) -> None:
    """Common descent; where fairness is always an aim, losses also become more equal."""
    task, made = people(3, clients=3, n=50)
    engine, params = Batched(task, made), task.init(0)
    engine.reset(())
    server = algorithm.init_server(task, params, 3)
    before = client_losses(task, made, params, 3)
    for r in range(3):
        cohort = engine.cohort(engine.everyone(), work=Work(batch=0, lr=0.05), round=r)
        server = algorithm.round(server, cohort)
    after = client_losses(task, made, server.params, 3)
    assert (after < before).all()
    if algorithm != FedMDFG(s=3):  # there, the angle may rise up to theta
        assert angle(after) < angle(before)


def guided_directions(guidance: Any) -> tuple[int, int]:
    """Of 100 random directions, along how many every loss falls, and the angle of the losses."""
    draw = np.random.default_rng(0)
    falls = turns = 0
    for _ in range(100):
        raw = torch.tensor(draw.normal(size=(4, 12)) * np.exp(draw.normal(size=(4, 1))))
        losses = torch.tensor(draw.uniform(0.2, 1.2, size=4))
        algorithm = FedMDFG(theta=0.0, guidance=guidance, history=False)
        server = algorithm.init_server(Task(lambda: torch.nn.Linear(1, 1)), {}, 4)
        vectors, guided = algorithm._vectors(server, torch.arange(4), losses, raw)
        assert guided
        d = _shortest(vectors)
        falls += bool((raw @ d > 0).all())
        turns += bool(towards_equal(losses) @ raw @ d > 0)
    return falls, turns


def test_guidance_turns_losses_towards_equality() -> None:
    """Always with gradients as they are; with scaled ones, as in the public code, not always."""
    assert guided_directions("unscaled") == (100, 100)
    falls, turns = guided_directions("scaled")
    assert falls == 100
    assert turns < 90


@both
def test_a_round_of_fedlf_by_hand(kind: type[Engine]) -> None:
    """Two clients whose gradients agree, with P: one layer, one parameter."""
    ids = [k for k in range(3) if slope(START)[k] > 0]
    g, F = slope(START)[ids], torch.tensor(loss(START)[ids])
    P = float(towards_equal(F).numpy() @ g)
    rows = [*g, P]
    d = 0.0 if min(rows) < 0 < max(rows) else min(rows, key=abs)
    d = np.sign(d) * abs(g.mean())
    server, _ = play(FedLF(gradient="full", history=False), kind, ids=ids)
    assert weight_of(server) == pytest.approx(START - RATE * d, abs=1e-6)
    trained, _ = play(FedLF(history=False), kind, ids=ids)  # one step of training: the gradient
    assert weight_of(trained) == pytest.approx(weight_of(server), abs=1e-6)


def test_layers_without_a_direction_are_merged() -> None:
    """In the first layer both oppose each other; together with the second there is a direction."""
    vectors = torch.tensor([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]], dtype=torch.float64)
    assert directions(vectors, [1, 2]).tolist() == pytest.approx([0.0, 0.0, 1.0])
    last = vectors.flip(1)
    assert directions(last, [2, 1]).tolist() == pytest.approx([1.0, 0.0, 0.0])
    opposite = torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    assert not directions(opposite, [1, 1]).any()
    # each layer has its own weights: (1, 0) and (0, 2), of which the model has no combination
    rows = torch.tensor([[1.0, 3.0], [2.0, 2.0]], dtype=torch.float64)
    assert directions(rows, [1, 1]).tolist() == pytest.approx([1.0, 2.0])


def test_fedlf_remembers_clients_outside_the_cohort() -> None:
    """Client 1's last gradient, of the opposite sign, stops the step of client 0 alone."""
    ids = [int(np.flatnonzero(slope(START) < 0)[0]), int(np.flatnonzero(slope(START) > 0)[0])]
    kept = {}
    for history in (True, False):
        algorithm = FedLF(gradient="full", history=history)
        server, engine = play(algorithm, Batched, ids=[ids[0]])
        for r, k in enumerate((ids[1], ids[0]), 1):
            cohort = engine.cohort(torch.tensor([k]), work=Work(batch=0, lr=RATE), round=r)
            before, server = server, algorithm.round(server, cohort)
        kept[history] = weight_of(server) != weight_of(before)
    assert kept == {True: False, False: True}


@pytest.mark.parametrize(
    ("name", "options"), [("fedmdfg", {"theta": 2.0}), ("fedmdfg", {"s": -1}), ("fedlf", {"x": 1})]
)
def test_bad_options_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(name, options)
