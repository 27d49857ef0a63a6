"""PFFL by hand and in its limits; its verdict is in test_pffl_certificate.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.group_by_hand import people, train
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.group_fedavg import GroupFedAvg
from isonomy.algorithms.group_fair.local_bgl import LocalBGL
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.blocks.constraints import BGL, CBGL, cell_sums, multipliers, violations
from isonomy.contract.checks import silent
from isonomy.core.examples import Attribute
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Task
from isonomy.core.verdict import About
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", [Loop, Batched])

# --- a federation for pencil and paper ------------------------------------------------------------

xs = np.array([1.0, 2.0, 1.0, 3.0, 1.0])
ys = np.array([2.0, 2.0, -1.0, 1.0, 0.0])
group_of = np.array([0, 1, 0, 1, 1])
owner_of = np.array([0, 0, 1, 1, 1])
SMALL = Task(lambda: nn.Linear(1, 1, bias=False), loss_name="squared", classes=0, levels=(2,))


def small() -> Federation:
    rows = [torch.from_numpy(np.flatnonzero(owner_of == k)) for k in (0, 1)]
    return build(
        torch.from_numpy(xs).float().unsqueeze(-1),
        torch.from_numpy(ys).float(),
        torch.from_numpy(group_of).unsqueeze(-1),
        {"train": rows},
        classes=0,
        attributes=(Attribute("sex", ("f", "m")),),
    )


def play(algorithm: Any, kind: type[Engine], rounds: int, **how: Any) -> Any:
    engine = kind(SMALL, small())
    start = {"weight": torch.tensor([[1.0]])}
    engine.reset(algorithm.init_client(SMALL, start))
    server = algorithm.init_server(SMALL, start, 2)
    for r in range(rounds):
        cohort = engine.cohort(torch.arange(2), work=Work(batch=0, lr=0.02), round=r, **how)
        server = algorithm.round(server, cohort)
    return server


def by_hand(rounds: int, *, B: float, zeta: float, eta: float, factor: float, scale: bool) -> Any:
    """One full gradient step a round, from w = 1, in plain numbers."""
    w, theta, models, lams = 1.0, np.zeros(2), [], []
    sizes = np.array([(group_of == z).sum() for z in (0, 1)])
    for t in range(rounds):
        if t:
            loss = (w * xs - ys) ** 2
            r = np.array([loss[group_of == z].mean() for z in (0, 1)]) - zeta
            theta = theta + eta / B * r
        lam = B * np.exp(theta) / (1 + np.exp(theta).sum())
        new = []
        for k in (0, 1):
            mine = owner_of == k
            slope = 2 * xs * (w * xs - ys)
            step = slope[mine].mean()
            for z in (0, 1):
                step += factor * lam[z] * slope[mine & (group_of == z)].sum() / sizes[z]
            new.append(w - 0.02 / (1 + B if scale else 1) * step)
        w = float(np.mean(new))
        models.append(w)
        lams.append(lam)
    return w, np.mean(models), theta, np.mean(lams, 0)


@both
@pytest.mark.parametrize(("factor", "times"), [("K", 2.0), (1, 1.0)])
@pytest.mark.parametrize("scale", [True, False])
def test_rounds_by_hand(kind: type[Engine], factor: Any, times: float, scale: bool) -> None:
    algorithm = PFFL(
        B=4.0, zeta=0.5, eta=2.0, margin=0.0, factor=factor, scale=scale, report="average"
    )
    server = play(algorithm, kind, 3)
    w, mean, theta, lam = by_hand(3, B=4.0, zeta=0.5, eta=2.0, factor=times, scale=scale)
    assert server.params["weight"].item() == pytest.approx(w, abs=1e-6)
    assert algorithm.deployed(server).params["weight"].item() == pytest.approx(mean, abs=1e-6)
    assert (server.ascent.total * 2 / 4).tolist() == pytest.approx(theta.tolist(), abs=1e-5)
    assert server.lam.tolist() == pytest.approx(lam.tolist(), abs=1e-5)
    newest = replace(algorithm, report="last").deployed(server).params["weight"].item()
    assert newest == pytest.approx(w, abs=1e-6)


@both
def test_local_multipliers_by_hand(kind: type[Engine]) -> None:
    """Each client's own groups: client 0 has one example of each, client 1 one and two."""
    w, theta = 1.0, np.zeros((2, 2))
    for t in range(3):
        new = []
        for k in (0, 1):
            mine = owner_of == k
            cells = [mine & (group_of == z) for z in (0, 1)]
            r = np.array([((w * xs - ys) ** 2)[c].mean() for c in cells]) - 0.5
            theta[k] += (t > 0) * 2 / 4 * r
            lam = 4 * np.exp(theta[k]) / (1 + np.exp(theta[k]).sum())
            slope = 2 * xs * (w * xs - ys)
            step = slope[mine].mean() + sum(lam[z] * slope[cells[z]].mean() for z in (0, 1))
            new.append(w - 0.02 / 5 * step)
        w = float(np.mean(new))
    server = play(LocalBGL(B=4.0, zeta=0.5, eta=2.0), kind, 3)
    assert server.params["weight"].item() == pytest.approx(w, abs=1e-6)


