"""FAIR-FATE: momentum by hand, and rounds in which no client is fairer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from algorithms.group_by_hand import (
    ENGINES,
    START,
    by_size,
    overhearing,
    play,
    step,
    sums,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.fair_fate import FairFate
from isonomy.contract.checks import silent
from isonomy.core.task import Task
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def fairness(w: float, ids: Any, notion: str, groups: int) -> float:
    """1 - the gap of positive rates; -1 where fewer than two groups can be compared.

    For two groups the gap is their difference, for three the largest distance from everyone's.
    """
    count, _, positive = sums(w, groups, ids=ids)
    if notion == "eo":
        count, positive = count[1:], positive[1:]
    m, p = count.sum(0), positive.sum(0)
    if (m > 0).sum() < 2:
        return -1.0
    rate = p[m > 0] / m[m > 0]
    far = rate.max() - rate.min() if groups == 2 else np.abs(rate - p.sum() / m.sum()).max()
    return float(1 - far)


@both
@pytest.mark.parametrize(("notion", "groups", "fairer"), [("eo", 2, 1), ("dp", 3, 2)])
def test_by_hand(kind: type[Engine], notion: Any, groups: int, fairer: int) -> None:
    w, v, most = START, 0.0, 0
    for t in range(3):
        bar = fairness(w, (0, 1, 2), notion, groups)
        own = np.array([step(w, k) for k in range(3)])
        f = np.array([fairness(own[k], (k,), notion, groups) for k in range(3)])
        fair = f >= bar
        most = max(most, int(fair.sum()))
        if fair.any():
            weight = np.where(fair, f, 0)
            v = 0.8 * v + 0.2 * float(weight @ (own - w) / weight.sum())
        lam = min(0.4 * 1.1**t, 0.45)
        w = w + lam * v + (1 - lam) * (by_size(own) - w)
    assert most == fairer
    how = FairFate(lambda0=0.4, rho=0.1, most=0.45, beta=0.8, notion=notion)
    server, _ = play(how, kind, rounds=3, groups=groups)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert float(server.momentum["weight"]) == pytest.approx(v, abs=1e-6)


def test_the_momentum_stays_if_no_client_is_fairer() -> None:
    """Client 2 has one group and does not count as fairer."""
    server, _ = play(FairFate(), Loop, ids=(2,))
    assert float(server.momentum["weight"]) == 0.0
    own = step(START, 2)
    assert weight_of(server) == pytest.approx(START + 0.5 * (own - START), abs=1e-6)


def test_small_cells_are_withheld() -> None:
    """Clients with fewer examples of a group than `least` do not report their fairness."""
    sent: list[float] = []
    server, _ = play(FairFate(least=3), Loop, wrap=(overhearing("fairness", sent),))
    assert sent == [-1.0, -1.0, -1.0]
    assert float(server.momentum["weight"]) == 0.0


def test_silent_clients_are_left_out() -> None:
    quiet = play(FairFate(), Loop, wrap=(silent({0: {0}}),))[0]
    assert weight_of(quiet) == weight_of(play(FairFate(), Loop, ids=(1, 2))[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"lambda0": 0.95}, "lambda0"), ({"rho": 1.0}, "rho"), ({"beta": 1.0}, "beta")],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("fair_fate", options)


def test_more_classes_are_refused() -> None:
    task, _ = world()
    with pytest.raises(ConfigError, match="two classes"):
        FairFate().init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
