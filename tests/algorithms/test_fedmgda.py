"""FedMGDA+: the shortest mixture against a solver, a round by hand, and what it promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from algorithms.by_hand import ENGINES
from algorithms.exchanges import lines, play, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.fedmgda import FedMGDA
from isonomy.blocks.simplex import min_norm
from isonomy.core.algorithm import Global
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)
WORK = Work(epochs=1, batch=0, lr=0.1)

# From w = 0 with rate 0.1 a client with one example (x, y) moves by 0.2 y x.
#   a: x = (1, 0), y = 5 moves by (1, 0);    b: x = (-0.5, 0.5), y = 10 moves by (-1, 1)
#   c: x = (0, 4), y = 2.5 moves by (0, 2)
A, B, C = ((1.0, 0.0), 5.0), ((-0.5, 0.5), 10.0), ((0.0, 4.0), 2.5)


# --- the quadratic program ------------------------------------------------------------------------


def solver(G: np.ndarray, centre: np.ndarray, radius: float) -> np.ndarray:
    n = len(G)
    found = minimize(
        lambda p: p @ G @ p,
        centre,
        jac=lambda p: 2 * G @ p,
        bounds=[(max(0, c - radius), min(1, c + radius)) for c in centre],
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(n)},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.x


@pytest.mark.parametrize("n", [1, 2, 5, 20])
@pytest.mark.parametrize("radius", [0.0, 0.02, 0.3, 1.0])
def test_as_good_as_a_general_solver(n: int, radius: float) -> None:
    random = np.random.default_rng(n)
    for d in (2, 30):  # fewer and more dimensions than vectors
        for sized in (False, True):
            V = random.normal(size=(n, d)) + random.normal(size=d)
            G = V @ V.T
            centre = random.dirichlet(np.full(n, 5.0)) if sized else np.full(n, 1 / n)
            p = min_norm(torch.from_numpy(G), torch.from_numpy(centre), radius).numpy()
            assert p.sum() == pytest.approx(1.0, abs=1e-12)
            assert (np.abs(p - centre) <= radius + 1e-12).all()
            assert p.min() >= 0
            best = solver(G, centre, radius)
            assert p @ G @ p <= best @ G @ best + 1e-7 * np.abs(G).max()
            check_optimal(G, centre, radius, p)


def check_optimal(G: np.ndarray, centre: np.ndarray, radius: float, p: np.ndarray) -> None:
    """No weight that may increase has a smaller slope than one that may decrease."""
    slope = G @ p
    gain = slope[p < np.minimum(1, centre + radius) - 1e-12]
    lose = slope[p > np.maximum(0, centre - radius) + 1e-12]
    if len(gain) and len(lose):
        assert gain.min() >= lose.max() - 1e-9 * np.abs(G).max()


def test_similar_vectors_reach_the_minimum_to_rounding() -> None:
    """Pairs of weights alone stop at their tolerance, and take long."""
    n = 60
    V = np.random.default_rng(n).normal(size=(n, 200)) * np.logspace(0, -4, 200)
    G = torch.from_numpy(V @ V.T)
    p = min_norm(G, torch.full((n,), 1 / n, dtype=torch.float64), 1.0)
    slope = G @ p
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(slope[p > 0].max() - slope.min()) <= 1e-15 * float(G.max())


def test_zeros_and_opposites() -> None:
    equal = torch.full((2,), 0.5)
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert min_norm(opposite, equal, 1.0).tolist() == [0.5, 0.5]
    assert min_norm(torch.zeros(2, 2), equal, 1.0).tolist() == [0.5, 0.5]
    still = torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    assert min_norm(still, equal, 1.0).tolist() == [1.0, 0.0]
    assert min_norm(still, equal, 0.25).tolist() == [0.75, 0.25]


# --- rounds ---------------------------------------------------------------------------------------


@both
def test_by_hand(kind: type[Engine]) -> None:
    """a and b, normalised: (1, 0) and (-1, 1) / sqrt 2. The shortest mixture of two unit vectors
    is their mean; epsilon = 1, eta = 0.5.
    """
    task, federation = lines([[A], [B]])
    got = play(FedMGDA(epsilon=1.0, eta=0.5), kind, task, federation, [0.0, 0.0], WORK)
    r = 1 / math.sqrt(2)
    assert weight_of(got).tolist() == pytest.approx([0.25 * (1 - r), 0.25 * r], abs=1e-6)


@both
def test_by_hand_without_normalising(kind: type[Engine]) -> None:
    """(1, 0) and (0, 2): p (1, 0) + (1 - p) (0, 2) is shortest at p = 0.8, at (0.8, 0.4)."""
    task, federation = lines([[A], [C]])
    how = FedMGDA(epsilon=1.0, normalise=False)
    got = play(how, kind, task, federation, [0.0, 0.0], WORK)
    assert weight_of(got).tolist() == pytest.approx([0.8, 0.4], abs=1e-6)
    near = FedMGDA(epsilon=0.1, normalise=False)  # p may go from 0.5 to 0.6 only
    got = play(near, kind, task, federation, [0.0, 0.0], WORK)
    assert weight_of(got).tolist() == pytest.approx([0.6, 0.8], abs=1e-6)


@both
def test_fixed_weights_are_the_mean_direction(kind: type[Engine]) -> None:
    """epsilon = 0: the mean of unit vectors, whatever their lengths; eta decays by the round."""
    task, federation = lines([[A], [C]])
    got = play(FedMGDA(epsilon=0.0, eta=2.0), kind, task, federation, [0.0, 0.0], WORK)
    assert weight_of(got).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    engine = kind(task, federation)
    cohort = engine.cohort(torch.tensor([0, 1]), work=WORK, round=3)
    start = Global({"weight": torch.zeros(1, 2)})
    got = FedMGDA(epsilon=0.0, eta=2.0, decay=0.5).round(start, cohort)
    assert weight_of(got).tolist() == pytest.approx([0.125, 0.125], abs=1e-6)


@both
def test_no_clients_direction_is_opposed(kind: type[Engine]) -> None:
    """The shortest point has a product with every update of at least its own square."""
    random = np.random.default_rng(5)
    clients = [[(tuple(random.normal(size=4)), float(3 * random.normal()))] for _ in range(6)]
    task, federation = lines(clients)
    got = play(FedMGDA(epsilon=1.0), kind, task, federation, [0.0] * 4, WORK)
    d = weight_of(got).double().numpy()
    moves = np.array([0.2 * y * np.array(x) for ((x, y),) in clients])
    units = moves / np.linalg.norm(moves, axis=1, keepdims=True)
    assert (units @ d >= d @ d - 1e-5).all()
    mean = units.mean(0)
    assert (units @ mean).min() < 0  # which the plain mean does not promise


@both
def test_a_client_without_an_update(kind: type[Engine]) -> None:
    """A client with loss 0 has no direction: it moves nothing, without a division by 0."""
    task, federation = lines([[((1.0, 0.0), 0.0)], [A]])
    got = play(FedMGDA(epsilon=1.0), kind, task, federation, [0.0, 0.0], WORK)
    assert weight_of(got).tolist() == [0.0, 0.0]
    got = play(FedMGDA(epsilon=0.0), kind, task, federation, [0.0, 0.0], WORK)
    assert weight_of(got).tolist() == pytest.approx([0.5, 0.0], abs=1e-6)
    got = play(FedMGDA(), kind, task, federation, [0.0, 0.0], WORK, ids=[1])
    assert weight_of(got).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"epsilon": 1.5}, "epsilon"), ({"eta": 0.0}, "eta"), ({"decay": 1.1}, "decay")],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("fedmgda", options)
