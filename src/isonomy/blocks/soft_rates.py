"""Smooth gaps between groups: rates of probabilities instead of decisions, which have gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from isonomy.blocks.groups import margin
from isonomy.core.notions import Notion
from isonomy.core.task import Batch, Task


def soft_gap(task: Task, outputs: Tensor, batch: Batch, at: int, notion: Notion) -> Tensor:
    """The largest difference between groups' mean probabilities of class 1, of one batch.

    Groups without examples that the notion compares are left out; with fewer than two others, the
    gap is 0. In a small batch, it is above 0 by chance.

    >>> two = Task(lambda: torch.nn.Linear(1, 1), loss_name="logistic", levels=(2,))
    >>> group = torch.tensor([[0], [0], [1]])
    >>> rows = Batch(torch.zeros(3, 1), torch.zeros(3), group, torch.ones(3))
    >>> score = torch.tensor([0.2, 0.4, 0.9]).logit().unsqueeze(1)
    >>> from isonomy.core.notions import NOTIONS
    >>> round(float(soft_gap(two, score, rows, 0, NOTIONS["dp"])), 4)
    0.6
    """
    chance = torch.sigmoid(margin(task, outputs))
    weight = notion.restrict(batch.weight, batch.y)
    inside = (batch.groups[:, at].unsqueeze(-1) == torch.arange(task.levels[at])).to(chance.dtype)
    inside = inside * weight.unsqueeze(-1)
    count = inside.sum(0)
    rate = (chance.unsqueeze(-1) * inside).sum(0) / count.clamp(min=1)
    known = count > 0
    highest = torch.where(known, rate, -torch.inf).amax()
    lowest = torch.where(known, rate, torch.inf).amin()
    return torch.where(known.sum() > 1, highest - lowest, torch.zeros_like(highest))


def soft_accuracy(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """The mean probability of the right class, of a task with two classes."""
    right = torch.sigmoid(margin(task, outputs) * (2 * batch.y - 1).to(outputs.dtype))
    return (right * batch.weight).sum() / batch.weight.sum().clamp(min=1)
