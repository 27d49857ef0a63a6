"""What a client measures at a model: its loss, its gradient, and the result of one step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, grad_and_value

from isonomy.blocks.descent import Objective, start, step
from isonomy.core import tree
from isonomy.core.client import Client
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree

Rows = Literal["first", "full"]
"""The examples of a gradient: the round's first minibatch, or all training examples."""


def train_loss(task: Task, params: Params, client: Client) -> Tensor:
    """The mean loss over all of a client's training examples."""
    pages = client.pages("train")
    sums = [(task.losses(params, page) * page.weight).sum() for page in pages]
    return torch.stack(sums).sum() / client.size.clamp(min=1)


def loss_and_gradient(task: Task, params: Params, client: Client) -> tuple[Tensor, Tree]:
    """`train_loss` and its gradient, in one pass over the examples."""
    slope, loss = grad_and_value(lambda p: train_loss(task, p, client))(params)
    return loss, slope


def gradient(task: Task, params: Params, client: Client, rows: Rows) -> Tree:
    """The gradient of the client's mean loss, on the first minibatch or on all examples."""
    if rows == "full":
        return loss_and_gradient(task, params, client)[1]
    plan = client.plan
    return grad(task.loss)(params, client.pool.batch(plan.rows[0], plan.weight[0]))


def first_step(objective: Objective, params: Params, client: Client) -> Params:
    """The parameters after the first step of `descend(objective, params, client)`."""
    plan = client.plan
    g = grad(objective)(params, client.pool.batch(plan.rows[0], plan.weight[0]))
    return step(client.work, client.rate, params, start(client.work, params), g)[0]


def extrapolated(origin: Params, target: Params, factor: Tensor) -> Params:
    """`origin + factor * (target - origin)`."""
    return tree.tmap(lambda a, b: a + factor * (b - a), origin, target)


def with_gradient(objective: Objective, given: Tree, share: float | Tensor) -> Objective:
    """An objective whose gradient is (1 - share) grad objective + share given."""

    def mixed(params: Params, batch: Batch) -> Tensor:
        return (1 - share) * objective(params, batch) + share * tree.dot(given, params)

    return mixed
