"""Sums by label and group, which are all that group-fair methods need to know of the examples.

A cell (y, z) holds the examples of label y in group z of one protected attribute. A client's sums
add up over clients, so a server that is given only totals knows the losses and rates of the whole
federation. An example whose group is not told is in no cell.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import Objective
from isonomy.core.client import Client
from isonomy.core.task import Batch, Params, Task
from isonomy.errors import ConfigError, unknown

Notion = Literal["dp", "eo"]
"""Demographic parity: rates of all examples; equal opportunity: of those with label 1."""


class Cells(NamedTuple):
    """Sums over the examples of each cell, [2, groups] each."""

    count: Tensor  # type: ignore[assignment]  # examples
    loss: Tensor  # of their losses
    positive: Tensor  # how many of them are predicted positive


def column(task: Task, attribute: str, algorithm: str, *, groups: int | None = None) -> int:
    """Which column holds the attribute; "" is the first. Refuses what cannot be compared."""
    if not task.levels:
        raise ConfigError(
            f"algorithm '{algorithm}' compares groups and the data has no protected attribute; "
            "name one in data.protected, or choose another data set."
        )
    if attribute and attribute not in task.attributes:
        known = dict.fromkeys(task.attributes)
        raise ConfigError(f"algorithm.attribute: {unknown('attribute', attribute, known)}")
    at = task.attributes.index(attribute) if attribute else 0
    if task.levels[at] < 2:
        raise ConfigError(
            f"algorithm '{algorithm}' compares groups and '{attribute or 'the first attribute'}' "
            "has only one; choose another attribute."
        )
    if groups is not None and task.levels[at] != groups:
        raise ConfigError(
            f"algorithm '{algorithm}' compares {groups} groups and "
            f"'{attribute or 'the first attribute'}' has {task.levels[at]}; choose another "
            "attribute, or fedfb, which takes any number."
        )
    return at


def binary(task: Task, algorithm: str) -> None:
    """Refuse anything but two classes: the method speaks of a positive prediction."""
    if task.classes != 2 or task.loss_name == "squared":
        what = f"{task.classes} classes" if task.classes else "a number to predict"
        raise ConfigError(
            f"algorithm '{algorithm}' needs two classes, one of them positive, and this task has "
            f"{what}; choose data with two, or pffl, which bounds the groups' losses."
        )


def least_cell(least: int) -> None:
    """Refuse a negative number of examples."""
    if least < 0:
        raise ValueError(f"least = {least}: give a number of examples of at least 0.")


def member(task: Task, batch: Batch, at: int, *, by_label: bool = True) -> Tensor:
    """Whether each example lies in each cell, [n, 2, groups], as 0 or 1; 0 for padding.

    Without labels there is one row of cells, [n, 1, groups].
    """
    label = (batch.y.unsqueeze(-1) == torch.arange(2)).to(batch.weight.dtype)
    if not by_label:
        label = torch.ones_like(label[:, :1])
    group = (batch.groups[:, at].unsqueeze(-1) == torch.arange(task.levels[at])).to(label.dtype)
    return label.unsqueeze(-1) * group.unsqueeze(-2) * batch.weight.reshape(-1, 1, 1)


def cells(
    task: Task, params: Params, client: Client, at: int, least: int = 0, *, by_label: bool = True
) -> Cells:
    """A client's sums over its training examples, some at a time.

    Of a cell with fewer than `least` examples the client tells nothing: all its sums are 0.
    """
    total = torch.zeros(3, 2 if by_label else 1, task.levels[at], dtype=torch.float64)
    for page in client.pages("train"):
        outputs = task.outputs(params, page.x)
        inside = member(task, page, at, by_label=by_label).to(torch.float64)
        losses = torch.where(page.weight > 0, task.each_loss(outputs, page.y), 0.0)
        values = torch.stack([torch.ones_like(losses), losses, task.decide(outputs).to(losses)])
        total = total + torch.einsum("vn,nyz->vyz", values.to(torch.float64), inside)
    return shown(Cells(total[0], total[1], total[2]), least)


def shown(got: Cells, least: int) -> Cells:
    """What a client tells of its sums: nothing of a cell with fewer than `least` examples."""
    count, loss, positive = (torch.where(got.count >= least, part, 0.0) for part in got)
    return Cells(count, loss, positive)


def weighted(task: Task, table: Tensor, at: int) -> Objective:
    """The mean over a batch of the losses times `table[y, z]`; 1 where no group is told.

    A table of one row gives all labels the same weight.
    """
    groups, labels = task.levels[at], table.shape[0]

    def objective(params: Params, batch: Batch) -> Tensor:
        z = batch.groups[:, at]
        row = batch.y * groups if labels > 1 else 0
        say = table.flatten()[row + z.clamp(min=0)].to(batch.weight.dtype)
        say = torch.where(z < 0, 1.0, say)
        losses = task.losses(params, batch) * say
        return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)

    return objective


def share(part: Tensor, whole: Tensor) -> Tensor:
    """`part / whole`, and 0 where there is nothing."""
    return torch.where(whole > 0, part / whole.clamp(min=torch.finfo(part.dtype).tiny), 0.0)


def rates(got: Cells, notion: Notion) -> tuple[Tensor, Tensor]:
    """Each group's share of positive predictions, and whether it has examples to tell."""
    if notion == "eo":
        return share(got.positive[1], got.count[1]), got.count[1] > 0
    return share(got.positive.sum(0), got.count.sum(0)), got.count.sum(0) > 0


def gap(got: Cells, notion: Notion) -> tuple[Tensor, Tensor]:
    """The unfairness of a model: a gap between groups' positive rates, and whether it is defined.

    With two groups the rate of group 0 less that of group 1, with a sign; with more, the largest
    distance of a group's rate from everyone's.
    """
    rate, told = rates(got, notion)
    if rate.shape[-1] == 2:
        return torch.where(told.all(), rate[0] - rate[1], 0.0), told.all()
    row = slice(1, 2) if notion == "eo" else slice(0, 2)
    everyone = share(got.positive[row].sum(), got.count[row].sum())
    far = torch.where(told, (rate - everyone).abs(), 0.0).max()
    return far, told.sum() >= 2


def own_gap(got: Cells, notion: Notion, least: int) -> tuple[Tensor, Tensor]:
    """A client's own gap, and whether it tells it: not if it rests on a cell that is withheld."""
    value, told = gap(got, notion)
    count = got.count[1:] if notion == "eo" else got.count
    return value, told & ((count == 0) | (count >= least)).all()


def right(got: Cells) -> Tensor:
    """How many predictions are right."""
    return got.positive[1].sum() + got.count[0].sum() - got.positive[0].sum()


def accuracy(got: Cells) -> Tensor:
    """The share of right predictions."""
    return share(right(got), got.count.sum())


def margin(task: Task, outputs: Tensor) -> Tensor:
    """How far each output leans to the positive class: the log odds, or the score itself."""
    if task.loss_name == "cross_entropy":
        return outputs[..., 1] - outputs[..., 0]
    return outputs.squeeze(-1)
