"""HetPFL and PraFFL by default: partial participation, the sampler's baseline, equations, width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

import isonomy
from algorithms.fronts import PAPER, TASK, federation, played
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.preference.hetpfl import HetPFL
from isonomy.algorithms.preference.praffl import PraFFL
from isonomy.blocks import objectives, pareto, preferences, trade_off
from isonomy.core import random
from isonomy.core.batches import Plan
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.models import hypernet as nets
from isonomy.models.mlp import mlp

SHORT = Work(steps=6, batch=6, lr=0.01, optimiser="adam")
TEN = (12, 7, 9, 14, 8, 10, 11, 6, 13, 9)
COHORTS = ([0, 1], [2, 3], [0, 4], [5, 6])  # 2 of 10 each; clients 7, 8 and 9 are in none


def partly(method: Any, kind: type[Engine]) -> tuple[Any, Engine]:
    """Four rounds with two of ten clients each, and the end with all of them."""
    params, engine = TASK.init(0), kind(TASK, federation(sizes=TEN), seed=3)
    engine.reset(method.init_client(TASK, params))
    server = method.init_server(TASK, params, 10)
    for r, ids in enumerate(COHORTS):
        server = method.round(server, engine.cohort(torch.tensor(ids), work=SHORT, round=r))
    cohort = engine.cohort(engine.everyone(), work=SHORT, round=len(COHORTS))
    return method.finish(server, cohort), engine


@pytest.mark.parametrize("kind", [Loop, Batched])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (HetPFL, {"fusion": "none"}),
        (HetPFL, {"fusion": "none", **PAPER}),
        (HetPFL, {"fusion": "none", "select": 0}),
        (PraFFL, {}),
        (PraFFL, PAPER),
    ],
)
def test_with_two_of_ten_clients_every_client_deploys_a_trained_hypernet(
    kind: type, method: Any, options: dict[str, Any]
) -> None:
    """Clients of a cohort that was not the best deployed the initial hypernet, as did all that were
    never asked. Now the latter train at the end, with the deployed body.
    """
    made = method(**options)
    server, engine = partly(made, kind)
    states = engine.states.stacked
    start = made.init_client(TASK, TASK.init(0))["hypernet"]
    for k in range(10):
        assert not torch.equal(states["kept"][k], start), f"client {k} deploys the initial one"
    assert states["trained"].tolist() == [1.0] * 10
    for k in (2, 3, 4, 5, 6):  # they trained once: that hypernet is what they deploy
        assert torch.equal(states["kept"][k], states["hypernet"][k])
    model = made.at(TASK, made.deployed(server), _state(engine, 9), torch.tensor([0.9, 0.1]))
    assert bool(torch.isfinite(model["linear2.weight"]).all())


def _state(engine: Engine, client: int) -> dict[str, Any]:
    return {k: v[client] for k, v in engine.states.stacked.items() if isinstance(v, Tensor)}


def test_a_client_deploys_the_hypernet_that_fits_the_deployed_body() -> None:
    """Client 0 trained in rounds 0 and 2: what it deploys has the larger validation volume of its
    two hypernets with the deployed body.
    """
    made = PraFFL()
    server, engine = partly(made, Loop)
    cohort = engine.cohort(torch.tensor([0]), work=SHORT, round=9)
    both = {"psi": server.kept, "kept": server.kept}  # the latest, and the one that is deployed
    found = cohort.sum(made.validate, both)
    assert float(found["before"]) >= float(found["volume"])


def test_rounds_of_different_cohorts_are_compared_on_the_same_clients() -> None:
    """A cohort with easy data has larger volumes with any body: that alone is no improvement."""
    easy = {"volume": torch.tensor(1.6), "before": torch.tensor(1.7), "clients": torch.tensor(2.0)}
    better, score = trade_off.improved(easy, torch.tensor(0.5))
    assert (float(better), float(score)) == (0, 0.5)
    hard = {"volume": torch.tensor(0.7), "before": torch.tensor(0.6), "clients": torch.tensor(2.0)}
    better, score = trade_off.improved(hard, torch.tensor(0.5))
    assert (float(better), float(score)) == (1, pytest.approx(0.35))


def test_steps_are_joined_so_that_every_row_is_used_once() -> None:
    """Five steps of 100 rows become two of 300: the last one begins again to be full."""
    rows = torch.arange(500).reshape(5, 100)
    plan = trade_off._wider(Plan(rows, torch.ones(5, 100), torch.tensor(5)))
    assert plan.rows.shape == (2, 300)
    assert int(plan.count) == 2
    assert plan.rows.flatten()[:500].tolist() == list(range(500))
    assert plan.rows.flatten()[500:].tolist() == list(range(100))
    short = trade_off._wider(Plan(rows, torch.ones(5, 100), torch.tensor(1)))  # others are padding
    assert int(short.count) == 1
    assert short.rows[0].tolist() == 3 * list(range(100))


@pytest.mark.parametrize("kind", [Loop, Batched])
def test_rounds_are_compared_on_rows_from_all_of_the_validation_examples(
    kind: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with more rows than are measured use every so many of them, others all of theirs."""
    monkeypatch.setattr(trade_off, "MEASURED", 4)
    data = federation(sizes=(12, 7), validation=9)
    engine = kind(TASK, data, seed=3)
    engine.reset(())

    @phase("gather", x="examples", weight="examples")
    def seen(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        batch = trade_off._some_validation(client)
        return {"x": batch.x, "weight": batch.weight}, client.state

    found = engine.cohort(engine.everyone(), work=SHORT, round=0).gather(seen, {}).value
    assert found["weight"].sum(1).tolist() == [4, 4]
    for k in range(2):
        own = data.x[data.rows(k, "validation")]
        assert torch.equal(found["x"][k], own[[0, 2, 4, 6]])  # floor(i 9 / 4)
    monkeypatch.setattr(trade_off, "MEASURED", 9)
    again = engine.cohort(engine.everyone(), work=SHORT, round=0).gather(seen, {}).value
    assert torch.equal(again["x"][1], data.x[data.rows(1, "validation")])


# --- why the sampler has no baseline --------------------------------------------------------------


def test_baselines_change_the_expectation_or_raise_the_deviation() -> None:
    """40,000 estimates of the gradient of alpha, with 8 preferences each and losses (1 - lam)^2.

    Subtracting the mean contribution of the other preferences, which was an option, changes the
    expectation, because a contribution depends on all preferences, and doubles the deviation. A
    constant does not change the expectation, but raises the deviation as well.
    """
    mixture = {"alpha": torch.tensor([[1.4, 2.2]]), "logits": torch.zeros(1)}
    inner, key = (40_000, 8, 2, preferences.TRIES), random.key(5)
    given = preferences.Draws(
        random.normal(key, "n", inner), random.uniform(key, "u", inner), torch.zeros(inner[:2])
    )

    def one(given: preferences.Draws) -> tuple[Tensor, Tensor, Tensor]:
        rays = preferences.sample(mixture, given)
        gain = pareto.contributions((1 - rays).square(), torch.ones(2))
        others = (gain.sum() - gain) / 7
        plain, apart, level = (
            preferences.evolution(mixture, rays, g)["alpha"][0]
            for g in (gain, gain - others, gain - 0.008)
        )
        return plain, apart, level

    plain, others, level = vmap(one)(given)

    def off(estimates: Tensor) -> Tensor:
        """The difference of means in its standard errors; the draws are the same."""
        difference = estimates - plain
        return difference.mean(0).abs() / (difference.std(0) / len(plain) ** 0.5)

    assert bool((off(level) < 4).all())
    assert bool((off(others) > 10).any())
    assert bool((others.std(0) > 1.3 * plain.std(0)).all())
    assert bool((level.std(0) > plain.std(0)).all())


# --- the equations --------------------------------------------------------------------------------


def test_covariance_is_that_of_equation_2() -> None:
    """|mean_i (a_i - mean a) p_i| with p the probability of the positive class, in numpy."""
    rng = np.random.default_rng(1)
    out, a, y = rng.normal(size=(40, 2)), rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    p = 1 / (1 + np.exp(out[:, 0] - out[:, 1]))
    expected = abs(np.mean((a - a.mean()) * (p - p.mean())))
    batch = Batch(torch.zeros(40, 1), torch.tensor(y), torch.tensor(a)[:, None], torch.ones(40))
    aims = objectives.aims(("error", "dp"), ("z",))
    at = objectives.examples(batch.x, batch, aims, (2,), "one-hot")
    got = objectives.losses(torch.tensor(out).float(), at, [1], "covariance")
    assert float(got[1]) == pytest.approx(expected, rel=1e-4)


def test_where_losses_lie_for_a_preference() -> None:
    """On the trade-off loss_2 = (1 - loss_1)^2, the exact maximum is smallest where losses are
    proportional to the preference; the log-sum-exp is not.
    """
    first = torch.linspace(0, 1, 20_001)
    curve = torch.stack([first, (1 - first).square()], 1)

    def share(lam: float, how: Any) -> float:
        value = pareto.tchebycheff(curve, torch.tensor([lam, 1 - lam]).expand(20_001, 2), how)
        at = curve[value.argmin()]
        return float(at[0] / at.sum())

    for lam in (0.1, 0.25, 0.7):
        assert share(lam, "max") == pytest.approx(lam, abs=1e-3)
    assert abs(share(0.7, "logsumexp") - 0.7) > 0.05
    assert [share(lam, "augmented") for lam in (0.1, 0.5, 0.9)] == sorted(
        share(lam, "augmented") for lam in (0.1, 0.5, 0.9)
    )


def test_the_augmented_maximum_has_bounded_gradients_at_the_border() -> None:
    """1 / lam explodes there, which made plain SGD diverge."""
    losses = torch.tensor([[0.7, 0.2]] * 3, requires_grad=True)
    rays = torch.tensor([[0.0, 1.0], [1e-6, 1 - 1e-6], [1.0, 0.0]])
    pareto.tchebycheff(losses, rays, "augmented").sum().backward()  # type: ignore[no-untyped-call]
    assert losses.grad is not None
    assert float(losses.grad.abs().max()) <= 1 + pareto.SLOPE + 1e-5


# --- the interpolated hypernet --------------------------------------------------------------------


def wide(width: int) -> Task:
    return Task(lambda: mlp((3,), 2, hidden=(width,)), classes=2, levels=(2,), attributes=("z",))


def test_the_hypernet_is_linear_in_the_width_of_the_head() -> None:
    """The paper's has 136 million parameters for 512 units."""
    counts = [len(HetPFL().init_client(wide(w), wide(w).init(0))["hypernet"]) for w in (64, 512)]
    assert counts == [16 * 2 * 65, 16 * 2 * 513]


def test_heads_are_interpolated_in_numpy() -> None:
    params = TASK.init(0)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(nets.KNOTS, 10))
    flat = torch.tensor(theta.flatten()).float()
    for lam in (0.0, 0.03, 0.5, 0.72, 1.0):
        knots = np.arange(nets.KNOTS + 1) / nets.KNOTS
        more = [np.interp(lam, knots, np.concatenate([[0], theta[:, j]])) for j in range(10)]
        made = nets.make_params(TASK, params, flat, torch.tensor([lam, 1 - lam]))
        weight = params["linear2.weight"].numpy() + np.reshape(more[:8], (2, 4))
        assert made["linear2.weight"].numpy() == pytest.approx(weight, abs=1e-5)
        assert made["linear2.bias"].numpy() == pytest.approx(
            params["linear2.bias"].numpy() + more[8:], abs=1e-5
        )


