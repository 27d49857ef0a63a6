"""FairFed: distances and weights by hand, with a client that has only one group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from algorithms.exchanges import Asked, listening
from algorithms.group_by_hand import (
    ENGINES,
    SIZES,
    START,
    TWO,
    Y,
    by_size,
    overhearing,
    play,
    step,
    sums,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.fairfed import FairFed
from isonomy.blocks.groups import Cells, gap, local_gap
from isonomy.contract.checks import silent
from isonomy.core.notions import NOTIONS, Notion
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


def rate_gap(count: Any, positive: Any) -> float:
    rate = positive.sum(0) / count.sum(0)
    return float(rate[0] - rate[1])


def accuracy(count: Any, positive: Any) -> float:
    return float((positive[1].sum() + (count - positive)[0].sum()) / count.sum())


def distances(w: float) -> np.ndarray:
    """|F - F_k|, and for client 2, which has no group 1, |Acc - Acc_2|."""
    count, _, positive = sums(w)
    far = []
    for k in range(3):
        c, _, p = sums(w, ids=(k,))
        both_groups = c.sum(0).min() > 0
        far.append(
            abs(rate_gap(count, positive) - rate_gap(c, p))
            if both_groups
            else abs(accuracy(count, positive) - accuracy(c, p))
        )
    return np.array(far)


@both
def test_running_weights_by_hand(kind: type[Engine]) -> None:
    w, omega = START, SIZES / SIZES.sum()
    for _ in range(2):
        far = distances(w)
        assert far.std() > 0.01
        omega = omega - 0.3 * (far - far.mean())
        say = np.maximum(omega, 0)
        w = float(say @ [step(w, k) for k in range(3)] / say.sum())
    server, _ = play(FairFed(beta=0.3), kind, rounds=2)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert SIZES / SIZES.sum() - server.lost.numpy() == pytest.approx(omega, abs=1e-6)


@both
def test_exponential_weights_by_hand(kind: type[Engine]) -> None:
    w = START
    for _ in range(2):
        say = np.exp(-2 * distances(w)) * SIZES
        w = float(say @ [step(w, k) for k in range(3)] / say.sum())
    server, _ = play(FairFed(beta=2.0, update="exponential"), kind, rounds=2)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)


def test_weights_sum_to_one_in_the_mean() -> None:
    """In a public implementation they sum to about 1.6, so models grow from round to round.

    Where every client answers with the model it was sent, the mean is that model.
    """
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Idle(FairFed):
        @phase("mean", params="model")
        def train(self, task: Any, message: Any, client: Any) -> Any:
            return {"params": message["params"]}, client.state

    server, _ = play(Idle(beta=0.5), Loop, rounds=5)
    assert weight_of(server) == pytest.approx(START, abs=1e-6)


@both
def test_reweighing_with_all_clients_by_hand(kind: type[Engine]) -> None:
    """P(y) P(z) / P(y, z) of the counts of all clients of the round."""
    count = sums(START)[0]
    table = count.sum(1, keepdims=True) * count.sum(0) / (count * count.sum())
    own = [
        step(START, k, np.array([table[y, z] for y, z in zip(Y[k], TWO[k], strict=True)]))
        for k in range(3)
    ]
    server, _ = play(FairFed(beta=0.0, local="reweigh_all"), kind)
    assert weight_of(server) == pytest.approx(by_size(own), abs=1e-6)


@both
def test_reweighing_by_hand(kind: type[Engine]) -> None:
    """P(y) P(z) / P(y, z) of each client's own counts."""
    own = []
    for k in range(3):
        count = sums(START, ids=(k,))[0]
        n = count.sum()
        v = [
            count[y].sum() * count[:, z].sum() / (count[y, z] * n)
            for y, z in zip(Y[k], TWO[k], strict=True)
        ]
        own.append(step(START, k, np.array(v)))
    server, _ = play(FairFed(beta=0.0, local="reweigh"), kind)
    assert weight_of(server) == pytest.approx(by_size(own), abs=1e-6)


