"""FedFB: rounds by hand for three groups, faults of public implementations, client parity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.group_by_hand import (
    ENGINES,
    SIZES,
    START,
    Y,
    by_size,
    losses,
    parts,
    play,
    step,
    sums,
    weight_of,
    world,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.fedfb import FedFB
from isonomy.blocks import fairbatch
from isonomy.blocks.groups import Cells, cells
from isonomy.contract.checks import silent
from isonomy.core.notions import NOTIONS, Notion
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError
from isonomy.models import make_task

both = pytest.mark.parametrize("kind", ENGINES)


def parity(rounds: int, groups: int, alpha: float, bug: str = "") -> tuple[float, np.ndarray]:
    """The paper's algorithm for demographic parity, or the same with a fault of public code."""
    w = START
    count, _, _ = sums(w, groups)
    m, n = count.sum(0), count.sum()
    p = m / n
    lam = np.stack([p, p])
    for t in range(1, rounds + 1):
        own = [step(w, k, lam[Y[k], parts(groups)[k]] * n / m[parts(groups)[k]]) for k in range(3)]
        if bug == "first client":  # its model enters the sum without its weight
            w = (own[0] + SIZES[1] * own[1] + SIZES[2] * own[2]) / SIZES.sum()
        else:
            w = by_size(own)
        _, loss, _ = sums(w, groups)
        f = np.zeros(groups)
        for z in range(1, groups):
            f[z] = (-loss[0, 0] + loss[1, 0]) / m[0] + (loss[0, z] - loss[1, z]) / m[z]
            constant = count[0, 0] / m[0] - count[0, z] / m[z]
            f[z] += 3 * constant if bug == "constant" else constant
        move = alpha / math.sqrt(t)
        lam[0, 1:] += move * f[1:]
        lam[0, 0] -= move * f[1:].sum()
        top = 2 * p[0] if bug == "mass" else 2 * p
        lam[0] = np.clip(lam[0], 0, top)
        lam[1] = top - lam[0]
    return w, lam / p


@both
@pytest.mark.parametrize("groups", [2, 3])
def test_parity_by_hand(kind: type[Engine], groups: int) -> None:
    server, _ = play(FedFB(alpha=0.2), kind, rounds=3, groups=groups)
    w, ratio = parity(3, groups, 0.2)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert server.ratio.numpy() == pytest.approx(ratio, abs=1e-5)


@pytest.mark.parametrize("bug", ["mass", "constant", "first client"])
def test_faults_of_public_code_would_be_seen(bug: str) -> None:
    """Group 0's mass for all, the constant once per client, the first client's weight lost."""
    right, wrong = parity(3, 3, 0.2), parity(3, 3, 0.2, bug)
    assert abs(right[0] - wrong[0]) > 1e-3
    server, _ = play(FedFB(alpha=0.2), Loop, rounds=3, groups=3)
    assert weight_of(server) != pytest.approx(wrong[0], abs=1e-4)


def test_each_group_has_its_own_mass() -> None:
    """For a large step, the weights of a group's two labels still add up to twice its share."""
    server, _ = play(FedFB(alpha=50.0), Loop, rounds=2, groups=3)
    assert server.ratio.sum(0).tolist() == [2.0, 2.0, 2.0]
    assert server.ratio.min() >= 0


def test_the_constant_enters_once() -> None:
    """Distributing the same examples differently over clients does not change the update."""
    whole = parity(1, 2, 0.2)[1]
    server, _ = play(FedFB(alpha=0.2), Loop)
    assert server.ratio.numpy() == pytest.approx(whole, abs=1e-5)
    count, loss, _ = sums(by_size([step(START, k) for k in range(3)]))
    rate = (loss[0] - loss[1] + count[1]) / count.sum(0)
    move = 0.2 * (rate[1] - rate[0]) / (count[:, 1].sum() / count.sum())
    assert float(server.ratio[0, 1]) == pytest.approx(1 + move, abs=1e-5)


@both
def test_opportunity_by_hand(kind: type[Engine]) -> None:
    """Groups' shares of label 1's mass move by alpha (l_z - l_0), clipped and normalised."""
    w = by_size([step(START, k) for k in range(3)])
    count, loss, _ = sums(w, 3)
    own = count[1] / count[1].sum()
    present = count[1] > 0
    mean = np.where(present, loss[1] / np.maximum(count[1], 1), 0)
    gaps = np.where(present, mean - mean[0], 0)
    q = own + 0.2 * np.array([-gaps[1:].sum(), *gaps[1:]])
    q = np.maximum(q, 0) / np.maximum(q, 0).sum()
    expected = np.where(present, q / np.where(own > 0, own, 1), 1)
    server, _ = play(FedFB(alpha=0.2, fairness="eo"), kind, groups=3)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)
    assert server.ratio[1].numpy() == pytest.approx(expected, abs=1e-5)
    assert server.ratio[0].tolist() == [1.0, 1.0, 1.0]