def test_the_mean_of_hypernets_has_the_mean_of_their_heads() -> None:
    params, made = TASK.init(0), nets.maker(TASK, TASK.init(0))
    each = torch.randn(3, 160, generator=torch.Generator().manual_seed(0))
    for objectives_ in (2, 3):
        each = torch.randn(3, 160 * (objectives_ - 1), generator=torch.Generator().manual_seed(0))
        for ray in preferences.grid(9, objectives_):
            heads = torch.stack([made(one, ray)[0] for one in each])
            assert torch.allclose(made(each.mean(0), ray)[0], heads.mean(0), atol=1e-5)
    assert set(params) == set(nets.shared(TASK, params, "interpolated"))


@pytest.mark.parametrize("kind", [Loop, Batched])
def test_the_model_of_the_first_objective_is_fedavgs(kind: type) -> None:
    """The front contains FedAvg's model, for each client and for all together."""
    data, work = federation(), Work(epochs=2, batch=5, lr=0.1)
    method = HetPFL(select=0)
    server, engine = played(method, kind, data, work, rounds=3, finish=True)
    expected, _ = played(FedAvg(), kind, data, work, rounds=3)
    deployed, end = method.deployed(server), torch.tensor([0.0, 1.0])
    for state in (None, _state(engine, 1)):
        model = method.at(TASK, deployed, state, end)
        for name, value in expected.params.items():
            assert torch.equal(model[name], value), name