def test_the_server_sees_sums_and_distances_only() -> None:
    heard: list[Asked] = []
    play(FairFed(), Loop, wrap=(listening(heard),))
    assert [(a.phase, a.replied) for a in heard] == [
        ("measure", ("cells", "correct", "count")),
        ("distance", ("distance",)),
        ("train", ("params",)),
    ]


def test_small_cells_are_withheld() -> None:
    """Where a gap depends on cells smaller than `least`, accuracies are compared."""
    sent: list[float] = []
    play(FairFed(least=2), Loop, wrap=(overhearing("distance", sent),))
    count, _, positive = sums(START)
    own = [sums(START, ids=(k,)) for k in range(3)]
    by_hand = [abs(accuracy(count, positive) - accuracy(c, p)) for c, _, p in own]
    assert sent == pytest.approx(by_hand, abs=1e-6)
    assert by_hand != pytest.approx(distances(START), abs=1e-3)


@pytest.mark.parametrize(
    ("notion", "least", "expected"),
    [("dp", 1, True), ("dp", 2, False), ("eo", 2, True), ("eo", 6, False)],
)
def test_a_gap_is_reported_only_if_all_its_cells_are(
    notion: str, least: int, expected: bool
) -> None:
    """In group 1 one example has label 0 and five have label 1; no cell is empty."""
    count = torch.tensor([[4.0, 1.0], [6.0, 5.0]])
    positive = torch.tensor([[1.0, 1.0], [3.0, 2.0]])
    cells = Cells(count, torch.zeros(2, 2), positive)
    value, reported = local_gap(cells, NOTIONS[notion], least)
    assert bool(reported) is expected
    whole = {"dp": 4 / 10 - 3 / 6, "eo": 3 / 6 - 2 / 5}[notion]
    assert float(value) == pytest.approx(whole)  # never the gap of the remaining cells


def test_a_notion_of_another_label() -> None:
    """A notion that compares the examples with label 0, and a client without such of group 1."""
    notion = Notion("fpr", "false_positive_parity", "false positive parity", "", (0,))
    count = torch.tensor([[4.0, 2.0], [6.0, 5.0]])
    positive = torch.tensor([[1.0, 1.0], [3.0, 2.0]])
    value, known = gap(Cells(count, torch.zeros(2, 2), positive), notion)
    assert float(value) == pytest.approx(1 / 4 - 1 / 2)
    assert bool(known)
    without = torch.tensor([[4.0, 0.0], [6.0, 5.0]])
    assert not bool(gap(Cells(without, torch.zeros(2, 2), positive), notion)[1])


def test_one_client_and_silent_clients() -> None:
    """A single client is at the mean distance; clients that drop out change nothing."""
    alone, _ = play(FairFed(beta=100.0), Loop, ids=(1,))
    assert weight_of(alone) == pytest.approx(step(START, 1), abs=1e-6)
    quiet, _ = play(FairFed(), Loop, wrap=(silent({0: {0}}),))
    assert weight_of(quiet) == weight_of(play(FairFed(), Loop, ids=(1, 2))[0])


def test_three_groups_use_the_distance_from_everyone() -> None:
    server, _ = play(FairFed(beta=0.3), Loop, groups=3)
    count, _, positive = sums(START, 3)
    whole = np.abs(positive.sum(0) / count.sum(0) - positive.sum() / count.sum()).max()
    far = []
    for k in range(3):
        c, _, p = sums(START, 3, ids=(k,))
        seen = c.sum(0) > 0
        rate = p.sum(0)[seen] / c.sum(0)[seen]
        far.append(abs(whole - np.abs(rate - p.sum() / c.sum()).max()))
    lost = 0.3 * (np.array(far) - np.mean(far))
    assert server.lost.numpy() == pytest.approx(lost, abs=1e-6)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="beta"):
        make("fairfed", {"beta": -1.0})
    task, _ = world()
    with pytest.raises(ConfigError, match="two classes"):
        FairFed().init_server(Task(task.build, classes=3, levels=(2,)), {}, 2)
