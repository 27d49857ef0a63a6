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
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.blocks import certificate, saddle
from isonomy.contract.checks import silent
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
    """For any pair, good or bad, the violation is within (beta (F(w*) - F(w)) + nu) / B."""
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
        tight = algorithm.beta * (M - exact.risk(weights(server.average)))
        tight = (tight + float(got["gap_high"])) / B
        assert over <= tight + 1e-6
        near += over > 0.9 * tight
        verdict = replace(algorithm, M=M).verdict(server, About(task, made.attributes, made.labels))
        assert verdict is not None
        assert verdict.facts["bound"] == pytest.approx(tight, abs=1e-6)
        assert verdict.facts["least_risk"] <= M + 1e-6  # of a model that meets all bounds
        assert verdict.status != "infeasible", verdict.text
    assert near  # the bound is not so loose that it could not fail


def test_infeasible_is_proved_exactly_where_no_model_meets_the_bounds() -> None:
    """Just below the least worst loss that scipy finds it is proved, just above never claimed."""
    for seed in range(3):
        task, made = people(seed, n=30)
        _, least = Exact(made, 0.0).fairest()
        about = About(task, made.attributes, made.labels)
        for shift in (-0.02, -2e-3, 2e-3):
            zeta = least + shift
            algorithm = PFFL(B=2.0, zeta=zeta, attributes=("sex",))
            server = train(algorithm, task, made, rounds=3)
            verdict = algorithm.verdict(server, about)
            assert verdict is not None
            facts = verdict.facts
            if verdict.status == "met":
                assert shift > 0
                continue
            assert (verdict.status == "infeasible") == (shift < 0), verdict.text
            assert verdict.withholds
            assert facts["least_violation"] <= -shift + 1e-5
            assert facts["least_violation_at_most"] >= -shift - 1e-5
            if shift > 0:  # a mixture of the models that were found meets the bounds
                assert facts["least_violation_at_most"] <= 0
                assert "Some linear model does meet all bounds" in verdict.text


def test_violated_is_not_met_whatever_the_bound_of_the_lemma() -> None:
    """At B = 1 the bound of Lemma 1 exceeds the violation; the constraint is violated still."""
    task, made = people(4)
    _, least = Exact(made, 0.0).fairest()
    algorithm = PFFL(B=0.05, zeta=least + 1e-4, attributes=("sex",))
    server = train(algorithm, task, made, rounds=80, lr=1.0)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    over = max(Exact(made, algorithm.zeta).r(weights(server.average)))
    assert over > 0
    assert verdict.status == "violated"
    assert verdict.facts["violation"] == pytest.approx(over, abs=1e-5)
    assert verdict.facts["bound"] > over
    assert f"violated by {over:.4f}" in verdict.text
    assert "training has converged" in verdict.text


def test_a_gap_of_more_than_a_tenth_of_the_risk_has_not_converged() -> None:
    """The old gate, nu <= M, let nu = .559 pass at a risk of .427."""
    found = certificate.empty(2)
    one = torch.tensor(1.0, dtype=torch.float64)
    found |= {"count": torch.tensor([50.0, 50.0]), "violation": torch.tensor([0.01, -0.1])}
    found |= {"risk": 0.427 * one, "upper": 0.527 * one, "measured": one, "clients": 4 * one}
    given = certificate.Given(
        names=["a", "b"],
        bounds=torch.tensor([0.4, 0.4]),
        multipliers=torch.zeros(2),
        clients="all 4 clients",
        convex=True,
        beta=1.0,
        B=10.0,
        M=math.log(2),
        least=0,
    )
    for nu, status in ((0.559, "not converged"), (0.05, "not converged"), (0.04, "violated")):
        gap = {"gap_low": nu * one, "gap_high": nu * one}
        verdict = certificate.verdict(found | gap, given)
        assert verdict.status == status
        assert verdict.withholds
        expected = (math.log(2) - 0.427 + nu) / 10
        assert verdict.facts["bound"] == pytest.approx(expected)
    for amount, shown in ((0.01, "0.0100"), (3e-5, "3e-05")):  # never "violated by 0.0000"
        over = {"violation": torch.tensor([amount, -0.1], dtype=torch.float64)}
        assert f"violated by {shown}. " in certificate.verdict(found | gap | over, given).text