def test_hypernets_are_trained_with_the_mean_of_the_bodies() -> None:
    """One client alone has no other body, so both ways are the same; with three they differ."""
    for sizes, same in (((12,), True), ((12, 7, 9), False)):
        made = []
        for fit in ("mean", "own"):
            method = HetPFL(fit=fit, fusion="none", select=0)  # type: ignore[arg-type]
            _, engine = played(method, Loop, federation(sizes=sizes), SHORT)
            made.append(engine.states.stacked["hypernet"][0])
        assert torch.allclose(*made, atol=1e-6) == same


def test_defaults_work_with_plain_sgd_and_an_ordinary_rate() -> None:
    """With the paper's loss and network, this diverges in the first round."""
    data = federation(sizes=(200, 150, 100))
    for method in (HetPFL(fusion="none"), PraFFL()):
        server, engine = played(method, Batched, data, Work(epochs=3, batch=8, lr=0.3), rounds=3)
        assert bool(torch.isfinite(engine.states.stacked["hypernet"]).all())
        assert float(server.score) > 0.6


def test_fusion_by_the_best_client() -> None:
    method = HetPFL(fusion="best", shown=12)
    server, engine = played(method, Loop, federation(), SHORT, rounds=2, finish=True)
    kept = engine.states.stacked["kept"]
    assert any(torch.equal(server.hypernets[0], one) for one in kept)
    assert method.fusion_weights(method.deployed(server), preferences.grid(4, 2)) is None


