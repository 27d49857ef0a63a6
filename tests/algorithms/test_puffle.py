"""PUFFLE: steps by hand, and what one example can change with privacy of examples."""

from __future__ import annotations

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
    by_size,
    people,
    play,
    sigmoid,
    slopes,
    train,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.puffle import PUFFLE, regularised, unfairness
from isonomy.core.task import Batch, Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError
from isonomy.privacy.example_plan import rehearse_examples
from isonomy.privacy.examples import PrivateExamples
from isonomy.privacy.gradients import clipped_sums
from isonomy.privacy.noise import Key

both = pytest.mark.parametrize("kind", ENGINES)
TARGET, ALPHA, M = 0.1, 0.3, 0.5


def table(w: float, k: int) -> np.ndarray:
    out = np.zeros((2, 2))
    np.add.at(out, ((w * X[k] > 0).astype(int), TWO[k]), 1 / len(X[k]))
    return out


def gap(t: np.ndarray, other: np.ndarray) -> tuple[float, int, float]:
    """V, the label of group 0's largest gap, and its sign; two groups have the same gaps."""
    rate = [
        t[:, z] / t[:, z].sum() if t[:, z].sum() > 0 else other[:, z] / other[:, z].sum()
        for z in (0, 1)
    ]
    if np.isnan(rate).any():
        return 0.0, 0, 0.0
    d = rate[0] - rate[1]
    y = int(np.abs(d).argmax())
    return float(abs(d[y])), y, float(np.sign(d[y]))


@np.errstate(invalid="ignore")
def by_hand(rounds: int, steps: int) -> tuple[float, np.ndarray]:
    w, known = START, np.zeros((2, 2))
    own: list[Any] = [None] * 3
    for _ in range(rounds):
        models, tables = [], []
        for k in range(3):
            mine, v, seen = w, 0.0, []
            t = np.zeros((2, 2)) if own[k] is None else own[k]
            lam = 0.0 if own[k] is None else max(0.0, (gap(t, known)[0] - TARGET) / (1 - TARGET))
            for _ in range(steps):
                _, y, sign = gap(t, known)
                share = t.sum(0) / max(t.sum(), 0.02)
                c = np.where(TWO[k] == 0, 1 / max(share[0], 0.02), -1 / max(1 - share[0], 0.02))
                p = sigmoid(mine * X[k])
                inside = (mine * X[k] > 0).astype(int) == y
                slope = sign * c * inside * (p * (1 - p) * X[k]) * (1 if y == 1 else -1)
                g = float(((1 - lam) * slopes(mine, k) + lam * slope).mean())
                t = table(mine, k)
                mine -= RATE * g
                v = M * v + TARGET - gap(t, known)[0]
                lam = min(1.0, max(0.0, lam - ALPHA * v))
                seen.append(t)
            own[k] = t
            models.append(mine)
            tables.append(np.mean(seen, 0))
        w = by_size(models)
        known = np.array([[by_size([t[y, z] for t in tables]) for z in (0, 1)] for y in (0, 1)])
    return w, known


@both
def test_rounds_by_hand(kind: type[Engine]) -> None:
    """Also client 2, which has one group only and takes the other's rates from the server."""
    algorithm = PUFFLE(target=TARGET, alpha=ALPHA, momentum=M)
    server, _ = play(algorithm, kind, rounds=3, steps=3)
    w, known = by_hand(3, 3)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert server.table.numpy() == pytest.approx(known, abs=1e-6)
    assert weight_of(server) != pytest.approx(weight_of(play(FedAvg(), kind, rounds=3, steps=3)[0]))


def test_the_terms_of_examples_have_the_gradient_of_the_gap() -> None:
    """With the batch's own table, the mean of the terms is V~ of the batch, up to a constant."""
    task, made = world()
    batch = Batch(made.x[:5], made.y[:5], made.groups[:5], torch.ones(5))
    params = {"weight": torch.tensor([[START]])}
    _, seen = task.examples_mean(regularised(torch.zeros(2, 2), torch.zeros(2, 2),
                                             torch.tensor(0.0), 0), params, batch)  # fmt: skip
    value, label, group, sign = unfairness(seen, seen)

    def whole(p: Any) -> torch.Tensor:
        prob = task.outputs(p, batch.x).sigmoid().squeeze(-1)
        likely = torch.stack([1 - prob, prob], -1)
        inside = (likely * (likely > 0.5) * label).sum(-1)
        mine = group[batch.group]
        return sign * ((inside * mine).sum() / mine.sum()
                       - (inside * (1 - mine)).sum() / (1 - mine).sum())  # fmt: skip

    each = regularised(seen, seen, torch.tensor(1.0), 0)
    got = torch.func.grad(lambda p: task.examples_mean(each, p, batch)[0])(params)
    torch.testing.assert_close(got, torch.func.grad(whole)(params))
    assert float(value) == pytest.approx(gap(table(START, 0), np.zeros((2, 2)))[0])


