"""Local descent is torch.optim along the client's batch plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from isonomy.blocks.descent import descend, start, step
from isonomy.contract.world import world
from isonomy.core import random
from isonomy.core.client import Client, Pool
from isonomy.core.fold import using
from isonomy.core.work import Work
from isonomy.engines.batched.program import Programs

WORKS: dict[str, tuple[Work, Any]] = {
    "sgd": (Work(lr=0.2), lambda p: torch.optim.SGD(p, 0.2)),
    "decay": (Work(lr=0.2, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.2, weight_decay=0.1)),
    "momentum": (Work(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        Work(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adam": (Work(optimiser="adam", lr=0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam, other numbers": (
        Work(optimiser="adam", lr=0.02, betas=(0.5, 0.9), epsilon=1e-3, weight_decay=0.05),
        lambda p: torch.optim.Adam(p, 0.02, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.05),
    ),
}


def client_of(work: Work, k: int = 2) -> Client:
    where = world()
    ranges = where.federation.ranges[k]
    sizes = ranges[:, 1] - ranges[:, 0]
    return Client(
        pool=Pool(where.federation.x, where.federation.y, where.federation.groups),
        id=torch.tensor(k),
        starts=ranges[:, 0],
        sizes=sizes,
        key=random.key(where.seed, 0, k),
        rate=torch.tensor(work.lr),
        state=(),
        work=work,
        widths=tuple(sizes.tolist()),
        steps=work.count(int(sizes[0])),
        passes=work.passes(int(sizes[0])),
    )


def by_torch(work: Work, optimiser: Any, client: Client) -> dict[str, Tensor]:
    """The same steps with a torch module, autograd and torch.optim."""
    net = world().task.build()
    net.load_state_dict(world().params)
    made = optimiser(net.parameters())
    plan = client.plan
    for rows, weight in zip(plan.rows, plan.weight, strict=True):
        real = rows[weight > 0]
        made.zero_grad()
        nn.functional.cross_entropy(net(client.pool.x[real]), client.pool.y[real]).backward()
        made.step()
    return {name: p.detach() for name, p in net.named_parameters()}


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("traced", [False, True])
def test_twenty_steps_equal_torch(name: str, traced: bool) -> None:
    work, optimiser = WORKS[name]
    work = replace(work, steps=20, batch=7)  # 40 examples: every sixth batch is short
    client = client_of(work)
    with using(Programs() if traced else None):
        got = descend(world().task.loss, world().params, client)
    expected = by_torch(work, optimiser, client)
    assert_close(got, expected, rtol=1e-6, atol=1e-6)
    moved = sum(float((got[n] - world().params[n]).abs().sum()) for n in got)
    assert moved > 0.1


def test_one_step_of_each_optimiser_by_hand() -> None:
    """w = 2, gradient 3, lr 0.1.

    sgd: 2 - 0.1 * 3 = 1.7. With weight decay 0.5: 2 - 0.1 * (3 + 0.5 * 2) = 1.6. Momentum 0.9,
    second step with the same gradient: velocity 0.9 * 3 + 3 = 5.7. Adam's first step is lr times
    the gradient's sign: 2 - 0.1 * 3 / (3 + 1e-8).
    """
    rate, w, g = torch.tensor(0.1), {"w": torch.tensor(2.0)}, {"w": torch.tensor(3.0)}

    def first(work: Work) -> tuple[Any, Any]:
        return step(work, rate, w, start(work, w), g)

    assert float(first(Work())[0]["w"]) == pytest.approx(1.7)
    assert float(first(Work(weight_decay=0.5))[0]["w"]) == pytest.approx(1.6)
    momentum = Work(momentum=0.9)
    now, memory = first(momentum)
    assert float(now["w"]) == pytest.approx(1.7)
    assert float(step(momentum, rate, now, memory, g)[0]["w"]) == pytest.approx(1.7 - 0.57)
    adam, moments = first(Work(optimiser="adam"))
    assert float(adam["w"]) == pytest.approx(1.9)
    assert float(moments.step) == 1.0


def test_the_rounds_rate_is_used_not_the_first() -> None:
    work = Work(steps=1, batch=0, lr=0.1)
    client = client_of(work)
    params, loss = world().params, world().task.loss
    full = descend(loss, params, client)
    half = descend(loss, params, replace(client, rate=torch.tensor(0.05)))
    for n in params:
        assert_close(half[n] - params[n], (full[n] - params[n]) / 2, rtol=1e-4, atol=1e-7)


def test_descend_does_not_change_its_arguments() -> None:
    work = Work(steps=5, batch=4, momentum=0.9)
    client = client_of(work)
    before = {n: p.clone() for n, p in world().params.items()}
    for runner in (None, Programs()):
        with using(runner):
            descend(world().task.loss, world().params, client)
        assert_close(world().params, before, rtol=0, atol=0)
