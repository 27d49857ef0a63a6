"""GuardFed: a round by hand, trust by hand, its limits, and the server's own examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from algorithms.group_by_hand import ENGINES, RATE, SIZES, START, people, sigmoid, step, weight_of
from algorithms.group_by_hand import world as three_clients
from isonomy.algorithms import make
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.guardfed import GuardFed
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import counted, debiasing_weights, weighted_loss
from isonomy.contract.checks import silent
from isonomy.core import random, tree
from isonomy.core.client import Pool, lone_client
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)

# the server's rows: positive predictions at START are those with x > 0
OWN_X = np.array([1.0, 2.0, -1.0, 0.5, 1.0, -0.5])
OWN_Y = np.array([1, 1, 1, 0, 1, 0])
OWN_Z = np.array([0, 1, 1, 0, 0, 1])


def server_pool() -> Pool:
    x = torch.tensor(OWN_X, dtype=torch.float32).unsqueeze(-1)
    return Pool(x, torch.tensor(OWN_Y), torch.tensor(OWN_Z).unsqueeze(-1))


def play(algorithm: GuardFed, kind: type[Engine], rounds: int = 1, **options: Any) -> Any:
    task, federation = three_clients()
    params = {"weight": torch.tensor([[START]])}
    engine = kind(task, federation)
    engine.server_data = server_pool()
    engine.reset(())
    server, recorded = algorithm.init_server(task, params, 3), {}
    for r in range(rounds):
        work = Work(batch=0, lr=RATE)
        cohort = engine.cohort(torch.arange(3), work=work, round=r, **options)
        server = algorithm.round(server, cohort)
        recorded = cohort.recorded
    return server, recorded


def reference_step(w: float) -> float:
    """One step on the server's rows with the weights P(y) P(z) / P(y, z)."""
    weight = np.array(
        [
            (y == OWN_Y).mean() * (z == OWN_Z).mean() / ((y == OWN_Y) & (z == OWN_Z)).mean()
            for y, z in zip(OWN_Y, OWN_Z, strict=True)
        ]
    )
    sign = 2 * OWN_Y - 1
    slope = -sign * OWN_X * sigmoid(-sign * w * OWN_X)
    return -RATE * float((weight * slope).mean())


@both
def test_a_round_by_hand(kind: type[Engine]) -> None:
    """One weight: the cosine is the sign, so clients that move against the reference are left out.

    Both positives of group 0 and one of two of group 1 are predicted positive: the gap is 1/2.
    """
    moves = np.array([step(START, k) - START for k in range(3)])
    agrees = np.sign(moves) == np.sign(reference_step(START))
    assert 0 < agrees.sum() < 3
    trust = math.exp(-2 * 0.5)
    for gamma, chosen in ((trust - 0.01, agrees), (trust + 0.01, np.zeros(3, bool))):
        algorithm = GuardFed(tau=2.0, gamma=gamma, eta=0.5, local="plain")
        server, recorded = play(algorithm, kind)
        moved = 0.5 * moves[chosen].mean() if chosen.any() else 0.0
        assert weight_of(server) == pytest.approx(START + moved, abs=1e-6)
        assert recorded["trusted"] == chosen.sum()
        assert list(recorded["chosen"].values()) == chosen.tolist()
        assert list(recorded["trust"].values()) == pytest.approx(trust * agrees, abs=1e-6)


def test_trust_by_hand() -> None:
    """Two weights: cosines of updates or of models, and the gap of each model's true positives."""
    task = Task(
        lambda: nn.Linear(2, 1, bias=False), loss_name="logistic", levels=(2,), attributes=("a",)
    )
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 1.0]])
    own = lone_client(
        Pool(x, torch.tensor([1, 1, 1, 1]), torch.tensor([[0], [0], [1], [1]])),
        Work(batch=0),
        0.1,
        random.key(0),
    )
    start, ours = np.array([1.0, 1.0]), np.array([2.0, 1.0])
    theirs = np.array([[2.0, 1.0], [2.0, 3.0], [-1.0, 2.0], [1.0, 0.5]])
    # positives of group 0: x1 > 0 and x2 > 0; of group 1: x1 + x2 > 0 and x2 > x1
    gaps = np.array([abs(1 - 0.5), abs(1 - 1), abs(0.5 - 1), abs(1 - 0.5)])

    def packed(w: np.ndarray) -> Any:
        return {"weight": torch.tensor(w, dtype=torch.float32).reshape(*w.shape[:-1], 1, 2)}

    for compare in ("updates", "models"):
        algorithm = GuardFed(tau=3.0, compare=compare)  # type: ignore[arg-type]
        got = algorithm._trust(task, packed(start), packed(ours), packed(theirs), own)
        a, b = (theirs - start, ours - start) if compare == "updates" else (theirs, ours)
        cosine = (a @ b) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b))
        assert got.numpy() == pytest.approx(np.maximum(cosine, 0) * np.exp(-3 * gaps), abs=1e-6)


@both
def test_all_are_trusted_below_zero(kind: type[Engine]) -> None:
    """gamma < 0: FedAvg with equal weights, whatever tau is; in between, clients that drop out."""
    task, made = people(5)
    results = []
    for algorithm in (GuardFed(gamma=-1.0, local="plain"), FedAvg(weight="equal")):
        engine = kind(task, made)
        engine.server_data = Pool(made.x[:20], made.y[:20], made.groups[:20])
        engine.reset(())
        server = algorithm.init_server(task, task.init(0), len(made))
        for r in range(2):
            cohort = engine.cohort(
                engine.everyone(), work=Work(), round=r, wrap=(silent({0: {1}}),)
            )
            server = algorithm.round(server, cohort)
        results.append(server.params)
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name])


def test_the_reference_is_trained_as_a_client_is() -> None:
    """The server's training is that of a client with the same rows."""
    own = lone_client(server_pool(), Work(batch=0, lr=RATE), RATE, random.key(3))
    task, _ = three_clients()
    params = {"weight": torch.tensor([[START]])}
    table = debiasing_weights(counted(task, own, 0))
    made = descend(weighted_loss(task, table, 0), params, own)
    assert float(made["weight"]) == pytest.approx(START + reference_step(START), abs=1e-6)
    assert own.size == len(OWN_Y)
    assert SIZES.sum() == 10  # the server's rows are none of these


def test_without_examples_of_the_server_it_is_refused() -> None:
    task, federation = three_clients()
    engine = Loop(task, federation)
    engine.reset(())
    algorithm = GuardFed()
    server = algorithm.init_server(task, {"weight": torch.tensor([[START]])}, 3)
    with pytest.raises(ConfigError, match="examples of the server's own"):
        algorithm.round(server, engine.cohort(torch.arange(3), work=Work(), round=0))


@pytest.mark.parametrize(
    ("options", "match"),
    [({"tau": -1.0}, "tau"), ({"gamma": 1.0}, "gamma"), ({"compare": "x"}, "compare")],
)
def test_bad_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make("guardfed", options)


def test_the_state_is_a_model() -> None:
    assert tree.finite(
        GuardFed().init_server(*three_clients()[:1], {"weight": torch.ones(1, 1)}, 3)
    )
