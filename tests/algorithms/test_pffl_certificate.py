"""What PFFL's verdict rests on: the measured gap, against scipy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from algorithms.group_by_hand import people, train
from contract.checks import silent
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.blocks import certificate, saddle
from isonomy.core.examples import Attribute
from isonomy.core.task import Task
from isonomy.core.verdict import About
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.models.mlp import mlp

both = pytest.mark.parametrize("kind", [Loop, Batched])


# --- the measured gap, against scipy --------------------------------------------------------------


class Exact:
    """The same problem in numpy: losses, F, r and G of a logistic model."""

    def __init__(self, made: Federation, zeta: float) -> None:
        ranges = made.ranges[:, 0].numpy()
        rows = np.concatenate([np.arange(*r) for r in ranges])
        self.x = np.hstack([made.x.numpy().astype(float), np.ones((len(made.y), 1))])[rows]
        self.sign = 2.0 * made.y.numpy()[rows] - 1
        self.group = made.groups[:, 0].numpy()[rows]
        self.owner = np.concatenate([np.full(b - a, k) for k, (a, b) in enumerate(ranges)])
        self.zeta = zeta

    def losses(self, w: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, -self.sign * (self.x @ w))

    def risk(self, w: np.ndarray) -> float:
        loss = self.losses(w)
        return float(np.mean([loss[self.owner == k].mean() for k in np.unique(self.owner)]))

    def r(self, w: np.ndarray) -> np.ndarray:
        loss = self.losses(w)
        return np.array([loss[self.group == z].mean() for z in (0, 1)]) - self.zeta

    def least(self, lam: np.ndarray, beta: float) -> float:
        """min_w G(w, lambda)."""
        found = minimize(
            lambda w: beta * self.risk(w) + lam @ self.r(w), np.zeros(4), options={"gtol": 1e-9}
        )
        return float(found.fun)

    def fairest(self) -> tuple[np.ndarray, float]:
        """The model whose worst group's loss is least, and that loss."""
        start = np.append(np.zeros(4), 1.0)
        found = minimize(
            lambda v: v[-1],
            start,
            constraints={"type": "ineq", "fun": lambda v: v[-1] - self.r(v[:-1]) - self.zeta},
            options={"ftol": 1e-12, "maxiter": 300},
        )
        return found.x[:-1], float(self.r(found.x[:-1]).max() + self.zeta)


def weights(params: Any) -> np.ndarray:
    return saddle.matrix(params).numpy().ravel()


