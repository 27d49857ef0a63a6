"""Local descent: a client's optimiser steps over the batches of its plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from isonomy.core import tree
from isonomy.core.batches import Plan
from isonomy.core.client import Client
from isonomy.core.fold import fold
from isonomy.core.task import Batch, Params
from isonomy.core.tree import Tree, tmap
from isonomy.core.work import Work

Objective = Callable[[Params, Batch], Tensor]


class Adam(NamedTuple):
    """Adam's moments and the number of steps taken."""

    first: Tree
    second: Tree
    step: Tensor


def start(work: Work, params: Params) -> Tree:
    """The optimiser's state before its first step."""
    if work.optimiser == "adam":
        return Adam(tree.zeros_like(params), tree.zeros_like(params), torch.zeros(()))
    return tree.zeros_like(params) if work.momentum else ()


def step(work: Work, rate: Tensor, params: Params, memory: Tree, g: Tree) -> tuple[Params, Tree]:
    """One optimiser step from gradient `g`, with torch.optim's definitions of SGD and Adam."""
    if work.weight_decay:
        g = tmap(lambda d, p: d + work.weight_decay * p, g, params)
    if work.optimiser == "adam":
        return _adam(work, rate, params, memory, g)
    if work.momentum:
        # torch's first step uses the gradient itself, which a memory of zeros also gives
        memory = tmap(lambda m, d: work.momentum * m + d, memory, g)
        g = tmap(lambda d, m: d + work.momentum * m, g, memory) if work.nesterov else memory
    return tmap(lambda p, d: p - rate * d, params, g), memory


def _adam(work: Work, rate: Tensor, params: Params, memory: Adam, g: Tree) -> tuple[Params, Adam]:
    b1, b2 = work.betas
    count = memory.step + 1
    first = tmap(lambda m, d: b1 * m + (1 - b1) * d, memory.first, g)
    second = tmap(lambda v, d: b2 * v + (1 - b2) * d * d, memory.second, g)
    size = rate / _rest(b1, count)
    root = torch.sqrt(_rest(b2, count))

    def move(p: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return p - size * m / (v.sqrt() / root + work.epsilon)

    return tmap(move, params, first, second), Adam(first, second, count)


def _rest(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, without loss of precision in float32 where beta is near 1."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)


def along(
    one: Callable[[Tree, Batch], Tree], carry: Tree, client: Client, part: Plan | None = None
) -> Tree:
    """Apply carry = one(carry, batch) to each batch of the client's plan, or of a part of it."""
    pool, plan = client.pool, part or client.plan

    def each(carry: Tree, at: tuple[Tensor, Tensor]) -> Tree:
        return one(carry, pool.batch(*at))

    return fold(each, carry, (plan.rows, plan.weight), plan.count)


def descend(
    objective: Objective, params: Params, client: Client, part: Plan | None = None
) -> Params:
    """Minimise `objective(params, batch)` from `params` over the batches of the client's plan.

    `part` is a part of the plan, for methods that divide their local work.
    """
    work, rate = client.work, client.rate

    def one(carry: Tree, batch: Batch) -> Tree:
        now, memory = carry
        return step(work, rate, now, memory, grad(objective)(now, batch))

    return along(one, (params, start(work, params)), client, part)[0]
