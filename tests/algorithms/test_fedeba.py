"""FedEBA+: its two alignments, its switch and its cheap variant, by hand.

The paper's claims that are checked here were derived again; numbers of its tables are not.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.by_hand import ENGINES, FEDERATION, TASK, F, G, check_weight, rounds
from algorithms.exchanges import Asked, listening, weight_of
from isonomy import write_report
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.fedeba import FedEBA
from isonomy.algorithms.client_fair.prac_fedeba import PracFedEBA
from isonomy.blocks.measure import gradient, train_loss
from isonomy.blocks.weights import entropy_weights, fair_angle
from isonomy.config.files import read
from isonomy.config.schema import parse
from isonomy.contract.checks import silent
from isonomy.contract.world import world
from isonomy.core import tree
from isonomy.core.algorithm import Global
from isonomy.core.phase import phase
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError
from isonomy.runs.training import resume, run
from isonomy.studies.compare import methods

both = pytest.mark.parametrize("kind", ENGINES)


def softmax(losses: Any, tau: float, prior: Any = (1.0, 1.0)) -> np.ndarray:
    e = np.asarray(prior) * np.exp((np.asarray(losses) - np.max(losses)) / tau)
    return e / e.sum()


def descended(k: int, w: float, steps: int, lean: float = 0.0, fair: float = 0.0) -> float:
    v = w
    for _ in range(steps):
        v = v - 0.1 * ((1 - lean) * G[k](v) + lean * fair)
    return v


# --- the switch -----------------------------------------------------------------------------------


def test_the_angle_is_the_arc_tangent_of_the_coefficient_of_variation() -> None:
    random = np.random.default_rng(0)
    for n in (2, 10, 100):
        for _ in range(20):
            L = random.exponential(1.0, n)
            cosine = L.sum() / (np.linalg.norm(L) * math.sqrt(n))
            got = fair_angle(torch.tensor(L))
            assert got == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-9)
            assert math.tan(math.radians(got)) == pytest.approx(L.std() / L.mean(), rel=1e-9)
        one = torch.zeros(n)
        one[0] = 3.0
        assert fair_angle(one) == pytest.approx(math.degrees(math.acos(1 / math.sqrt(n))))


MEASURE = Asked("measure", ("params",), ("loss",), (0, 1))
FAIR = [MEASURE, Asked("stepped", ("params",), ("params", "first", "loss"), (0, 1))]
UNFAIR = [
    MEASURE,
    Asked("slope", ("params",), ("gradient",), (0, 1)),
    Asked("lean", ("params", "fair"), ("params", "loss"), (0, 1)),
]
PLAIN = [Asked("local", ("params",), ("params", "loss"), (0, 1))]


@both
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"theta": 37.0}, UNFAIR),  # losses 0.5 and 4: atan(1.75 / 2.25) = 37.87 degrees
        ({"theta": 38.0}, FAIR),
        ({"theta": 0.0}, UNFAIR),
        ({"theta": 90.0}, FAIR),
        ({"align": "gradient", "theta": 90.0}, UNFAIR),
        ({"align": "model", "theta": 0.0}, FAIR[1:]),
        ({"align": "none"}, PLAIN),
        ({"alpha": 0.0, "theta": 0.0}, PLAIN),
    ],
)
def test_fair_and_unfair_rounds_ask_for_different_things(
    kind: type[Engine], options: dict[str, Any], expected: list[Asked]
) -> None:
    heard: list[Asked] = []
    engine = kind(TASK, FEDERATION)
    work = Work(epochs=2, batch=0, lr=0.1)
    cohort = engine.cohort(torch.tensor([0, 1]), work=work, round=0, wrap=(listening(heard),))
    FedEBA(**{"alpha": 0.5, **options}).round(Global({"weight": torch.tensor([[1.0]])}), cohort)
    assert heard == expected


@both
@pytest.mark.parametrize("prior", ["equal", "size"])
@pytest.mark.parametrize(("theta", "align"), [(37.0, "gradient"), (38.0, "model"), (None, "none")])
def test_every_round_records_its_angle_its_alignment_and_its_weights(
    kind: type[Engine], theta: float | None, align: str, prior: Any
) -> None:
    """The weights are those of the losses after training; without alignment no angle is known."""
    options: dict[str, Any] = {"alpha": 0.0} if theta is None else {"theta": theta, "alpha": 0.4}
    cohort = kind(TASK, FEDERATION).cohort(
        torch.tensor([1, 0]), work=Work(epochs=3, batch=0, lr=0.1), round=0
    )
    FedEBA(tau=2.0, prior=prior, **options).round(Global({"weight": torch.tensor([[1.0]])}), cohort)
    q = (2.0, 1.0) if prior == "size" else (1.0, 1.0)
    fair = float(softmax([f(1.0) for f in F], 2.0, q) @ [g(1.0) for g in G])
    lean = 0.4 if align == "gradient" else 0.0
    p = softmax([F[k](descended(k, 1.0, 3, lean, fair)) for k in (0, 1)], 2.0, q)
    got = dict(cohort.recorded)
    assert got.pop("alignment") == align
    assert got.pop("weights") == pytest.approx({"0": p[0], "1": p[1]}, abs=1e-6)
    expected = {} if theta is None else {"angle": pytest.approx(37.875, abs=1e-3)}
    assert got == expected


def test_one_client_is_never_unfair() -> None:
    """1, 0.6, 0.28 by its own training; half of it towards its first step, 0.6."""
    check_weight(FedEBA(alpha=0.5, theta=0.0), 0.5 * 0.28 + 0.5 * 0.6, steps=2, ids=(1,))
    check_weight(FedEBA(alpha=0.0), 0.28, steps=2, ids=(1,))


# --- the two alignments ---------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["equal", "size"])
@pytest.mark.parametrize("weight_loss", ["local_after", "global_before"])
@pytest.mark.parametrize("alpha", [0.25, 0.9])
def test_gradient_alignment_by_hand(prior: Any, weight_loss: Any, alpha: float) -> None:
    """From w = 1: losses 0.5 and 4, gradients -1 and 4; fair gradient by softmax(loss / 2)."""
    q = (2.0, 1.0) if prior == "size" else (1.0, 1.0)
    at = [f(1.0) for f in F]
    fair = float(softmax(at, 2.0, q) @ [g(1.0) for g in G])
    own = [descended(k, 1.0, 3, alpha, fair) for k in (0, 1)]
    losses = [F[k](own[k]) for k in (0, 1)] if weight_loss == "local_after" else at
    target = float(softmax(losses, 2.0, q) @ own)
    expected = 1 + 0.7 * (target - 1)
    how = FedEBA(tau=2.0, alpha=alpha, theta=0.0, eta=0.7, prior=prior, weight_loss=weight_loss)
    check_weight(how, expected, steps=3)


@pytest.mark.parametrize("prior", ["equal", "size"])
@pytest.mark.parametrize("scale", [1, "K"])
def test_model_alignment_by_hand(prior: Any, scale: Any) -> None:
    """From w = 1 the first steps lead to 1.1 and 0.6; times K = 3 from there: 1.3 and -0.2."""
    q = np.array((2 / 3, 1 / 3) if prior == "size" else (0.5, 0.5))
    own = [descended(k, 1.0, 3) for k in (0, 1)]
    p = softmax([F[k](own[k]) for k in (0, 1)], 2.0, q)
    ideal = q @ ([1.1, 0.6] if scale == 1 else [1.3, -0.2])
    expected = 1 + 0.7 * (0.6 * float(p @ own) + 0.4 * ideal - 1)
    how = FedEBA(tau=2.0, alpha=0.4, theta=90.0, eta=0.7, prior=prior, ideal_scale=scale)
    check_weight(how, expected, steps=3)


@pytest.mark.parametrize(
    ("options", "steps", "factor"),
    [
        ({"align": "model", "ideal_scale": "K", "alpha": 0.1}, 20, -0.9),
        ({"align": "model", "ideal_scale": "K", "alpha": 0.3}, 20, -2.7),
        ({"align": "gradient", "alpha": 0.3}, 80, -3 / 7),
        ({"align": "gradient", "alpha": 0.5}, 80, -1.0),
        ({"align": "gradient", "alpha": 0.6}, 80, -1.5),
        ({}, 20, 0.0),
    ],
)
def test_long_local_training_makes_the_alignments_overshoot(
    options: dict[str, Any], steps: int, factor: float
) -> None:
    """Client 0 alone: its gradient is 5 times the error w - 1.2, a local step halves the error.

    With many steps, a round multiplies the error by a factor. Model alignment, the first step times
    K = 20: alpha (1 - 20 * 0.5) = -9 alpha, as the other share ends at the minimum. Gradient
    alignment ends where (1 - alpha) grad F = -alpha g, which is -alpha / (1 - alpha): it does not
    converge from alpha = 0.5 on. Without alignment: 0.
    """
    for kind in ENGINES:
        server, _ = rounds(FedEBA(**options), kind, steps=steps, rounds=2, ids=(0,))
        error = server.params["weight"].item() - 1.2
        assert error == pytest.approx(-0.2 * factor**2, abs=1e-4)


@both
def test_steps_are_the_clients_own(kind: type[Engine]) -> None:
    """With minibatches clients of different size take different numbers of steps K_i.

    alpha = 1: every step is along the fair gradient, so client i moves by -K_i rate g. By first
    steps, alpha = 1 and "K": the mean of K_i times the first steps. (9, 40, 8 examples, batches
    of 8: 2, 5 and 1 steps.)
    """
    where = world()
    ids, sizes = torch.tensor([0, 2, 6]), [9, 40, 8]
    engine = kind(where.task, where.federation, seed=where.seed)
    steps = torch.tensor([float(where.work.count(n)) for n in sizes])
    assert steps.tolist() == [2, 5, 1]

    def ask(phase: Any) -> Any:
        return engine.cohort(ids, work=where.work, round=0).gather(phase, {}).value

    @phase("gather", loss="statistic", g="gradient")
    def looked(task: Any, message: Any, client: Any) -> Any:
        g = gradient(task, where.params, client, "first")
        return {"loss": train_loss(task, where.params, client), "g": g}, client.state

    seen = ask(looked)
    how = FedEBA(tau=0.5, alpha=1.0, align="gradient", weight_loss="global_before")
    cohort = engine.cohort(ids, work=where.work, round=0)
    got = how.round(Global(where.params), cohort).params
    p = entropy_weights(seen["loss"], 0.5)
    fair = tree.weighted_sum(seen["g"], p)
    far = float(p @ steps.double()) * where.work.lr
    expected = tree.tmap(lambda a, b: a - far * b, where.params, fair)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)

    how = FedEBA(alpha=1.0, align="model", ideal_scale="K")
    cohort = engine.cohort(ids, work=where.work, round=0)
    got = how.round(Global(where.params), cohort).params
    expected = tree.tmap(
        lambda a, b: a - where.work.lr * torch.tensordot(steps / 3, b, dims=1),
        where.params,
        seen["g"],
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@both
@pytest.mark.parametrize("prior", ["equal", "size"])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_one_step_has_nothing_to_align(kind: type[Engine], prior: Any, alpha: float) -> None:
    """K = 1, tau = inf: the first step is the whole training, so model alignment does nothing."""
    where = world()
    work = Work(steps=1, batch=8, lr=0.1)
    models = []
    for how in (
        FedEBA(tau=math.inf, alpha=alpha, align="model", prior=prior),
        FedEBA(tau=math.inf, alpha=0.0, prior=prior),
    ):
        engine = kind(where.task, where.federation, seed=where.seed)
        cohort = engine.cohort(where.ids(0), work=work, round=0)
        models.append(how.round(Global(where.params), cohort).params)
    torch.testing.assert_close(models[0], models[1], rtol=1e-5, atol=1e-6)


@both
def test_the_fair_gradient_on_all_examples(kind: type[Engine]) -> None:
    """alpha = 1 with one step: w - rate * fair gradient, on all examples or the first batch."""
    where = world()
    work = Work(steps=1, batch=8, lr=0.1)
    ids = where.ids(0)

    @phase("gather", loss="statistic", full="gradient")
    def looked(task: Any, message: Any, client: Any) -> Any:
        everything = torch.func.grad(task.loss)(where.params, client.train)
        loss = task.loss(where.params, client.train)
        return {"loss": loss, "full": everything}, client.state

    engine = kind(where.task, where.federation, seed=where.seed)
    seen = engine.cohort(ids, work=work, round=0).gather(looked, {}).value
    fair = tree.weighted_sum(seen["full"], entropy_weights(seen["loss"], 0.5))
    expected = tree.tmap(lambda a, b: a - 0.1 * b, where.params, fair)
    found = {}
    for rows in ("full", "first"):
        how = FedEBA(tau=0.5, alpha=1.0, align="gradient", gradient=rows)
        cohort = engine.cohort(ids, work=work, round=0)
        found[rows] = how.round(Global(where.params), cohort).params
    torch.testing.assert_close(found["full"], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found["first"], expected, rtol=1e-3, atol=1e-4)


@both
def test_a_client_that_drops_out_has_no_weight(kind: type[Engine]) -> None:
    """Client 0 sends its loss and its gradient, then no model: the mean is client 1's model."""
    fair = float(softmax([0.5, 4.0], 2.0) @ [-1.0, 4.0])
    engine = kind(TASK, FEDERATION)
    work = Work(epochs=2, batch=0, lr=0.1)
    cohort = engine.cohort(torch.tensor([0, 1]), work=work, round=0, wrap=(silent({2: {0}}),))
    how = FedEBA(tau=2.0, alpha=0.5, theta=0.0)
    got = how.round(Global({"weight": torch.tensor([[1.0]])}), cohort)
    assert weight_of(got).item() == pytest.approx(descended(1, 1.0, 2, 0.5, fair), abs=1e-6)