def test_a_group_without_training_rows_is_named_and_prevents_met() -> None:
    task, made = people(6)
    ranges = made.ranges[:, 0]
    rows = torch.cat([torch.arange(*r) for r in ranges])
    groups = made.groups.clone()
    groups[rows, 1] = groups[rows, 1].clamp(max=1)  # nobody is 'older' in training
    about = About(task, made.attributes, made.labels)
    algorithm = PFFL(B=1.0, zeta=5.0, attributes=("age",))
    verdict = algorithm.verdict(train(algorithm, task, made, rounds=1), about)
    assert verdict is not None
    assert verdict.status == "met"
    server = train(algorithm, task, replace(made, groups=groups), rounds=1)
    verdict = algorithm.verdict(server, about)
    assert verdict is not None
    assert verdict.status == "not measured"
    assert verdict.facts["unmeasured"] == ["age = older"]
    assert "age = older" in verdict.text
    shy = replace(algorithm, least=10_000)
    verdict = shy.verdict(train(shy, task, made, rounds=1), about)
    assert verdict is not None
    assert verdict.status == "not measured"
    assert len(verdict.facts["unmeasured"]) == 3


def test_no_figure_claims_more_about_unseen_examples_than_is_true() -> None:
    """A term for unseen examples, from training data, was withdrawn: here it was wrong every other
    time, where one time in twenty was claimed.
    """
    task = Task(
        lambda: nn.Linear(1, 1, bias=False),
        loss_name="squared",
        classes=0,
        levels=(1,),
        attributes=("g",),
    )
    algorithm = PFFL(B=1.0, zeta=1e3, M=1.0)
    wrong = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        x, y = draw.normal(size=(20, 1)), 6 * draw.standard_t(5, 20)
        made = build(
            torch.from_numpy(x).float(),
            torch.from_numpy(y).float(),
            torch.zeros(20, 1, dtype=torch.int64),
            {"train": [torch.arange(20)], "test": [torch.arange(0)]},
            classes=0,
            attributes=(Attribute("g", ("all",)),),
        )
        server = train(algorithm, task, made, rounds=1, lr=0.01)
        verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
        assert verdict is not None
        (cell,) = verdict.facts["constraints"]
        population = float(server.average["weight"]) ** 2 + 36 * 5 / 3
        wrong += population > cell["loss"] + cell.get("generalisation", math.inf)
    assert wrong <= 1


def test_a_gap_that_was_not_measured_well_certifies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newton's method stopped before it began: the lower end would certify, the bracket is open."""
    task, made = people(6)
    algorithm = PFFL(B=1.0, zeta=0.6, attributes=("sex",))
    about = About(task, made.attributes, made.labels)
    loose = replace(algorithm, zeta=2.0)
    good = loose.verdict(train(loose, task, made, rounds=2), about)
    assert good is not None
    assert good.status == "met"
    monkeypatch.setattr(saddle, "STEPS", 0)
    far = {k: v + 2.0 for k, v in task.init(0).items()}
    server = train(algorithm, task, made, rounds=0, params=far)
    found = server.certificate
    assert float(found["gap_high"] - found["gap_low"]) > 0.01
    exact = Exact(made, 0.6)
    upper = exact.risk(weights(far)) + max(0.0, exact.r(weights(far)).max())
    assert float(found["gap_high"]) >= upper - exact.least(np.zeros(2), 1.0) - 1e-6
    bad = algorithm.verdict(server, about)
    assert bad is not None
    assert bad.status == "not converged"
    assert "nu is between" in bad.text


def test_silent_clients_at_the_end_certify_nothing() -> None:
    task, made = people(6)
    algorithm = PFFL(B=1.0, zeta=0.6, attributes=("sex",))
    engine = Loop(task, made)
    engine.reset(())
    server = algorithm.init_server(task, task.init(0), len(made))
    wrap = (silent({2: {1}}),)
    cohort = engine.cohort(engine.everyone(), work=Work(), round=0, wrap=wrap)
    server = algorithm.examine(server, cohort)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.facts["gap"] is None
    assert verdict.facts["least_violation"] is None
    assert verdict.status == "violated"


def test_a_network_is_measured_without_a_guarantee() -> None:
    _, made = people(8)
    task = Task(lambda: mlp((3,), 2, hidden=(4,)), levels=(2, 3), attributes=("sex", "age"))
    algorithm, about = PFFL(B=5.0), About(task, made.attributes, made.labels)
    server = train(algorithm, task, made, rounds=2)
    verdict = algorithm.verdict(server, about)
    assert verdict is not None
    assert verdict.status == "violated"
    assert verdict.facts["gap"] is None
    assert verdict.facts["violation"] == pytest.approx(
        max(float(v) for v in server.certificate["violation"])
    )
    loose = replace(algorithm, zeta=2.0)
    verdict = loose.verdict(train(loose, task, made, rounds=1), about)
    assert verdict is not None
    assert verdict.status == "met"
    assert not verdict.withholds
    assert "no guarantee beyond this data" in verdict.text
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
    assert algorithm.verdict(server, About(task, made.attributes, made.labels)) is None
    free = replace(algorithm, constraint="bgl", beta=1.0, B=0.0)
    assert free.verdict(server, About(task, made.attributes, made.labels)) is None