@both
def test_the_gap_is_the_true_one(kind: type[Engine]) -> None:
    for seed in range(3):
        task, made = people(seed)
        algorithm = PFFL(B=6.0, zeta=0.5, attributes=("sex",))
        server = train(algorithm, task, made, rounds=3, kind=kind)
        exact = Exact(made, 0.5)
        w, lam = weights(server.average), server.lam.numpy()
        upper = exact.risk(w) + 6 * max(0.0, exact.r(w).max())
        nu = upper - exact.least(lam, 1.0)
        got = server.certificate
        assert float(got["gap_low"]) <= nu + 1e-6
        assert float(got["gap_high"]) >= nu - 1e-6
        assert float(got["gap_high"] - got["gap_low"]) < 1e-6


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_the_gap_of_other_losses(loss: str) -> None:
    """The bracket closes on what L-BFGS finds, for three classes and for numbers."""
    task, made = people(5, classes=3)
    if loss == "squared":
        task = replace(task, build=lambda: nn.Linear(3, 1), loss_name="squared", classes=0)
        made = replace(made, y=made.y.float(), classes=0, labels=())
    algorithm = PFFL(B=6.0, zeta=0.5, attributes=("sex",))
    server = train(algorithm, task, made, rounds=3, lr=0.1)
    exact = Exact(replace(made, y=torch.zeros_like(made.y)), 0.5)
    rows = torch.cat([torch.arange(*made.ranges[k, 0]) for k in range(len(made))])
    lam = server.lam
    shape = saddle.matrix(server.average).shape
    x = torch.cat([made.x[rows].double(), torch.ones(len(rows), 1).double()], 1)

    def whole(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.tensor(flat, requires_grad=True)
        losses = task.each_loss(x @ w.reshape(shape).T, made.y[rows])
        owner = torch.from_numpy(exact.owner)
        risk = torch.stack([losses[owner == k].mean() for k in range(len(made))]).mean()
        group = torch.from_numpy(exact.group)
        r = torch.stack([losses[group == z].mean() for z in (0, 1)]) - 0.5
        value = risk + lam @ r
        (slope,) = torch.autograd.grad(value, w)
        return value.item(), slope.numpy()

    found = minimize(
        whole, np.zeros(math.prod(shape)), jac=True, method="BFGS", options={"gtol": 1e-8}
    )
    got = server.certificate
    nu = float(got["upper"]) - found.fun
    assert float(got["gap_low"]) <= nu + 1e-6
    assert float(got["gap_high"]) >= nu - 1e-6
    assert float(got["gap_high"] - got["gap_low"]) < 1e-5


def test_lemma_1_on_problems_that_have_a_feasible_point() -> None:
    """For any pair (w, lambda), good or bad, the violation is within (F(w*) + 2 nu) / B."""
    draw = np.random.default_rng(7)
    near = 0
    for seed in range(12):
        task, made = people(seed, n=30)
        exact = Exact(made, 0.0)
        star, least = exact.fairest()
        zeta, B = least + draw.choice([1e-6, 0.02, 0.1]), float(draw.choice([1.0, 10.0, 100.0]))
        exact.zeta = zeta
        assert exact.r(star).max() <= 1e-9
        algorithm = PFFL(B=B, zeta=zeta, attributes=("sex",), beta=float(draw.choice([0.5, 1.0])))
        params = task.init(int(draw.integers(99)))
        if draw.random() < 0.5:  # a model far off
            params = {k: v + 3 * torch.randn(v.shape) for k, v in params.items()}
        server = train(
            algorithm, task, made, rounds=int(draw.integers(0, 6)), lr=1.0, params=params
        )
        got = server.certificate
        over = float(got["violation"].max().clamp(min=0))
        M = exact.risk(star)
        assert over <= (algorithm.beta * M + 2 * float(got["gap_low"])) / B + 1e-6
        # with nu the whole gap, the proof gives more: w's own risk counts, and nu only once
        tight = algorithm.beta * (M - exact.risk(weights(server.average)))
        tight = (tight + float(got["gap_high"])) / B
        assert over <= tight + 1e-6
        near += over > 0.9 * tight
        verdict = replace(algorithm, M=M).verdict(server, About(task, made.attributes, made.labels))
        assert verdict is not None
        assert not verdict.facts["infeasible"], verdict.text
    assert near  # the bound is not so loose that it could not fail


def test_an_infeasible_bound_ends_in_null() -> None:
    task, made = people(4)
    algorithm = PFFL(B=20.0, zeta=0.0, attributes=("sex",))
    server = train(algorithm, task, made, rounds=60, lr=1.0)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.status == "null"
    assert verdict.withholds
    assert verdict.facts["violation"] > verdict.facts["bound"]


def test_a_gap_that_was_not_measured_well_certifies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newton's method stopped before it began: the lower end would certify, the bracket is open."""
    task, made = people(6)
    algorithm = PFFL(B=1.0, zeta=0.6, attributes=("sex",))
    about = About(task, made.attributes, made.labels)
    good = algorithm.verdict(train(algorithm, task, made, rounds=2), about)
    assert good is not None
    assert good.status == "satisfied"
    monkeypatch.setattr(certificate, "STEPS", 0)
    far = {k: v + 2.0 for k, v in task.init(0).items()}
    server = train(algorithm, task, made, rounds=0, params=far)
    found = server.certificate
    assert float(found["gap_high"] - found["gap_low"]) > 0.01
    exact = Exact(made, 0.6)
    upper = exact.risk(weights(far)) + max(0.0, exact.r(weights(far)).max())
    assert float(found["gap_high"]) >= upper - exact.least(np.zeros(2), 1.0) - 1e-6
    bad = algorithm.verdict(server, about)
    assert bad is not None
    assert bad.status == "null"
    assert "only known to be between" in bad.text


def test_silent_clients_at_the_end_certify_nothing() -> None:
    task, made = people(6)
    algorithm = PFFL(B=1.0, zeta=0.6, attributes=("sex",))
    engine = Loop(task, made)
    engine.reset(())
    server = algorithm.init_server(task, task.init(0), len(made))
    wrap = (silent({2: {1}}),)
    cohort = engine.cohort(engine.everyone(), work=Work(), round=0, wrap=wrap)
    server = algorithm.finish(server, cohort)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.status == "null"


def test_what_is_not_convex_is_not_certified() -> None:
    _, made = people(8)
    task = Task(lambda: mlp((3,), 2, hidden=(4,)), levels=(2, 3), attributes=("sex", "age"))
    algorithm = PFFL(B=5.0)
    server = train(algorithm, task, made, rounds=2)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.status == "no claim"
    assert verdict.facts["violation"] == pytest.approx(
        max(float(v) for v in server.certificate["violation"])
    )
    assert not saddle.linear(task)
    bent = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())
    assert not saddle.linear(Task(lambda: bent))


def test_separable_data_still_gives_a_bound() -> None:
    """The minimum is at infinity; the bound from below stays below every value of G."""
    task = Task(lambda: nn.Linear(1, 1), loss_name="logistic", levels=(1,), attributes=("g",))
    x = torch.tensor([[-2.0], [-1.0], [1.0], [3.0]])
    made = build(
        x,
        torch.tensor([0, 0, 1, 1]),
        torch.zeros(4, 1, dtype=torch.int64),
        {"train": [torch.arange(4)], "test": [torch.arange(0)]},
        classes=2,
        attributes=(Attribute("g", ("all",)),),
    )
    algorithm = PFFL(B=2.0, zeta=0.1)
    server = train(algorithm, task, made, rounds=30, lr=1.0)
    got = server.certificate
    assert bool(got["measured"])
    low = float(got["upper"] + server.lam @ server.bounds - got["gap_high"])
    assert low <= 1e-9  # G without its constant is at least 0, and comes as near as one likes
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.facts["constraints"][0]["held_violation"] is None


# --- the min-max case -----------------------------------------------------------------------------


def test_minmax_has_fedminmaxs_objective_and_finds_its_value() -> None:
    task, made = people(9)
    exact = Exact(made, 0.0)
    _, least = exact.fairest()
    algorithm = PFFL(
        constraint="minmax", beta=0.0, B=1.0, zeta=0.0, eta=1.0, attributes=("sex",), report="last"
    )
    server = train(algorithm, task, made, rounds=100, lr=2.0)
    w = weights(server.params)
    # max over |lambda| <= 1 of lambda'r, r >= 0, is the worst group's loss: FedMinMax's objective
    assert float(server.certificate["upper"]) == pytest.approx(exact.r(w).max(), abs=1e-5)
    assert exact.r(w).max() == pytest.approx(least, abs=5e-3)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.status == "no claim"
