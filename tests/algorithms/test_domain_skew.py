"""FedHEAL and FedPW: rounds by hand on one parameter, masks, and sparse means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from algorithms.group_by_hand import ENGINES, START, losses, play, step, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.fedheal import FedHEAL
from isonomy.algorithms.client_fair.fedpw import FedPW, Weights, mixed, moved, smallest, sparse_mean
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def heal(rounds: int, tau: float, beta: float) -> tuple[float, np.ndarray]:
    w, q, P = START, np.zeros(3), np.full(3, 1 / 3)
    history: list[list[bool]] = [[], [], []]
    for _ in range(rounds):
        change = np.array([w - step(w, k) for k in range(3)])
        mask = np.ones(3)
        for k in range(3):
            same = [past == (change[k] >= 0) for past in history[k]]
            mask[k] = float(not same or np.mean(same) > tau)
            history[k].append(bool(change[k] >= 0))
        d = np.abs(mask * change)
        q = (1 - beta) * q + beta * d / d.sum()
        P = P + q
        p = P / P.sum()
        w -= float((p * mask * change).sum() / (p * mask).sum())
    return w, P


@both
def test_rounds_of_fedheal_by_hand(kind: type[Engine]) -> None:
    server, _ = play(FedHEAL(tau=0.3, beta=0.4), kind, rounds=4)
    w, P = heal(4, 0.3, 0.4)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert server.P.numpy() == pytest.approx(P, abs=1e-5)


def test_inconsistent_changes_are_masked() -> None:
    """A client that turns round is left out; if all are, the model stays."""
    algorithm = FedHEAL(tau=0.3, beta=0.0)
    server, engine = play(algorithm, ENGINES[0], rounds=1)
    own = engine.states.stacked
    engine.states.stacked = own._replace(history={"weight": 1 - own.history["weight"]})
    cohort = engine.cohort(torch.arange(3), work=Work(batch=0, lr=0.1), round=1)
    after = algorithm.round(server, cohort)
    assert weight_of(after) == weight_of(server)


def pw_weights(p: np.ndarray, a: np.ndarray, value: np.ndarray, b: float) -> Any:
    a = (1 - b) * a + b * value / value.sum()
    p = p + a
    return p / p.sum(), a


@both
def test_rounds_of_fedpw_by_hand(kind: type[Engine]) -> None:
    """Nothing dropped: two rounds of weights."""
    w, beta = START, 0.3
    p = other = np.full(3, 1 / 3)
    a = b = np.zeros(3)
    first: Any = None
    for _ in range(2):
        change = np.array([w - step(w, k) for k in range(3)])
        loss = np.array([losses(w, k).mean() for k in range(3)])
        u = np.maximum(change * change.sum(), 0)
        first = first or (loss.mean(), u.mean())
        p, a = pw_weights(p, a, loss, min(1, beta * loss.mean() / first[0]))
        other, b = pw_weights(other, b, u, min(1, beta * u.mean() / first[1]))
        rho = p.std() / (p.std() + other.std())
        w -= float((rho * p + (1 - rho) * other) @ change)
    server, _ = play(FedPW(beta=beta, r=0.0), kind, rounds=2)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert server.losses.p.numpy() == pytest.approx(p, abs=1e-6)


def test_sparse_means_by_hand() -> None:
    """Client 0 drops its two smallest of four changes; the coordinate that agrees is enlarged."""
    change = torch.tensor([[4.0, 1.0, -0.2, 0.1], [4.0, -1.0, 0.6, 0.3]])
    weight, cut = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.0])
    assert sparse_mean(change, weight, cut, 0.0).tolist() == pytest.approx([4.0, 0.0, 0.3, 0.15])
    got = sparse_mean(change, weight, cut, 0.25)
    ratio = 0.15 / 4.0  # mean of the dropped 0.2 and 0.1, over g there
    assert got.tolist() == pytest.approx([4.0 * (1 + ratio), 0.0, 0.3, 0.15])


@pytest.mark.parametrize("seed", range(5))
def test_smallest_values_are_the_first_of_a_stable_sort(seed: int) -> None:
    """Against sorting: coarse values, so that many are equal, and counts up to all of them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 9, (6, 50), generator=generator) / 8
    values[:, 0] = 1.0  # the largest, so that levels are multiples of 1/8
    count = torch.tensor([0, 1, 7, 25, 49, 50])
    order = values.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    assert torch.equal(smallest(values, count), order < count.unsqueeze(1))


def test_values_that_differ_by_rounding_are_equal() -> None:
    values = torch.tensor([[1.0, 0.5 + 1e-7, 0.5, 0.5 - 1e-7]])
    assert smallest(values, torch.tensor([1])).tolist() == [[False, True, False, False]]
    assert not smallest(torch.zeros(1, 3), torch.tensor([0])).any()
    noise = torch.tensor([[2e-7, 1e-7]])  # deviations of numbers of size 1
    assert smallest(noise, torch.tensor([1]), 1.0).tolist() == [[True, False]]


def test_weights_of_others_stay() -> None:
    p = torch.full((4,), 0.25, dtype=torch.float64)
    old = Weights(p, torch.zeros_like(p), torch.zeros((), dtype=torch.float64))
    new = moved(old, torch.tensor([1, 3]), torch.tensor([1.0, 3.0], dtype=torch.float64), 0.5)
    assert new.p[[0, 2]].tolist() == [0.25, 0.25]
    assert float(new.p.sum()) == pytest.approx(1)
    assert float(new.p[3]) > float(new.p[1])
    assert mixed(p, p).tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(
    ("name", "options"),
    [("fedheal", {"tau": 1.0}), ("fedheal", {"beta": 2.0}), ("fedpw", {"beta": -1.0}),
     ("fedpw", {"r": 2.0})],
)  # fmt: skip
def test_bad_options_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(name, options)
