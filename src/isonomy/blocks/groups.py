"""Sums by label and group: all that group-fair methods need to know about the examples.

A cell (y, z) contains the examples with label y in group z of one protected attribute. Clients'
sums add up, so a server that receives only totals knows the losses and rates of the whole
federation. An example whose group is unknown is in no cell.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import Objective
from isonomy.core.client import Client
from isonomy.core.disclosure import told
from isonomy.core.notions import NOTIONS, SINGLE_RATE, Notion, gap_to_everyone
from isonomy.core.task import Batch, Params, Task
from isonomy.errors import ConfigError, unknown

NOTION_OPTION = "notion of fairness: " + " or ".join(
    f"{code} ({NOTIONS[code].title})" for code in SINGLE_RATE
)
"""The meaning of an algorithm's option `notion`."""


class Cells(NamedTuple):
    """Sums over the examples of each cell, [2, groups] each."""

    count: Tensor  # type: ignore[assignment]  # number of examples
    loss: Tensor  # sum of their losses
    positive: Tensor  # how many of them are predicted positive


def column(task: Task, attribute: str, algorithm: str) -> int:
    """The column of the protected attribute; "" is the first.

    Raises ConfigError if the data has no such attribute, or if it has fewer than two groups.
    """
    if not task.levels:
        raise ConfigError(
            f"algorithm '{algorithm}' compares groups, but the data has no protected attribute; "
            "name one in data.protected, or choose another data set."
        )
    if attribute and attribute not in task.attributes:
        known = dict.fromkeys(task.attributes)
        raise ConfigError(f"algorithm.attribute: {unknown('attribute', attribute, known)}")
    at = task.attributes.index(attribute) if attribute else 0
    name = f"'{attribute}'" if attribute else "the first attribute"
    if task.levels[at] < 2:
        raise ConfigError(
            f"algorithm '{algorithm}' compares groups, but {name} has only one; choose another "
            "one in algorithm.attribute."
        )
    return at


def require_binary(task: Task, algorithm: str) -> None:
    """Raise ConfigError unless the task has two classes, of which class 1 is the positive one."""
    if task.classes != 2 or task.loss_name == "squared":
        what = f"has {task.classes} classes" if task.classes else "is a regression"
        raise ConfigError(
            f"algorithm '{algorithm}' needs two classes, one of them positive, but this task "
            f"{what}; choose data with two classes, or use pffl, which bounds the groups' losses."
        )


def check_least(least: int) -> None:
    """Raise ValueError for a negative number of examples."""
    if least < 0:
        raise ValueError(f"least = {least}: give a number of examples of at least 0.")


def member(task: Task, batch: Batch, at: int, *, by_label: bool = True) -> Tensor:
    """Whether each example is in each cell, [n, 2, groups], as 0 or 1; 0 for padding.

    With `by_label=False` a cell is a whole group, [n, 1, groups].
    """
    label = (batch.y.unsqueeze(-1) == torch.arange(2)).to(batch.weight.dtype)
    if not by_label:
        label = torch.ones_like(label[:, :1])
    group = (batch.groups[:, at].unsqueeze(-1) == torch.arange(task.levels[at])).to(label.dtype)
    return label.unsqueeze(-1) * group.unsqueeze(-2) * batch.weight.reshape(-1, 1, 1)


def cells(
    task: Task, params: Params, client: Client, at: int, least: int = 0, *, by_label: bool = True
) -> Cells:
    """A client's sums over its training examples, computed page by page.

    Cells that are not told with this `least` are withheld: their sums are 0.
    """
    total = torch.zeros(3, 2 if by_label else 1, task.levels[at], dtype=torch.float64)
    for page in client.pages("train"):
        outputs = task.outputs(params, page.x)
        inside = member(task, page, at, by_label=by_label).to(torch.float64)
        losses = torch.where(page.weight > 0, task.each_loss(outputs, page.y), 0.0)
        values = torch.stack([torch.ones_like(losses), losses, task.decide(outputs).to(losses)])
        total = total + torch.einsum("vn,nyz->vyz", values.to(torch.float64), inside)
    return withhold_small(Cells(total[0], total[1], total[2]), least)


