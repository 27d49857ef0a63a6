"""What PFFL's verdict says about the population: an upper bound that covers, or none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algorithms.group_by_hand import train
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.core.examples import Attribute
from isonomy.core.task import Task
from isonomy.core.verdict import About, Verdict
from isonomy.data.federation import build


def judged(tests: int, *, equal: bool) -> Verdict:
    """The verdict on a logistic model with so many test examples in each of two groups."""
    task = Task(lambda: nn.Linear(1, 1), loss_name="logistic", levels=(2,), attributes=("g",))
    generator = torch.Generator().manual_seed(0)
    n = 40 + 2 * tests
    x = torch.randn((n, 1), generator=generator)
    if equal:
        x[40:] = 1.0
    y = (torch.rand(n, generator=generator) < 0.3).long()
    y[40:] = torch.where(torch.tensor(equal), 1, y[40:])
    made = build(
        x,
        y,
        (torch.arange(n) % 2).unsqueeze(-1),
        {"train": [torch.arange(40)], "test": [torch.arange(40, n)]},
        classes=2,
        attributes=(Attribute("g", ("a", "b")),),
    )
    algorithm = PFFL(B=2.0, zeta=0.5)
    server = train(algorithm, task, made, rounds=3, lr=0.5)
    verdict = algorithm.verdict(server, About(task, made.attributes, made.labels))
    assert verdict is not None
    return verdict


def test_two_equal_losses_give_no_interval() -> None:
    """They had one of width 0."""
    verdict = judged(2, equal=True)
    assert [cell["held_term"] for cell in verdict.facts["constraints"]] == [None, None]
    assert "Too few test examples (n < 9) to bound g = a, g = b." in verdict.text


def test_equal_losses_of_many_examples() -> None:
    verdict = judged(30, equal=True)
    assert [cell["held_term"] for cell in verdict.facts["constraints"]] == [None, None]
    assert "cannot be bounded" in verdict.text


@pytest.mark.parametrize("tests", [9, 100])
def test_unequal_losses_have_a_bound(tests: int) -> None:
    verdict = judged(tests, equal=False)
    terms = [cell["held_term"] for cell in verdict.facts["constraints"]]
    assert all(0 < term < 20 / tests**0.5 for term in terms)
    assert "with 95% confidence for all jointly" in verdict.text
