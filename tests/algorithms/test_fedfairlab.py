"""FedFairLAB: a round by hand, scores by hand, distillation, bounds that bind."""

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
    Y,
    gap_slope,
    losses,
    people,
    play,
    sigmoid,
    slopes,
    train,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.fedfairlab import FedFairLAB
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def soft_gap(w: float, k: int) -> float:
    chance, z = sigmoid(w * X[k]), TWO[k]
    if len(set(z)) < 2:
        return 0.0
    return abs(float(chance[z == 0].mean() - chance[z == 1].mean()))


def own_step(w: float, k: int, lam: float, mu: float, threshold: float) -> float:
    """A step on the loss plus ([lam + mu g]_+^2 - lam^2) / (2 mu)."""
    shifted = max(0.0, lam + mu * (soft_gap(w, k) - threshold))
    return w - RATE * float(slopes(w, k).mean() + shifted * gap_slope(w, k))


def score(w: float, threshold: float) -> float:
    """Accuracy minus ten times the violation, over all clients' rows (none has validation rows)."""
    x, y, z = (np.concatenate(part) for part in (X, Y, TWO))
    said = w * x > 0
    gap = abs(said[z == 0].mean() - said[z == 1].mean())
    return float((said == y).mean() - 10 * max(0.0, gap - threshold))


@both
def test_a_round_by_hand(kind: type[Engine]) -> None:
    lam, mu, threshold = 0.1, 2.0, 0.05
    algorithm = FedFairLAB(threshold=threshold, lam0=lam, mu0=mu, growth=3.0, most=5.0, epochs=0)
    models = [own_step(START, k, lam, mu, threshold) for k in range(3)]
    scores = [score(w, threshold) for w in models]
    assert len(set(scores)) == 1  # the weights have one sign, so the losses decide
    total = [sum(losses(w, k).sum() for k in range(3)) for w in models]
    server, engine = play(algorithm, kind)
    assert weight_of(server) == pytest.approx(models[int(np.argmin(total))], abs=1e-6)
    assert float(server.score) == pytest.approx(max(scores), abs=1e-6)
    for k in range(3):
        violated = max(0.0, soft_gap(models[k], k) - threshold)
        assert float(engine.states.stacked.lam[k, 0]) == pytest.approx(
            lam + mu * violated, abs=1e-6
        )
        assert float(engine.states.stacked.mu[k]) == 5.0  # 6, at most 5


@both
def test_distillation_by_hand(kind: type[Engine]) -> None:
    """One pass: a step from the initial model towards the weighted mean of the probabilities."""
    task, made = world()
    engine = kind(task, made)
    algorithm = FedFairLAB(epochs=1)
    engine.reset(algorithm.init_client(task, {"weight": torch.tensor([[START]])}))
    work = Work(batch=0, lr=RATE)
    cohort = engine.cohort(torch.arange(3), work=work, round=0)
    teachers, share = np.array([2.0, -1.0, 0.5]), np.array([0.5, 0.2, 0.3])
    models = {"weight": torch.tensor(teachers, dtype=torch.float32).reshape(3, 1, 1)}
    initial = {"weight": torch.tensor([[0.3]])}
    sent = {"initial": initial, "models": models, "weight": torch.tensor(share)}
    got = cohort.gather(algorithm.distil, sent, work=algorithm.other_work("distil", work))
    for k in range(3):
        target = share @ sigmoid(np.outer(teachers, X[k]))
        slope = ((sigmoid(0.3 * X[k]) - target) * X[k]).mean()
        wanted = 0.3 - RATE * slope
        assert float(got.value["params"]["weight"][k]) == pytest.approx(wanted, abs=1e-6)


def test_scores_by_hand() -> None:
    """A bound on accuracy and on both attributes of other models, on validation rows."""
    task, made = people(3, clients=3, n=60)
    engine = Loop(task, made)
    algorithm = FedFairLAB(threshold=0.1, budget=0.9, attribute="all")
    engine.reset(algorithm.init_client(task, task.init(0)))
    cohort = engine.cohort(engine.everyone(), work=Work(), round=0)
    models = [task.init(s) for s in range(4)]
    stacked = {name: torch.stack([m[name] for m in models]) for name in models[0]}
    got, losses = algorithm._scores(cohort, stacked)
    rows = made.row_numbers(torch.arange(3))
    x, y, groups = made.x[rows], made.y[rows].numpy(), made.groups[rows].numpy()
    for i, params in enumerate(models):
        said = task.decide(task.outputs(params, x)).numpy()
        accuracy = (said == y).mean()
        wanted = accuracy - 10 * max(0, 0.9 - accuracy)
        for z in groups.T:
            rate = [said[z == level].mean() for level in np.unique(z)]
            wanted -= 10 * max(0, max(rate) - min(rate) - 0.1)
        assert float(got[i]) == pytest.approx(wanted, abs=1e-6)
        each = task.each_loss(task.outputs(params, x), made.y[rows])
        assert float(losses[i]) == pytest.approx(float(each.double().sum()), rel=1e-5)


def hard_gap(task: Any, made: Any, params: Any) -> float:
    rows = made.row_numbers(torch.arange(len(made)))
    said = task.decide(task.outputs(params, made.x[rows])).double()
    z = made.groups[rows][:, 0]
    return float((said[z == 0].mean() - said[z == 1].mean()).abs())


def test_bounds_bind_and_the_best_model_is_kept() -> None:
    task, made = people(7, clients=3, n=80)
    loose = FedFairLAB(threshold=1.0, lam0=0.0, attribute="sex", epochs=3)
    tight = FedFairLAB(threshold=0.02, attribute="sex", epochs=3)
    gaps = []
    for algorithm in (loose, tight):
        server = train(algorithm, task, made, rounds=5)
        gaps.append(hard_gap(task, made, algorithm.deployed(server).params))
    assert gaps[0] > 0.15
    assert gaps[1] < 0.5 * gaps[0]


def test_the_last_model_can_be_deployed() -> None:
    last, _ = play(FedFairLAB(keep="last", epochs=1), Loop, rounds=3)
    assert torch.equal(last.best["weight"], last.params["weight"])


def test_bad_input_is_refused() -> None:
    for options in ({"threshold": -1.0}, {"growth": 0.5}, {"epochs": -1}, {"keep": "x"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("fedfairlab", options)
    task, made = people(3, classes=3)
    with pytest.raises(ConfigError, match="two classes"):
        train(FedFairLAB(), task, made, rounds=1)


def test_batches_are_larger_by_default() -> None:
    assert FedFairLAB().recommended_work() == {"batch": 256}
    assert FedFairLAB(epochs=4).other_work("distil", Work(steps=7)) == Work(epochs=4)
    assert FedFairLAB().other_work("train", Work()) is None