# --- the cheap variant ----------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.0, 90.0])
def test_the_cheap_variant_by_hand(theta: float) -> None:
    """Two rounds of two steps: the second is aligned to the first's mean step if it was unfair."""
    p_of = lambda own: softmax([F[k](own[k]) for k in (0, 1)], 2.0)  # noqa: E731
    own = [descended(k, 1.0, 2) for k in (0, 1)]
    w = float(p_of(own) @ own)
    step = -(w - 1.0) / (2 * 0.1)
    lean = 0.4 if theta == 0 else 0.0
    own = [descended(k, w, 2, lean, step) for k in (0, 1)]
    w2 = float(p_of(own) @ own)
    how = PracFedEBA(tau=2.0, alpha=0.4, theta=theta)
    check_weight(how, w, steps=2)
    check_weight(how, w2, steps=2, rounds=2)
    for kind in ENGINES:
        server, _ = rounds(how, kind, steps=2)
        assert server.step["weight"].item() == pytest.approx(step, abs=1e-5)
        assert float(server.angle) == pytest.approx(math.degrees(math.atan(1.75 / 2.25)))


@both
def test_what_the_cheap_variant_records(kind: type[Engine]) -> None:
    """The angle is that of this round's losses; the alignment follows from the last round's."""
    engine = kind(TASK, FEDERATION)
    how = PracFedEBA(tau=2.0, theta=37.0)
    server = how.init_server(TASK, {"weight": torch.tensor([[1.0]])}, 2)
    found = []
    for r in range(2):
        work = Work(epochs=2, batch=0, lr=0.1)
        cohort = engine.cohort(torch.tensor([0, 1]), work=work, round=r)
        w = float(weight_of(server))
        server = how.round(server, cohort)
        found.append(cohort.recorded["alignment"])
        assert cohort.recorded["angle"] == pytest.approx(
            fair_angle(torch.tensor([f(w) for f in F])), rel=1e-5
        )
    own = [descended(k, 1.0, 2) for k in (0, 1)]
    assert found == ["none", "gradient"]
    how.round(how.init_server(TASK, {"weight": torch.tensor([[1.0]])}, 2), cohort)
    p = softmax([F[k](own[k]) for k in (0, 1)], 2.0)
    assert cohort.recorded["weights"] == pytest.approx({"0": p[0], "1": p[1]}, abs=1e-6)


