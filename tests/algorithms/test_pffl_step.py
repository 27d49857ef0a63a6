"""The step of PFFL's multipliers: AdaHedge by hand, its regret, and that it acts by default."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from algorithms.group_by_hand import people, train
from algorithms.test_pffl_certificate import Exact
from isonomy.algorithms.group_fair.local_bgl import LocalBGL
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.blocks.constraints import ascended, mixed, multipliers, no_ascent, rate
from isonomy.core.verdict import About
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop


def played(gains: np.ndarray, slack: bool) -> tuple[np.ndarray, np.ndarray]:
    """The shares lambda / B that were played against the gains, one row per round, and rates."""
    state, shares, rates = no_ascent(gains.shape[1]), [], []
    for r in gains:
        shares.append(multipliers(rate(state, slack) * state.total, 1.0, slack).numpy())
        state = ascended(state, torch.from_numpy(r), slack)
        rates.append(float(rate(state, slack)))
    return np.array(shares), np.array(rates)


def test_two_steps_by_hand() -> None:
    first, second = np.array([0.2, -0.1]), np.array([0.0, 0.3])
    shares, rates = played(np.stack([first, second]), slack=True)
    assert shares[0] == pytest.approx([1 / 3, 1 / 3])
    lost = 0.2 - 0.1 / 3  # an unbounded rate mixes to the largest gain
    assert rates[0] == pytest.approx(math.log(3) / lost)
    p = np.exp(rates[0] * np.array([0.0, 0.2, -0.1]))
    p /= p.sum()
    assert shares[1] == pytest.approx(p[1:])
    gain = np.array([0.0, 0.0, 0.3])
    lost += math.log(p @ np.exp(rates[0] * gain)) / rates[0] - p @ gain
    assert rates[1] == pytest.approx(math.log(3) / lost)


@pytest.mark.parametrize("slack", [True, False])
def test_the_regret_is_bounded_whatever_the_scale(slack: bool) -> None:
    """De Rooij et al., Theorem 8: sqrt(sum of s_t^2 log n) + (4/3 log n + 2) max s_t, where s_t is
    the range of the gains; for noise, drift, and gains that punish the leader.
    """
    draw = np.random.default_rng(0)
    for scale in (1e-4, 1.0, 1e3):
        for kind in ("noise", "drift", "punish"):
            T, Z = 150, 4
            gains = scale * draw.normal(size=(T, Z))
            if kind == "drift":
                gains = gains * 0.1 + scale * np.linspace(-1, 1, T)[:, None] * draw.normal(size=Z)
            state, total, best = no_ascent(Z), 0.0, np.zeros(Z)
            spans = []
            for t in range(T):
                p = multipliers(rate(state, slack) * state.total, 1.0, slack).numpy()
                if kind == "punish":
                    gains[t] = np.where(np.arange(Z) == p.argmax(), -scale, scale * 0.5)
                total += float(p @ gains[t])
                best += gains[t]
                all_ = np.append(gains[t], 0.0) if slack else gains[t]
                spans.append(all_.max() - all_.min())
                state = ascended(state, torch.from_numpy(gains[t]), slack)
            n = Z + slack
            regret = max(best.max(), 0.0 if slack else -math.inf) - total
            spans = np.array(spans)
            limit = math.sqrt((spans**2).sum() * math.log(n))
            assert regret <= limit + (4 / 3 * math.log(n) + 2) * spans.max()


def test_by_default_slack_multipliers_vanish_and_tight_ones_do_not() -> None:
    """At the former default, eta = 2, both stay near where they start, B / 3."""
    task, made = people(1)
    about = About(task, made.attributes, made.labels)
    _, least = Exact(made, 0.0).fairest()
    slack = PFFL(B=20.0, zeta=0.75, attributes=("sex",))
    server = train(slack, task, made, rounds=60, lr=1.0, kind=Batched)
    assert float(server.lam.max()) < 0.1
    verdict = slack.verdict(server, about)
    assert verdict is not None
    assert verdict.status == "met"
    assert verdict.facts["gap"] < 0.02 * verdict.facts["risk"]
    assert verdict.facts["eta"] > 2
    tight = PFFL(B=20.0, zeta=least - 0.01, attributes=("sex",))
    server = train(tight, task, made, rounds=60, lr=1.0, kind=Batched)
    assert float(server.lam.sum()) > 15


def test_a_bound_that_binds_is_met_with_a_margin() -> None:
    """The solution of the problem has r = 0 there, and training would end on either side."""
    task, made = people(0)
    about = About(task, made.attributes, made.labels)
    _, least = Exact(made, 0.0).fairest()
    plain = PFFL(B=0.0, zeta=0.0, attributes=("sex",))
    free = train(plain, task, made, rounds=40, lr=1.0, kind=Batched)
    zeta = (least + float(free.certificate["violation"].max())) / 2
    algorithm = PFFL(B=10.0, zeta=zeta, attributes=("sex",))
    server = train(algorithm, task, made, rounds=100, lr=1.0, kind=Batched)
    verdict = algorithm.verdict(server, about)
    assert verdict is not None
    assert verdict.status == "met", verdict.text
    assert verdict.facts["violation"] > -3 * algorithm.margin * zeta  # it binds


def test_the_late_mean_weighs_rounds_by_their_cube() -> None:
    """Up to lower powers: weights t (t + 1) (t + 2), as a running mean without history."""
    mean, lam = {"w": torch.zeros(1)}, 0.0
    for t in range(1, 9):
        done = torch.tensor(t - 1.0, dtype=torch.float64)
        mean, weight = mixed(mean, {"w": torch.full((1,), float(t))}, done, "late")
        lam += (t - lam) * float(weight)
    each = np.arange(1, 9)
    expected = np.average(each, weights=each * (each + 1) * (each + 2))
    assert float(mean["w"]) == pytest.approx(expected, rel=1e-5)
    assert lam == pytest.approx(expected)
    plain, _ = mixed({"w": torch.zeros(1)}, {"w": torch.ones(1)}, done, "average")
    assert float(plain["w"]) == pytest.approx(1 / 8)


def test_local_multipliers_choose_their_step_on_both_engines() -> None:
    task, made = people(2)
    servers = []
    for kind in (Loop, Batched):
        servers.append(train(LocalBGL(B=5.0, zeta=0.6), task, made, rounds=4, kind=kind))
    assert torch.allclose(servers[0].average["weight"], servers[1].average["weight"], atol=1e-5)
    fixed = train(LocalBGL(B=5.0, zeta=0.6, eta=2.0), task, made, rounds=4)
    assert not torch.allclose(servers[0].average["weight"], fixed.average["weight"], atol=1e-4)
