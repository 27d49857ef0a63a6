"""PraFFL: a round in numpy, the mean of bodies, selection, draws, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithms.exchanges import Asked, listening
from algorithms.fronts import (
    TASK,
    cross_entropy,
    federation,
    gradient,
    heads,
    paper_praffl,
    played,
    rays_of,
    squared,
)
from isonomy.algorithms import make
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError
from isonomy.models import hypernet as nets

ENGINES = [Loop, Batched]
STEP = Work(steps=2, batch=0, lr=0.1)  # one for the body, one for the hypernet


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("scalar", ["logsumexp", "max"])
def test_a_round_in_numpy(kind: type, scalar: str) -> None:
    """Client 1 alone, full batches: w1 <- w1 - .1 dCE/dw1 at (1/2, 1/2), then the hypernet by .1
    times the gradient of the mean over 3 preferences of log sum exp(loss_j / lam_j), or the max.
    Gradients by central differences of functions written in numpy.
    """
    data = federation()
    start = TASK.init(0)
    flat = nets.initial(TASK, start, 2).double().numpy()
    body = np.concatenate([start["linear1.weight"].flatten(), start["linear1.bias"]]).astype(float)
    rows = data.rows(1)
    x, y, z = data.x[rows].double().numpy(), data.y[rows].numpy(), data.groups[rows, 0].numpy()

    def latent(w: np.ndarray) -> np.ndarray:
        return np.maximum(x @ w[:12].reshape(4, 3).T + w[12:], 0)

    def loss(w: np.ndarray) -> float:
        weight, bias = heads(flat, np.array([0.5, 0.5]))
        return cross_entropy(latent(w) @ weight.T + bias, y)

    body = body - 0.1 * gradient(loss, body)
    rays = rays_of(1, 3)

    def front(h: np.ndarray) -> float:
        total = 0.0
        for lam in rays:
            weight, bias = heads(h, lam)
            out = latent(body) @ weight.T + bias
            ratio = np.array([cross_entropy(out, y), squared(out, z)]) / lam
            total += np.log(np.exp(ratio).sum()) if scalar == "logsumexp" else ratio.max()
        return total / len(rays)

    expected = flat - 0.1 * gradient(front, flat)
    method = paper_praffl(preferences=3, share=0.5, scalar=scalar, select=0)  # type: ignore[arg-type]
    server, engine = played(method, kind, data, STEP, ids=[1])
    assert server.psi["linear1.weight"].flatten().numpy() == pytest.approx(body[:12], abs=2e-5)
    assert server.psi["linear1.bias"].numpy() == pytest.approx(body[12:], abs=2e-5)
    assert engine.states.stacked["hypernet"][1].numpy() == pytest.approx(expected, abs=2e-4)
    assert "linear2.weight" not in server.psi  # heads are not sent


def test_every_client_is_in_the_mean() -> None:
    """The authors' mean leaves out the first client; here all have the same weight."""
    data = federation()
    method = paper_praffl(select=0)
    bodies = []
    for k in range(3):
        server, _ = played(method, Loop, data, STEP, ids=[k])
        bodies.append(server.psi["linear1.weight"])
    server, _ = played(method, Loop, data, STEP)
    expected = torch.stack(bodies).mean(0)
    assert torch.allclose(server.psi["linear1.weight"], expected, atol=1e-6)
    sized, _ = played(paper_praffl(select=0, weight="size"), Loop, data, STEP)
    share = torch.tensor([12.0, 7.0, 9.0]) / 28
    weighted = (share[:, None, None] * torch.stack(bodies)).sum(0)
    assert torch.allclose(sized.psi["linear1.weight"], weighted, atol=1e-6)


def test_preferences_differ_from_client_to_client_and_round_to_round() -> None:
    """The authors' code sets the same seed at every client and round, so that draws repeat."""
    first, second = rays_of(0, 4), rays_of(1, 4)
    assert not np.allclose(first, second)
    data = federation(sizes=(8, 8))
    data.x[data.rows(1)] = data.x[data.rows(0)]
    data.y[data.rows(1)] = data.y[data.rows(0)]
    data.groups[data.rows(1)] = data.groups[data.rows(0)]
    _, engine = played(paper_praffl(select=0), Loop, data, STEP)
    twins = engine.states.stacked["hypernet"]
    assert not torch.allclose(twins[0], twins[1])  # same examples, other preferences