def test_what_was_learnt_can_be_shown() -> None:
    """Weights of the clients over preferences, and the distributions that clients sample from."""
    method = HetPFL(fusion="net", fusion_steps=5, shown=12)
    server, engine = played(method, Loop, federation(), SHORT, rounds=2, finish=True)
    weights = method.fusion_weights(method.deployed(server), preferences.grid(4, 2))
    assert weights is not None
    assert weights.shape == (5, 3)
    assert weights.sum(1).numpy() == pytest.approx(1, abs=1e-6)
    found = method.preference_distributions(engine.states.stacked)
    assert found["alpha"].shape == (3, 1, 2)
    assert found["weight"].tolist() == [[1.0]] * 3
    assert float((found["alpha"] - method.alpha).abs().max()) > 0


def test_fronts_are_stable_from_round_to_round() -> None:
    """The setting of HetPFL's Fig. 5, shortened; every round is measured on validation examples.

    With the paper's rule, the hypervolume swings by .1 and more between rounds.
    """
    config = isonomy.make_config(
        rounds=5,
        data={"name": "synthetic", "partition": "paper"},
        model={"name": "mlp", "hidden": [4, 4]},
        local={"epochs": 10, "batch": 128, "optimiser": "adam", "lr": 0.005},
        algorithm={"name": "hetpfl", "select": 0, "fusion": "none"},
        evaluate={"every": 1, "split": "validation", "bootstrap": 0},
        front={"rays": 100},
        excess={"clusters": "none"},
    )
    rounds = isonomy.run(config).rounds
    volumes = [line["metrics"]["hv.local"] for line in rounds if line.get("metrics")][1:]
    assert len(volumes) == 4
    assert max(volumes) - min(volumes) < 0.03
    assert min(volumes) > 0.8


def test_a_front_is_measured_by_the_difference_of_two_outputs() -> None:
    """The hypervolume equals that of the points from both outputs of every head."""
    method = HetPFL()
    rows = Batch(
        torch.randn(40, 4),
        torch.arange(40) % 2,
        (torch.arange(40).unsqueeze(-1) // 3) % 2,
        (torch.arange(40) < 37).float(),
    )
    heads = torch.randn(21, 2, 4), torch.randn(21, 2)
    found = trade_off.front_volume(TASK, lambda _: heads, rows, method.terms, 20, torch.zeros(0))
    out = rows.x @ heads[0].mT + heads[1].unsqueeze(-2)
    points = objectives.measures(TASK, out, rows, method.terms.aims(TASK))
    assert float(found) == pytest.approx(
        float(pareto.hypervolume2(points, torch.ones(2))), abs=1e-6
    )
    assert 0.05 < float(found) < 1
