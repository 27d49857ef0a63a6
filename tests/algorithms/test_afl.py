"""AFL: the projection against two oracles, a round by hand, and the faults of public versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize

from algorithms.by_hand import ENGINES, FEDERATION, TASK, rounds
from algorithms.exchanges import lines, play, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.afl import AFL, Server
from isonomy.blocks.simplex import project
from isonomy.contract.checks import silent
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.cohort import Cohort
from isonomy.core.task import Params, Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


# --- the projection -------------------------------------------------------------------------------


def oracle(v: np.ndarray) -> np.ndarray:
    """The projection is max(v - t, 0) with t such that it sums to 1: t by root finding."""
    t = brentq(lambda t: np.maximum(v - t, 0).sum() - 1, v.min() - 2, v.max(), xtol=1e-15)
    return np.maximum(v - t, 0)


def vectors() -> list[np.ndarray]:
    random = np.random.default_rng(11)
    out = [random.normal(size=n) * s for n in (1, 2, 5, 50) for s in (0.01, 1, 100) for _ in "abcd"]
    for n in (3, 10, 100):  # what AFL projects: a point of the simplex and a rise
        for _ in range(20):
            out.append(random.dirichlet(np.ones(n)) + 0.1 * random.exponential(size=n))
    return out


def check_projection(found: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for v in vectors():
        got = found(torch.from_numpy(v)).numpy()
        assert got.sum() == pytest.approx(1.0, abs=1e-12)
        assert got.min() >= 0
        assert np.abs(got - oracle(v)).max() < 1e-9


def test_the_nearest_point_of_the_simplex() -> None:
    check_projection(project)


def test_the_projection_solves_its_quadratic_program() -> None:
    random = np.random.default_rng(1)
    for _ in range(10):
        v = random.normal(size=6)
        found = minimize(
            lambda p, v=v: ((p - v) ** 2).sum(),
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
            options={"ftol": 1e-14},
        )
        assert project(torch.from_numpy(v)).numpy() == pytest.approx(found.x, abs=1e-6)


def test_a_point_of_the_simplex_stays() -> None:
    p = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    assert project(p).tolist() == p.tolist()
    assert project(torch.tensor([5.0])).tolist() == [1.0]
    assert project(torch.tensor([1e30, 1.0])).tolist() == [1.0, 0.0]


def wrong_projection(v: torch.Tensor) -> torch.Tensor:
    """A public version: the sum in the test lacks its last term."""
    u = v.sort(descending=True).values
    rho, shift = 0, 0.0
    for i in range(len(u)):
        if u[i] + (1 - u[:i].sum()) / (i + 1) > 0:
            rho = i
    shift = float((1 - u[: rho + 1].sum()) / (rho + 1))
    return (v + shift).clamp(min=0)


def test_a_sum_without_its_last_term_is_detected() -> None:
    with pytest.raises(AssertionError):
        check_projection(wrong_projection)


# --- rounds ---------------------------------------------------------------------------------------


def check_by_hand(algorithm: Algorithm) -> None:
    """gamma = 0.05, rate 0.1, from w = 1: losses 0.5 and 4, gradients 5 w - 6 and 2 (w + 1).

    Round 1: w = 1 - 0.1 * (-1 + 4) / 2 = 0.85; lambda = (0.5 + 0.025, 0.5 + 0.2), less 0.1125
    each: (0.4125, 0.5875). Round 2 at 0.85: gradients -1.75 and 3.7, w = 0.85 - 0.1 * (0.4125 *
    -1.75 + 0.5875 * 3.7) = 0.70481; losses 0.70625 and 3.4225, lambda = (0.4478125, 0.758625),
    less 0.10321875 each. The mean of 0.85 and 0.70481 is used.
    """
    for kind in ENGINES:
        server, _ = rounds(algorithm, kind, steps=3)
        assert weight_of(server).item() == pytest.approx(0.85, abs=1e-6)
        assert server.lam.tolist() == pytest.approx([0.4125, 0.5875], abs=1e-6)
        server, _ = rounds(algorithm, kind, steps=3, rounds=2)
        w = 0.85 - 0.1 * (0.4125 * -1.75 + 0.5875 * 3.7)
        assert weight_of(server).item() == pytest.approx(w, abs=1e-6)
        assert server.lam.tolist() == pytest.approx([0.34459375, 0.65540625], abs=1e-6)
        used = algorithm.deployed(server).params["weight"].item()
        assert used == pytest.approx((0.85 + w) / 2, abs=1e-6)


def test_by_hand() -> None:
    check_by_hand(AFL(gamma=0.05))


@both
def test_the_newest_model_on_request(kind: type[Engine]) -> None:
    how = AFL(gamma=0.05, report="last")
    server, _ = rounds(how, kind, steps=1, rounds=2)
    assert how.deployed(server).params["weight"].item() == weight_of(server).item()


@both
def test_local_training_by_hand(kind: type[Engine]) -> None:
    """Two steps lead to 1.15 and 0.28; the first round's lambda is equal, the second's is not."""
    how = AFL(gamma=0.05, update="model")
    server, _ = rounds(how, kind, steps=2)
    assert weight_of(server).item() == pytest.approx(0.715, abs=1e-6)
    assert server.lam.tolist() == pytest.approx([0.4125, 0.5875], abs=1e-6)
    server, _ = rounds(how, kind, steps=2, rounds=2)
    own = [1.2 + 0.25 * (0.715 - 1.2), 0.64 * (0.715 + 1) - 1]
    assert weight_of(server).item() == pytest.approx(0.4125 * own[0] + 0.5875 * own[1], abs=1e-6)


@dataclass(frozen=True)
class IgnoresLambda(Algorithm[Server]):
    """A public version: with its own recommended flag, every weight is 1 in the average."""

    name: ClassVar[str] = "ignores_lambda"
    family: ClassVar[str] = "test"
    paper: ClassVar[str] = "none"
    reveals: ClassVar[str] = "nothing"

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        return AFL().init_server(task, params, clients)

    def deployed(self, server: Server) -> Global:
        return AFL().deployed(server)

    def round(self, server: Server, cohort: Cohort) -> Server:
        equal = torch.full_like(server.lam, 1 / len(server.lam))
        after = AFL(gamma=0.05).round(server._replace(lam=equal), cohort)
        rise = after.lam - equal
        return after._replace(lam=project(server.lam + rise))


def test_an_ignored_lambda_is_detected() -> None:
    with pytest.raises(AssertionError):
        check_by_hand(IgnoresLambda())


def test_descent_and_ascent_find_the_saddle() -> None:
    """(w - 2)^2 and (w + 1)^2 are equal at 0.5: the worst mixture makes w go there.

    A third client, (w - 0.4)^2, never matters: its lambda ends at 0.
    """
    task, federation = lines([[((1.0,), 2.0)], [((1.0,), -1.0)], [((1.0,), 0.4)]])
    work = Work(epochs=1, batch=0, lr=0.1)
    server = play(AFL(gamma=0.05), Batched, task, federation, [1.0], work, rounds=60)
    assert weight_of(server).item() == pytest.approx(0.5, abs=0.05)
    assert server.lam.tolist() == pytest.approx([0.5, 0.5, 0.0], abs=0.05)
    assert float(server.lam.sum()) == pytest.approx(1.0, abs=1e-12)


@both
def test_a_cohort_smaller_than_all(kind: type[Engine]) -> None:
    """Only client 1 is asked: its lambda alone rises, then all are projected.

    w = 0.6, its own step; lambda = (0.5, 0.5 + 0.2) less 0.1 each.
    """
    server, _ = rounds(AFL(gamma=0.05), kind, steps=1, ids=(1,))
    assert weight_of(server).item() == pytest.approx(0.6, abs=1e-6)
    assert server.lam.tolist() == pytest.approx([0.4, 0.6], abs=1e-6)


@both
def test_a_cohort_without_lambda_moves_only_lambda(kind: type[Engine]) -> None:
    how = AFL(gamma=0.05)
    engine = kind(TASK, FEDERATION)
    params = {"weight": torch.tensor([[1.0]])}
    server = how.init_server(TASK, params, 2)
    server = server._replace(lam=torch.tensor([1.0, 0.0], dtype=torch.float64))
    work = Work(epochs=1, batch=0, lr=0.1)
    after = how.round(server, engine.cohort(torch.tensor([1]), work=work, round=0))
    assert weight_of(after).item() == 1.0
    assert after.lam.tolist() == pytest.approx([0.9, 0.1], abs=1e-6)
    late = engine.cohort(torch.tensor([0, 1]), work=work, round=0, wrap=(silent({0: {0}}),))
    assert how.round(server, late).lam.tolist() == pytest.approx([0.9, 0.1], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma": -0.1}, "gamma = -0.1"),
        ({"gamma": math.nan}, "gamma"),
        ({"report": "best"}, "report.*average"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("afl", options)