def withhold_small(sums: Cells, least: int) -> Cells:
    """The sums, with 0 for every cell that is not told, label by label."""
    shown = told(sums.count, least)
    count, loss, positive = (torch.where(shown, part, 0.0) for part in sums)
    return Cells(count, loss, positive)


def weighted_loss(task: Task, table: Tensor, at: int) -> Objective:
    """The mean over a batch of the losses times `table[y, z]`.

    Examples of unknown group have weight 1. A table with one row gives all labels the same weight.
    """
    groups, labels = task.levels[at], table.shape[0]

    def objective(params: Params, batch: Batch) -> Tensor:
        z = batch.groups[:, at]
        row = batch.y * groups if labels > 1 else 0
        weight = table.flatten()[row + z.clamp(min=0)].to(batch.weight.dtype)
        weight = torch.where(z < 0, 1.0, weight)
        losses = task.losses(params, batch) * weight
        return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)

    return objective


def counted(task: Task, client: Client, at: int) -> Tensor:
    """The number of a client's training examples in each cell, [2, groups]."""
    pages = [member(task, page, at).to(torch.float64).sum(0) for page in client.pages("train")]
    return torch.stack(pages).sum(0)


def debiasing_weights(count: Tensor) -> Tensor:
    """P(y) P(z) / P(y, z) of each cell, from counts; 0 for a cell without examples.

    With these weights, label and group are independent (Kamiran and Calders, 2012). They do not
    depend on what the groups are called: exchanged groups have exchanged weights.
    """
    label, group = count.sum(1, keepdim=True), count.sum(0, keepdim=True)
    return share(label * group, count * count.sum())


def share(part: Tensor, whole: Tensor) -> Tensor:
    """`part / whole`, and 0 where `whole` is 0."""
    return torch.where(whole > 0, part / whole.clamp(min=torch.finfo(part.dtype).tiny), 0.0)


def rates(sums: Cells, notion: Notion) -> tuple[Tensor, Tensor]:
    """Each group's share of positive predictions, and whether the group has any examples."""
    positive, count = notion.compared(sums.positive).sum(0), notion.compared(sums.count).sum(0)
    return share(positive, count), count > 0


def gap(sums: Cells, notion: Notion) -> tuple[Tensor, Tensor]:
    """The unfairness of a model: a gap between groups' positive rates, and whether it is defined.

    With two groups, the rate of group 0 minus that of group 1, with its sign. With more, the
    largest distance between a group's rate and everyone's.
    """
    rate, known = rates(sums, notion)
    if rate.shape[-1] == 2:
        return torch.where(known.all(), rate[0] - rate[1], 0.0), known.all()
    everyone = share(notion.compared(sums.positive).sum(), notion.compared(sums.count).sum())
    return gap_to_everyone(rate, everyone, known), known.sum() >= 2


def local_gap(sums: Cells, notion: Notion, least: int) -> tuple[Tensor, Tensor]:
    """A client's own gap, and whether the client reports it.

    It does not if one of the compared cells has some examples, but fewer than `least`.
    """
    value, known = gap(sums, notion)
    count = notion.compared(sums.count)
    return value, known & ((count == 0) | (count >= least)).all()


def correct(sums: Cells) -> Tensor:
    """The number of correct predictions."""
    return sums.positive[1].sum() + sums.count[0].sum() - sums.positive[0].sum()


def accuracy(sums: Cells) -> Tensor:
    """The share of correct predictions."""
    return share(correct(sums), sums.count.sum())


def margin(task: Task, outputs: Tensor) -> Tensor:
    """How strongly each output favours the positive class: the log odds, or the score itself."""
    if task.loss_name == "cross_entropy":
        return outputs[..., 1] - outputs[..., 0]
    return outputs.squeeze(-1)