@both
def test_group_weights_by_hand(kind: type[Engine]) -> None:
    """Two of five examples in group 0, three in group 1: weights 5/4 and 5/6."""
    weight = np.where(group_of == 0, 5 / 4, 5 / 6)
    w = 1.0
    for _ in range(2):
        slope = 2 * xs * (w * xs - ys) * weight
        new = [w - 0.02 * slope[owner_of == k].mean() for k in (0, 1)]
        w = (2 * new[0] + 3 * new[1]) / 5
    server = play(GroupFedAvg(), kind, 2)
    assert server.params["weight"].item() == pytest.approx(w, abs=1e-6)


# --- multipliers ----------------------------------------------------------------------------------


def test_multipliers_are_those_of_the_exponentials_whatever_their_size() -> None:
    theta = torch.tensor([0.3, -2.0, 1.1], dtype=torch.float64)
    lam = multipliers(theta, 7.0)
    assert torch.allclose(lam / (7 - lam.sum()), theta.exp())
    for far in (1e6, -1e6):
        held = multipliers(torch.full((3,), far, dtype=torch.float64), 7.0)
        assert bool(held.isfinite().all())
        assert float(held.sum()) == pytest.approx(7.0 if far > 0 else 0.0, abs=1e-9)
    free = multipliers(torch.randn(50, 4, dtype=torch.float64).T, 1.0, slack=False)
    assert torch.allclose(free.sum(0), torch.ones(50, dtype=torch.float64))
    assert float(free.min()) >= 0


def rises(step: float) -> bool:
    """Whether the multiplier of a violated constraint grows and that of a loose one falls."""
    algorithm = PFFL(B=4.0, zeta=0.5, eta=2.0)
    object.__setattr__(algorithm, "eta", step)
    server = play(algorithm, Loop, 3)
    loss = (by_hand(2, B=4.0, zeta=0.5, eta=2.0, factor=2.0, scale=True)[0] * xs - ys) ** 2
    over = [loss[group_of == z].mean() > 0.5 for z in (0, 1)]
    theta = step / 4 * server.ascent.total
    return all(bool(t > 0) == up for t, up in zip(theta, over, strict=True))


def test_the_ascent_ascends() -> None:
    """A public version of the min-max case moves its weights with a minus sign."""
    assert rises(2.0)
    assert not rises(-2.0)


# --- constraints ----------------------------------------------------------------------------------


def test_attributes_their_intersections_and_who_is_in_none() -> None:
    task, made = people(0)
    groups = made.groups.clone()
    groups[::7, 1] = -1  # unknown
    batch = Batch(made.x, made.y, groups, torch.ones(len(made.y)))
    about = About(task, made.attributes, made.labels)
    all_ = BGL(0.6)
    assert all_.names(about)[:3] == ["sex = f", "sex = m", "age = young"]
    sums = all_.members(task, batch).sum(0)
    sex, age = groups.T
    assert sums.tolist() == [*torch.bincount(sex).tolist(), *torch.bincount(age[age >= 0]).tolist()]
    crossed = BGL(0.6, (), ("sex*age",))
    names = crossed.names(about)
    assert names[1] == "sex*age = f & old"
    cell = crossed.members(task, batch)
    assert cell.shape[1] == 6
    assert torch.equal(cell[:, 1] > 0, (sex == 0) & (age == 1))
    assert torch.equal(cell.sum(1) == 0, age < 0)
    label = CBGL(0.6, (math.inf, 0.4), ("sex",))
    assert label.names(about) == ["sex = f, label b", "sex = m, label b"]
    assert label.bounds(task).tolist() == [0.4, 0.4]
    assert torch.equal(label.members(task, batch)[:, 1] > 0, (sex == 1) & (made.y == 1))


def test_bounds_by_label_imply_a_bound_of_the_group() -> None:
    """E[loss | a] = sum_y P(y | a) E[loss | a, y]: exactly, for any model."""
    task, made = people(1)
    params = task.init(0)
    by_label, whole = CBGL(0.0, (0.7, 0.4), ("sex",)), BGL(0.0, (), ("sex",))
    engine = Loop(task, made)

    @phase("sum", cell="group statistic", group="group statistic")
    def both_sums(task: Task, message: Any, client: Any) -> Any:
        parts = [cell_sums(c, task, params, client, "train", 0) for c in (by_label, whole)]
        return {"cell": parts[0], "group": parts[1]}, client.state

    cohort = engine.cohort(engine.everyone(), work=Work(), round=0)
    engine.reset(())
    got = cohort.sum(both_sums, {})
    cell, group = got["cell"], got["group"]
    share = (cell["count"] / group["count"].repeat_interleave(2)).reshape(2, 2)
    mean_bound = share @ torch.tensor([0.7, 0.4], dtype=torch.float64)
    inner = violations(cell["losses"], cell["count"], by_label.bounds(task)).reshape(2, 2)
    outer = violations(group["losses"], group["count"], mean_bound)
    assert outer.tolist() == pytest.approx((share * inner).sum(1).tolist(), abs=1e-12)
    met = inner.max(1).values  # if both labels' bounds hold, so does the group's
    assert bool((outer <= met + 1e-12).all())


