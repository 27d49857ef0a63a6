"""A task's losses are torch's, and its functions are pure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from isonomy.core import random
from isonomy.core.task import Batch, Task


def numbers(name: str, *shape: int) -> torch.Tensor:
    return random.normal(random.key(3), name, shape)


Y = torch.tensor([0, 1, 1, 0, 1])


def task_of(loss: Any, outputs: int = 1) -> Task:
    return Task(lambda: nn.Linear(4, outputs), loss_name=loss, classes=max(outputs, 2))


def test_losses_are_torchs() -> None:
    out = 3 * numbers("out", 5, 2)
    assert_close(
        task_of("cross_entropy", 2).each_loss(out, Y),
        functional.cross_entropy(out, Y, reduction="none"),
    )
    score = 3 * numbers("score", 5, 1)
    assert_close(
        task_of("logistic").each_loss(score, Y),
        functional.binary_cross_entropy_with_logits(score[:, 0], Y.float(), reduction="none"),
    )
    assert_close(
        task_of("squared").each_loss(score, numbers("y", 5)),
        functional.mse_loss(score[:, 0], numbers("y", 5), reduction="none"),
    )


def test_hinge_by_hand() -> None:
    """Margins 0.5, 2, -1 give max(0, 1 - margin) = 0.5, 0, 2."""
    out = torch.tensor([[-0.5], [2.0], [-1.0]])
    assert task_of("hinge").each_loss(out, torch.tensor([0, 1, 1])).tolist() == [0.5, 0.0, 2.0]


def test_loss_is_the_mean_over_real_examples() -> None:
    task = task_of("cross_entropy", 2)
    params = task.init(0)
    x, weight = numbers("x", 5, 4), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    batch = Batch(x, Y, torch.zeros(5, 0), weight)
    real = Batch(x[[0, 1, 3]], Y[[0, 1, 3]], torch.zeros(3, 0), torch.ones(3))
    assert_close(task.loss(params, batch), task.losses(params, real).mean())
    assert float(task.loss(params, batch._replace(weight=torch.zeros(5)))) == 0.0


def test_decisions() -> None:
    assert task_of("cross_entropy", 3).decide(torch.eye(3)).tolist() == [0, 1, 2]
    assert task_of("logistic").decide(torch.tensor([[-0.1], [0.1], [0.0]])).tolist() == [0, 1, 0]
    assert task_of("squared").decide(torch.tensor([[3.0]])).tolist() == [0]


def test_init_is_torchs_own_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(9)
    before = torch.random.get_rng_state()
    params = task_of("squared").init(42)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(42)
    net = nn.Linear(4, 1)
    assert_close(params, dict(net.named_parameters()), rtol=0, atol=0)
    assert not any(p.requires_grad for p in params.values())


def test_outputs_use_the_parameters_given() -> None:
    task = task_of("squared")
    params = {"weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]]), "bias": torch.tensor([0.5])}
    assert task.outputs(params, torch.ones(2, 4)).tolist() == [[10.5], [10.5]]


@pytest.mark.parametrize("seed", [0, 1])
def test_init_depends_on_its_seed_only(seed: int) -> None:
    task = task_of("squared")
    a, b = task.init(seed), task.init(seed)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not torch.equal(a["weight"], task.init(seed + 1)["weight"])