def test_a_notion_of_label_0_moves_its_mass() -> None:
    """The same step on the row of label 0; the row of label 1 stays."""
    notion = Notion("fpr", "false_positive_parity", "false positive parity", "", (0,))
    count, loss, positive = (torch.tensor(part) for part in sums(START, 3))
    ratio = fairbatch.start(3)
    got = fairbatch.update(ratio, Cells(count, loss, positive), 0.2, notion)
    flipped = Cells(*(part.flip(0) for part in (count, loss, positive)))
    expected = fairbatch.update(ratio, flipped, 0.2, NOTIONS["eo"])
    assert torch.equal(got, expected.flip(0))
    assert not torch.equal(got[0], ratio[0])
    assert torch.equal(got[1], ratio[1])


@both
def test_client_parity_by_hand(kind: type[Engine]) -> None:
    """q_k = n_k / n + alpha (l_k - mean l) sums to 1 and stays positive."""
    w = by_size([step(START, k) for k in range(3)])
    mean = np.array([losses(w, k).mean() for k in range(3)])
    q = SIZES / SIZES.sum() + 0.1 * (mean - mean.mean())
    assert q.min() > 0
    server, _ = play(FedFB(alpha=0.1, fairness="client"), kind)
    assert server.ratio.numpy() == pytest.approx(q / (SIZES / SIZES.sum()), abs=1e-5)
    server, _ = play(FedFB(alpha=0.1, fairness="client"), kind, rounds=2)
    assert weight_of(server) == pytest.approx(float(q @ [step(w, k) for k in range(3)]), abs=1e-6)


def test_silent_clients_are_left_out() -> None:
    quiet = play(FedFB(), Loop, wrap=(silent({0: {1}}),))[0]
    asked = play(FedFB(), Loop, ids=(0, 2))[0]
    assert weight_of(quiet) == pytest.approx(weight_of(asked), abs=1e-7)
    assert quiet.ratio.tolist() == asked.ratio.tolist()


def test_one_client_of_one_group_changes_no_weight() -> None:
    """Client 2 has only group 0: nothing to compare, so the step is FedAvg's."""
    server, _ = play(FedFB(alpha=5.0), Loop, ids=(2,), rounds=2)
    assert server.ratio.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert weight_of(server) == pytest.approx(step(step(START, 2), 2), abs=1e-6)


def test_small_cells_are_withheld() -> None:
    """A client withholds the sums of a cell with fewer examples than `least`; the run goes on."""
    task, federation = world()
    heard: list[Any] = []

    @phase("sum", cells="group statistic")
    def measure(t: Task, message: Any, client: Any) -> Any:
        made = cells(t, message["params"], client, 0, least=2)
        heard.append(made)
        return {"cells": made}, client.state

    engine = Loop(task, federation)
    engine.reset(())
    cohort = engine.cohort(torch.tensor([0]), work=Work(), round=0)
    cohort.sum(measure, {"params": {"weight": torch.tensor([[START]])}})
    # (0,0), (0,1), (1,1) hold one each; the two of (1,0) are withheld with the one of (1,1), whose
    # number would follow from the label's
    assert heard[0].count.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert heard[0].loss[0].tolist() == [0.0, 0.0]
    assert heard[0].positive[1, 1] == 0.0
    server, _ = play(FedFB(least=100), Loop, rounds=2)
    assert server.ratio.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"alpha": -1.0}, "alpha"), ({"least": -1}, "least"), ({"fairness": "x"}, "fairness")],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("fedfb", options)


def test_tasks_without_comparable_groups_are_refused() -> None:
    def refused(words: str, task: Task, **options: Any) -> None:
        with pytest.raises(ConfigError, match=words):
            make("fedfb", options).init_server(task, {}, 3)

    task, _ = world()
    refused("two classes", Task(task.build, loss_name="squared", classes=0, levels=(2,)))
    refused("no protected attribute", Task(task.build, loss_name="logistic", classes=2))
    refused("sex", task, attribute="sex")
    make("fedfb", {"attribute": "kind"}).init_server(task, {}, 3)


def test_a_task_knows_the_names_of_its_attributes() -> None:
    made = make_task("logistic", world()[1])
    assert (made.attributes, made.levels) == (("kind",), (2,))
