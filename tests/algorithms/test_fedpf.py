"""FedPF: responses have the stated probabilities, and a round by hand with an oracle."""

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
    TWO,
    X,
    Y,
    by_size,
    people,
    play,
    sigmoid,
    train,
    weight_of,
)
from isonomy.algorithms import make
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.fedpf import FedPF, ResponsePool
from isonomy.core.client import Pool
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError
from isonomy.privacy.example_plan import rehearse_examples

both = pytest.mark.parametrize("kind", ENGINES)


def reduction(k: int, w: float, steps: int, *, slack: float, eta: float, bound: float) -> float:
    """Agarwal et al.'s Algorithm 1 with two iterations, written over examples."""
    n, models, net = len(X[k]), [], np.zeros((2, 2))
    theta = np.zeros((2, 2, 2))
    for _ in range(2):
        c = np.zeros(n)
        for i, (y, z) in enumerate(zip(Y[k], TWO[k], strict=True)):
            p_zy = np.mean((Y[k] == y) & (TWO[k] == z))
            c[i] = 2 * y - 1 - net[y, z] / p_zy + net[y].sum() / np.mean(Y[k] == y)
        for _ in range(steps):
            s = np.where(c > 0, 1, -1)
            w -= RATE * float(np.mean(np.abs(c) * -s * X[k] * sigmoid(-s * w * X[k])))
        models.append(w)
        for y in (0, 1):
            for z in (0, 1):
                cell, of = (Y[k] == y) & (TWO[k] == z), Y[k] == y
                h = w * X[k] > 0
                r = h[cell].mean() - h[of].mean() if cell.any() else 0.0
                theta[0, y, z] += eta * (r - slack)
                theta[1, y, z] += eta * (-r - slack)
        lam = bound * np.exp(theta) / (1 + np.exp(theta).sum())
        net = lam[0] - lam[1]
    return float(np.mean(models))


@both
def test_a_round_by_hand(kind: type[Engine]) -> None:
    """epsilon = inf: the true attributes."""
    options = {"slack": 0.01, "eta": 3.0, "bound": 4.0}
    algorithm = FedPF(epsilon=math.inf, iterations=2, **options)
    server, _ = play(algorithm, kind, steps=2)
    expected = by_size([reduction(k, START, 2, **options) for k in range(3)])
    assert weight_of(server) == pytest.approx(expected, abs=1e-6)
    assert weight_of(server) != pytest.approx(weight_of(play(FedAvg(), kind, steps=4)[0]), abs=1e-3)


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_responses_have_the_stated_likelihood_ratio(epsilon: float, groups: int) -> None:
    """P(response = a | a) / P(response = a | b) is e^epsilon for all b, over 60,000 draws."""
    keep, n = FedPF(epsilon=epsilon).keep(groups), 60_000
    assert keep * (groups - 1) / (1 - keep) == pytest.approx(math.exp(epsilon))
    true = torch.arange(n) % groups
    pool = Pool(torch.zeros(n, 1), true, torch.stack([true, true], 1))
    made = ResponsePool(pool, torch.tensor(7), torch.tensor(0), 1, keep, groups)
    rows = torch.arange(n)
    got = made.batch(rows, torch.ones(n)).groups
    assert torch.equal(got[:, 0], true)  # the other attribute is not used
    for value in range(groups):
        for said in range(groups):
            share = float((got[true == value, 1] == said).double().mean())
            expected = keep if said == value else (1 - keep) / (groups - 1)
            assert share == pytest.approx(expected, abs=4.5 * math.sqrt(0.25 / (n / groups)))
    part = made.batch(rows[5:100], torch.ones(95)).groups
    assert torch.equal(part, got[5:100])  # the same response in every batch


@both
def test_a_client_answers_once_for_all_rounds(kind: type[Engine]) -> None:
    """Its key is drawn in its first round and kept; clients have different keys."""
    _, engine = play(FedPF(iterations=1), kind, rounds=1)
    first = engine.states.stacked.clone()
    _, engine = play(FedPF(iterations=1), kind, rounds=3)
    assert torch.equal(engine.states.stacked, first)
    assert len(first.unique()) == 3
    assert (first != 0).all()


def test_equalised_odds_improve_and_worsen_with_less_privacy_budget() -> None:
    task, made = people(0, n=300)

    def gap(algorithm: Any) -> float:
        params = train(algorithm, task, made, rounds=6, kind=Batched).params
        h, z = task.decide(task.outputs(params, made.x)).double(), made.groups[:, 0]
        rates = [[h[(made.y == y) & (z == g)].mean() for g in (0, 1)] for y in (0, 1)]
        return max(float((a - b).abs()) for a, b in rates)

    plain, fair, noisy = (gap(a) for a in (FedAvg(), FedPF(epsilon=math.inf), FedPF(epsilon=0.0)))
    assert fair < 0.7 * plain
    assert noisy > fair


def test_privacy_of_examples_is_refused() -> None:
    task, made = people(2, n=40)
    with pytest.raises(ConfigError, match="phase 'local' of 'fedpf'"):
        rehearse_examples(FedPF(), task, made, Work(steps=2, batch=8), "poisson")


@pytest.mark.parametrize(
    "options",
    [{"epsilon": -1.0}, {"slack": -0.1}, {"bound": math.inf}, {"iterations": 0}],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make("fedpf", options)


def test_more_groups_are_trained_for() -> None:
    task, made = people(4, n=60)
    server = train(FedPF(attribute="age", iterations=2), task, made, rounds=1, kind=Batched)
    assert all(bool(t.isfinite().all()) for t in server.params.values())