@both
def test_the_cheap_variant_asks_once(kind: type[Engine]) -> None:
    heard: list[Asked] = []
    engine = kind(TASK, FEDERATION)
    how = PracFedEBA(theta=0.0)
    server = how.init_server(TASK, {"weight": torch.tensor([[1.0]])}, 2)
    for r in range(2):
        work = Work(epochs=2, batch=0, lr=0.1)
        cohort = engine.cohort(torch.tensor([0, 1]), work=work, round=r, wrap=(listening(heard),))
        server = how.round(server, cohort)
    sent, replied = ("params", "step", "share"), ("params", "steps", "loss", "before")
    assert heard == [Asked("local", sent, replied, (0, 1))] * 2


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tau": 0.0}, "tau = 0.0"),
        ({"tau": math.nan}, "tau = nan"),
        ({"alpha": 1.5}, "alpha = 1.5"),
        ({"theta": 91.0}, "theta = 91.0"),
        ({"eta": 0.0}, "eta = 0.0"),
        ({"ideal_scale": 2}, "one of 1, 'K'"),
        ({"align": "both"}, "one of 'auto'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("fedeba", options)
    if set(options) <= {"tau", "alpha", "theta", "eta"}:
        with pytest.raises(ConfigError, match=words):
            make("prac_fedeba", options)


def test_an_infinite_temperature_in_a_config(tmp_path: Any) -> None:
    """inf is a number of TOML: it is read, written to the run's folder, and resumed from it."""
    path = tmp_path / "mine.toml"
    path.write_text(
        "rounds = 2\n"
        'data = { name = "synthetic", clients = 4 }\n'
        'model = { name = "logistic" }\n'
        'algorithm = { name = "fedeba", tau = inf, alpha = 0.0 }\n'
        'evaluate = { every = 1 }\nexcess = { clusters = "none" }\n'
    )
    config = read(path)
    assert config.algorithm.options["tau"] == math.inf
    done = run(config, tmp_path / "run")
    assert "tau = inf" in (tmp_path / "run" / "config.toml").read_text()
    assert resume(tmp_path / "run").metrics == done.metrics
    write_report([done], tmp_path / "report.html")
    assert "Infinity" not in (tmp_path / "report.html").read_text()
    card = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert card["algorithm"]["tau"] == math.inf
    (method,) = methods(config)
    assert method.config.algorithm.options["tau"] == math.inf  # not lost on the way to a comparison
    equal = {"name": "fedavg", "weight": "equal"}
    other = run(parse({**config.plain(), "algorithm": equal}))
    assert done.metrics["client.loss.mean"] == other.metrics["client.loss.mean"]
