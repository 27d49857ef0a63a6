"""q-FedAvg and q-FedSGD by hand, and the faults of public versions, which must be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from algorithms.by_hand import ENGINES, check_weight, rounds
from algorithms.exchanges import lines, play, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.q_fedavg import QFedAvg
from isonomy.algorithms.client_fair.q_fedsgd import QFedSGD
from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def paper(w: float, moves: list[float], losses: list[float], q: float, L: float) -> float:
    """Algorithms 1 and 2 as printed, with D_k given."""
    D, F = np.array(moves), np.array(losses) + 1e-10
    delta = F**q * D
    h = q * F ** (q - 1) * D**2 + L * F**q
    return float(w - delta.sum() / h.sum())


def check_by_hand(algorithm: Algorithm) -> None:
    """q = 1, two steps from w = 1, rate 0.1: L = 10.

    Losses at w = 1: 0.5 and 4. Models 1.15 and 0.28, so D = 10 (w - w_k) = -1.5 and 7.2. Delta =
    0.5 * -1.5 + 4 * 7.2 = 28.05; h = 2.25 + 5 = 7.25 and 51.84 + 40 = 91.84. 1 - 28.05 / 99.09.
    """
    check_weight(algorithm, 1 - 28.05 / 99.09, steps=2)


def test_by_hand() -> None:
    check_by_hand(QFedAvg(q=1.0))


@pytest.mark.parametrize("q", [0.0, 0.001, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_as_printed(q: float, lipschitz: float | None) -> None:
    L = lipschitz or 10.0
    expected = paper(1.0, [L * (1 - 1.15), L * (1 - 0.28)], [0.5, 4.0], q, L)
    check_weight(QFedAvg(q=q, lipschitz=lipschitz), expected, steps=2)


@pytest.mark.parametrize("q", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_gradients_as_printed(q: float, lipschitz: float | None) -> None:
    """Gradients at w = 1: -1 and 4. How many local steps there are does not matter."""
    expected = paper(1.0, [-1.0, 4.0], [0.5, 4.0], q, lipschitz or 10.0)
    for steps in (1, 3):
        check_weight(QFedSGD(q=q, lipschitz=lipschitz), expected, steps=steps)


@pytest.mark.parametrize("q", [0.0, 1.0, 2.0])
def test_static_steps(q: float) -> None:
    """Every h_k is 1 / rate = 10: w - 0.1 * mean of F^q g."""
    expected = 1 - 0.1 * (0.5**q * -1 + 4**q * 4) / 2
    check_weight(QFedSGD(q=q, step="static"), expected, steps=2)


@both
def test_q_zero_is_the_mean_of_the_models(kind: type[Engine]) -> None:
    """Two steps: 1.15 and 0.28 (see test_fedavg)."""
    server, _ = rounds(QFedAvg(q=0.0), kind, steps=2)
    assert server.params["weight"].item() == pytest.approx(0.715, abs=1e-6)


@both
@pytest.mark.parametrize("q", [1.0, 15.0])
def test_no_loss_and_huge_losses(kind: type[Engine], q: float) -> None:
    """Client 0 fits exactly; client 1's loss is 1e12, its q-th power far beyond float32."""
    task, federation = lines([[((1.0,), 1.0)], [((1.0,), 1e6)]])
    server = play(QFedAvg(q=q), kind, task, federation, [1.0], Work(epochs=1, batch=0, lr=0.1))
    move = 0.1 * 2 * (1e6 - 1)  # of client 1; client 0's weight is next to nothing
    share = 1 / (1 + q * 10 * move**2 / (1e6 - 1) ** 2)
    assert weight_of(server).item() == pytest.approx(1 + share * move, rel=1e-4)
    alone = play(
        QFedAvg(q=q), kind, task, federation, [1.0], Work(epochs=1, batch=0, lr=0.1), ids=[0]
    )
    assert weight_of(alone).item() == 1.0


# --- faults of public versions --------------------------------------------------------------------


@dataclass(frozen=True)
class Faulty(Algorithm[Global]):
    """q-FedAvg as printed, by sums, with one fault."""

    name: ClassVar[str] = "faulty"
    family: ClassVar[str] = "test"
    paper: ClassVar[str] = "none"
    reveals: ClassVar[str] = "nothing"

    fault: str = ""

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        got = cohort.sum(self.local, {"params": server.params})
        step = tree.tmap(lambda d: (d / got["h"]).float(), got["delta"])
        return Global(tree.sub(server.params, step))

    @phase("sum", delta="update", h="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        origin = message["params"]
        params = descend(task.loss, origin, client)
        if self.fault == "aliased":  # the "initial" state is the live model itself
            origin = params
        measured = params if self.fault == "loss after training" else message["params"]
        loss = train_loss(task, measured, client)
        if self.fault == "loss of a minibatch":
            plan = client.plan
            loss = task.loss(origin, client.pool.batch(plan.rows[0][:1], plan.weight[0][:1]))
        D = tree.scale(tree.sub(origin, params), 10.0)
        h = tree.sq_norm(D) + 10.0 * loss
        return {"delta": tree.scale(D, loss), "h": h}, client.state


def test_the_version_without_a_fault_passes() -> None:
    check_by_hand(Faulty())


@pytest.mark.parametrize("fault", ["loss after training", "aliased", "loss of a minibatch"])
def test_faults_are_detected(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_by_hand(Faulty(fault))


@pytest.mark.parametrize("name", ["q_fedavg", "q_fedsgd"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"q": -1.0}, "q = -1.0"),
        ({"q": math.inf}, "q = inf"),
        ({"lipschitz": 0.0}, "lipschitz = 0.0"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(name, options)


def test_the_learning_rate_of_the_round_sets_the_constant() -> None:
    """With a schedule, L = 1 / the round's own rate."""
    for kind in ENGINES:
        task, federation = lines([[((1.0,), 2.0)], [((1.0,), -1.0)]])
        engine = kind(task, federation)
        work = Work(epochs=1, batch=0, lr=0.1)
        cohort = engine.cohort(torch.tensor([0, 1]), work=work, round=4, rate=0.05)
        got = QFedAvg(q=1.0).round(Global({"weight": torch.tensor([[1.0]])}), cohort)
        expected = paper(1.0, [-2.0, 4.0], [1.0, 4.0], 1.0, 20.0)
        assert weight_of(got).item() == pytest.approx(expected, abs=1e-6)