@dataclass(frozen=True)
class Positive(BGL):
    """A user's own constraint: the examples with label 1, all in one cell."""

    def members(self, task: Task, batch: Batch) -> Tensor:
        return (batch.y == 1).float().unsqueeze(-1)

    def bounds(self, task: Task) -> Tensor:
        return torch.tensor([self.zeta], dtype=torch.float64)

    def names(self, about: About) -> list[str]:
        return ["label 1"]


def test_a_users_own_constraint() -> None:
    task, made = people(2)
    algorithm = PFFL(constraint="algorithms.test_pffl:Positive", zeta=0.3, B=5.0)
    server = train(algorithm, task, made, rounds=5)
    plain = train(PFFL(B=0.0), task, made, rounds=5)
    assert float(server.certificate["violation"]) < loss_of_ones(task, made, plain) - 0.3
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert verdict.facts["worst"] == "label 1"
    with pytest.raises(ConfigError, match="not a subclass"):
        PFFL(constraint="math:inf").bounded  # noqa: B018


def loss_of_ones(task: Task, made: Federation, server: Any) -> float:
    rows = torch.cat([torch.arange(*made.ranges[k, 0]) for k in range(len(made))])
    ones = rows[made.y[rows] == 1]
    outputs = task.outputs(server.average, made.x[ones])
    return float(task.each_loss(outputs, made.y[ones]).mean())


def test_small_cells_are_withheld_and_the_run_goes_on() -> None:
    task, made = people(3, clients=5)
    counts = torch.stack(
        [torch.bincount(made.groups[slice(*made.ranges[k, 0]), 0], minlength=2) for k in range(5)]
    )
    least = int(counts.min()) + 1
    algorithm = PFFL(B=5.0, attributes=("sex",), least=least)
    server = train(algorithm, task, made, rounds=2)
    whole = (counts >= least).all(1, keepdim=True)  # of two groups, both are withheld or none
    reported = torch.where(whole, counts, 0).sum(0)
    assert server.certificate["count"].tolist() == reported.double().tolist()
    assert reported.sum() < counts.sum()
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    assert f"fewer than {least} examples" in verdict.text
    none = train(PFFL(attributes=("sex",), least=10_000), task, made, rounds=2)
    assert bool(torch.isfinite(none.params["weight"]).all())


# --- edges ----------------------------------------------------------------------------------------


@both
def test_a_silent_client_and_huge_losses(kind: type[Engine]) -> None:
    server = play(PFFL(B=4.0), kind, 2, wrap=(silent({1: {0}}),))
    assert bool(torch.isfinite(server.params["weight"]).all())
    algorithm = PFFL(B=1e4, zeta=0.0, eta=1e6)
    assert bool(torch.isfinite(play(algorithm, kind, 3).lam).all())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"B": -1.0}, "B = -1.0"),
        ({"B": 0.0, "beta": 0.0}, "nothing to minimise"),
        ({"eta": 0.0}, "eta"),
        ({"track": -1}, "track"),
        ({"margin": 1.0}, "margin"),
        ({"stop": 0.1}, "set track"),
        ({"zetas": [-1.0, 0.2]}, "zetas"),
        ({"constraint": "what"}, "use one of bgl, cbgl, minmax"),
        ({"constraint": "minmax"}, "beta = 0, B = 1 and zeta = 0"),
        ({"least": -1}, "least"),
        ({"M": -1.0}, "M = -1.0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("pffl", options)


def test_what_does_not_fit_the_data_is_refused() -> None:
    task, made = people(0)
    start = task.init(0)
    for algorithm, words in (
        (PFFL(attributes=("height",)), "height"),
        (PFFL(constraint="cbgl", zetas=(0.5,)), "1 bounds for 2 labels"),
        (PFFL(constraint="cbgl", zetas=(math.inf, math.inf)), "bounds no label"),
        (PFFL(zetas=(0.5, 0.5)), "algorithm.zetas"),
        (LocalBGL(attributes=("height",)), "height"),
        (GroupFedAvg(attributes=("height",)), "height"),
    ):
        with pytest.raises(ConfigError, match=words):
            algorithm.init_server(task, start, len(made))
    with pytest.raises(ConfigError, match="no protected attribute"):
        PFFL().init_server(replace(task, levels=(), attributes=()), start, 1)