def test_the_body_is_fixed_while_the_hypernet_trains_and_vice_versa() -> None:
    data, start = federation(), nets.initial(TASK, TASK.init(0), 2)
    only_body, engine = played(paper_praffl(share=1.0, select=0), Loop, data, STEP)
    assert torch.equal(engine.states.stacked["hypernet"], start.expand(3, -1))
    only_heads, engine = played(paper_praffl(share=0.0, select=0), Loop, data, STEP)
    assert torch.equal(only_heads.psi["linear1.weight"], TASK.init(0)["linear1.weight"])
    assert not torch.equal(engine.states.stacked["hypernet"], start.expand(3, -1))
    assert not torch.equal(only_body.psi["linear1.weight"], TASK.init(0)["linear1.weight"])


def test_the_best_round_is_kept() -> None:
    """A huge learning rate after round 0 makes the fronts worse; round 0 is kept."""
    data, method, kind = federation(), paper_praffl(select=20), Loop
    good, engine = played(method, kind, data, STEP)
    kept = engine.states.stacked["kept"].clone()
    assert float(good.score) > 0
    wild = Work(steps=2, batch=0, lr=50.0)
    cohort = engine.cohort(engine.everyone(), work=wild, round=1)
    after = method.round(good, cohort)
    if float(after.score) == float(good.score):
        assert torch.equal(after.kept["linear1.weight"], good.psi["linear1.weight"])
        assert torch.equal(engine.states.stacked["kept"], kept)
    assert not torch.equal(engine.states.stacked["hypernet"], kept)
    assert float(after.score) >= float(good.score)
    last, engine = played(paper_praffl(select=0), kind, data, STEP, rounds=2)
    assert torch.equal(last.kept["linear1.weight"], last.psi["linear1.weight"])
    assert torch.equal(engine.states.stacked["kept"], engine.states.stacked["hypernet"])


def test_no_validation_examples_keeps_every_round() -> None:
    server, engine = played(paper_praffl(), Loop, federation(validation=0), STEP, rounds=2)
    assert float(server.score) == -1
    assert torch.equal(server.kept["linear1.weight"], server.psi["linear1.weight"])
    assert torch.equal(engine.states.stacked["kept"], engine.states.stacked["hypernet"])


def test_what_clients_send() -> None:
    heard: list[Asked] = []
    played(paper_praffl(), Batched, federation(), STEP, wrap=(listening(heard),))
    assert [(a.phase, a.replied) for a in heard] == [
        ("local", ("psi",)), ("validate", ("volume", "before", "clients")), ("keep", ("kept",)),
    ]  # fmt: skip


def test_huge_inputs_stay_finite() -> None:
    data = federation()
    data.x[:] *= 1e3
    work = Work(steps=6, batch=4, lr=1e-3, optimiser="adam")
    server, engine = played(paper_praffl(), Loop, data, work, rounds=2)
    assert bool(torch.isfinite(server.psi["linear1.weight"]).all())
    assert bool(torch.isfinite(engine.states.stacked["hypernet"]).all())


def test_predicts_with_the_given_preference() -> None:
    data = federation()
    server, engine = played(paper_praffl(), Loop, data, STEP)
    state = {k: v[0] for k, v in engine.states.stacked.items()}
    even, fair = paper_praffl(), paper_praffl(preference=(1.0, 3.0))
    x, deployed = data.x[:4], even.deployed(server)
    # a quarter for the error: the ray allows it three quarters of the losses
    model = fair.at(TASK, deployed, state, torch.tensor([0.75, 0.25]))
    assert torch.allclose(fair.predict(TASK, deployed, state, x), TASK.outputs(model, x))
    assert not torch.allclose(even.predict(TASK, deployed, state, x), TASK.outputs(model, x))
    with pytest.raises(ValueError, match="no front for all clients"):
        even.at(TASK, deployed, None, torch.tensor([0.5, 0.5]))
    assert not even.joint(deployed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preferences": 0}, "preferences = 0: give 1 or more"),
        ({"share": 1.5}, "share = 1.5"),
        ({"select": -1}, "select = -1"),
        ({"objectives": ["error"]}, "give 'error' first"),
        ({"objectives": ["error", "odds"]}, "use one of dp, eo"),
        ({"preference": [0.5]}, "give 2 numbers"),
        ({"preference": [0.0, 0.0]}, "not all 0"),
        ({"scalar": "sum"}, "one of"),
    ],
)
def test_refused(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("praffl", options)


def test_other_tasks_are_refused() -> None:
    line = Task(lambda: torch.nn.Linear(2, 1), loss_name="squared", classes=0, levels=(2,))
    with pytest.raises(ConfigError, match="cross-entropy"):
        paper_praffl().init_server(line, line.init(0), 2)
    nobody = Task(lambda: torch.nn.Linear(2, 2), classes=2)
    with pytest.raises(ConfigError, match="no protected attribute"):
        paper_praffl().init_server(nobody, nobody.init(0), 2)