def test_the_gap_falls_towards_the_target() -> None:
    task, made = people(0, n=200)
    found = []
    for algorithm in (FedAvg(), PUFFLE(target=0.02, alpha=3.0)):
        params = train(algorithm, task, made, rounds=8, kind=Batched).params
        decided, z = task.decide(task.outputs(params, made.x)), made.groups[:, 0]
        found.append(float(decided[z == 0].double().mean() - decided[z == 1].double().mean()))
    assert abs(found[1]) < 0.6 * abs(found[0])


# --- privacy of examples --------------------------------------------------------------------------


def test_one_example_changes_sums_by_a_bounded_amount() -> None:
    """Whatever the others are: the gradient by the clip, the statistic by 1."""
    task, made = people(1, clients=1, n=30, classes=3)
    n, share, clip = 12, torch.tensor(1.0), 0.05
    known = torch.tensor([[0.1, 0.3], [0.2, 0.1], [0.2, 0.1]])
    each = regularised(known, known, torch.tensor(0.9), 0)
    params = task.init(0)

    def sums(x: torch.Tensor, weight: torch.Tensor) -> Any:
        batch = Batch(x, made.y[:n], made.groups[:n], weight)
        return clipped_sums(task, each, params, batch, weight, clip, share)

    for scale in (1.0, 1e4):
        x = made.x[:n].clone()
        x[0] *= scale
        without = torch.ones(n)
        without[0] = 0.0
        (g, s), (h, t) = sums(x, torch.ones(n)), sums(x, without)
        moved = torch.cat([(g[k] - h[k]).flatten() for k in g])
        assert float(moved.norm()) <= clip * (1 + 1e-4)
        assert float((s - t).norm()) <= 1 + 1e-4


def test_it_trains_with_privacy_of_examples() -> None:
    """One mechanism for each batch, also in the table; without noise and clip, the plain steps."""
    task, made = people(2, n=40)
    work = Work(steps=3, batch=0, lr=0.5)
    found = rehearse_examples(PUFFLE(), task, made, work, "passes")
    assert (found.calls, found.rounds, found.final) == (1, 1, 0)
    tables = []
    for noise in (0.0, 50.0):
        side = PrivateExamples(Key.of_seed(3), clip=1e6, noise=noise, batches="passes")
        algorithm, params = PUFFLE(), task.init(0)
        engine = Loop(task, made)
        engine.reset(algorithm.init_client(task, params))
        server = algorithm.init_server(task, params, len(made))
        cohort = engine.cohort(engine.everyone(), work=work, round=0, around=(side,))
        tables.append(algorithm.round(server, cohort).table)
    plain = train_one(PUFFLE(), task, made, work)
    torch.testing.assert_close(tables[0], plain, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(tables[1], plain, atol=0.05)


def train_one(algorithm: PUFFLE, task: Task, made: Any, work: Work) -> torch.Tensor:
    engine = Loop(task, made)
    engine.reset(algorithm.init_client(task, task.init(0)))
    server = algorithm.init_server(task, task.init(0), len(made))
    cohort = engine.cohort(engine.everyone(), work=work, round=0)
    return algorithm.round(server, cohort).table


@pytest.mark.parametrize(
    "options",
    [{"target": 1.0}, {"alpha": -1.0}, {"momentum": 1.0}, {"newest": 0.0}, {"lam": 2.0},
     {"decay": 0.0}],
)  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make("puffle", options)


def test_a_task_without_probabilities_is_refused() -> None:
    task = Task(world()[0].build, loss_name="hinge", classes=2, levels=(2,), attributes=("kind",))
    with pytest.raises(ConfigError, match="hinge"):
        make("puffle", {}).init_server(task, {}, 3)
