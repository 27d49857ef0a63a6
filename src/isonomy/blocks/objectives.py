"""The objectives that a preference weighs: the loss, and measures of unfairness between groups.

An objective is named "error" (trained as the cross-entropy, measured as the error rate) or, as in
`isonomy.core.notions`, by a notion of fairness and a protected attribute, such as "dp.sex"; without
an attribute, the first one is used. The unfairness that is measured is not differentiable, so a
smooth dependence between group and output is trained instead:

    squared      sum over columns c and outputs j of mean_i ((a_ic - a_c) (o_ij - o_j))^2
    covariance   sum over columns c of half the sum over classes j of |mean_i (a_ic - a_c) p_ij|
    gap          the largest |mean of s_j over a group - mean of s_j| over groups and classes j

with o the logits, p the probabilities, s the probabilities of logits times `SHARP`, which are close
to decisions, and means over the batch. With two classes and two groups, `covariance` is the
absolute covariance of group and probability (eq. 2 of PraFFL and HetPFL). `gap` is our addition: a
smooth version of what is measured. The columns a are one indicator for each group, where two groups
need only one, or the group's number, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import log_softmax

from isonomy.core.notions import SINGLE_RATE, Notion, find_objectives, gap_to_everyone
from isonomy.core.task import Batch, Task
from isonomy.errors import unknown

Fairness = Literal["squared", "covariance", "gap"]
Code = Literal["one-hot", "number"]
SHARP = 3.0  # factor of the logits, so that their probabilities are close to decisions


class Aim(NamedTuple):
    """An objective: its notion of fairness, and the column of the protected attribute."""

    notion: Notion | None  # None: the error
    attribute: int  # -1 for the error


def check_names(objectives: Sequence[str]) -> None:
    """Raise ValueError unless these are names of objectives; attributes are checked by `aims`."""
    if len(objectives) < 2 or objectives[0] != "error" or len(set(objectives)) < len(objectives):
        raise ValueError(
            f"objectives = {list(objectives)}: give 'error' first, then one or more others from "
            f"{', '.join(SINGLE_RATE)}, each at most once; add an attribute as in 'dp.sex'."
        )
    for name in objectives[1:]:
        if name.partition(".")[0] not in SINGLE_RATE:
            raise ValueError(f"objectives: {unknown('objective', name, SINGLE_RATE)}")


def aims(objectives: Sequence[str], attributes: Sequence[str]) -> tuple[Aim, ...]:
    """The objectives, with the columns of their attributes.

    Raises ConfigError for an unknown attribute, and if there are no groups to compare.
    """
    return tuple(
        Aim(each.notion, attributes.index(each.attribute) if each.notion else -1)
        for each in find_objectives(objectives, attributes)
    )


class Examples(NamedTuple):
    """Examples as input of the head: latent features, labels, and the groups as columns."""

    latent: Tensor  # [n, d]
    y: Tensor  # [n]
    code: Tensor  # [n, columns]
    member: Tensor  # [n, columns]: 1 where the example counts for the column
    weight: Tensor  # [n]

    def table(self) -> Tensor:
        """All but the weights as one table of numbers, so that a batch takes one lookup."""
        y = self.y.unsqueeze(-1).to(self.latent.dtype)
        return torch.cat([self.latent, self.code, self.member, y], -1)


def take_rows(table: Tensor, rows: Tensor, weight: Tensor, columns: int) -> Examples:
    """The examples at some rows of `Examples.table`."""
    found = torch.nn.functional.embedding(rows, table)
    widths = [table.shape[-1] - 2 * columns - 1, columns, columns, 1]
    latent, code, member, y = torch.split(found, widths, -1)
    return Examples(latent, y.squeeze(-1).to(torch.int64), code, member, weight)


def columns(aim: Aim, levels: Sequence[int], code: Code) -> int:
    """The number of columns of an objective."""
    if aim.notion is None:
        return 0
    return 1 if code == "number" or levels[aim.attribute] == 2 else levels[aim.attribute]


def examples(
    latent: Tensor, batch: Batch, wanted: Sequence[Aim], levels: Sequence[int], code: Code
) -> Examples:
    """A batch with its groups as columns, objective after objective."""
    codes, members = [], []
    for aim in wanted:
        if aim.notion is None:
            continue
        width, label = columns(aim, levels, code), aim.notion.label
        group = batch.groups[:, aim.attribute]
        known = (group >= 0) & (group < levels[aim.attribute])
        known = known if label is None else known & (batch.y == label)
        if width == 1:
            column = group.unsqueeze(-1).to(latent.dtype)
        else:
            column = (group.unsqueeze(-1) == torch.arange(width)).to(latent.dtype)
        codes.append(column)
        members.append(known.unsqueeze(-1).to(latent.dtype).expand(-1, width))
    return Examples(latent, batch.y, torch.cat(codes, 1), torch.cat(members, 1), batch.weight)


def losses(
    outputs: Tensor, at: Examples, widths: Sequence[int], fairness: Fairness = "squared"
) -> Tensor:
    """The trained objectives [..., m] of outputs [..., n, o] for the same n examples.

    `widths` are the numbers of columns of the objectives after the first.
    """
    out = outputs.mT  # [..., o, n]: the long axis last, which is faster
    logs = log_softmax(out, -2)
    label = (torch.arange(out.shape[-2]).unsqueeze(-1) == at.y).to(out.dtype)
    share = at.weight / at.weight.sum().clamp(min=1)
    error = -(logs * (label * share)).sum((-1, -2))
    weight = at.weight.unsqueeze(-1) * at.member  # [n, c]
    weight = weight / weight.sum(0).clamp(min=1)
    away = at.code - (weight * at.code).sum(0)
    if fairness == "squared":
        mean = out @ weight  # [..., o, c]
        by = (weight * away.square()).T  # [c, n]
        far = out.unsqueeze(-2) - mean.unsqueeze(-1)  # [..., o, c, n]
        unfair = (far.square() * by).sum(-1).sum(-2)
    elif fairness == "covariance":
        unfair = (logs.exp() @ (weight * away)).abs().sum(-2) / 2
    else:
        unfair = _gaps(out, at.code, weight, away, widths)
        parts = [part.amax(-1) for part in torch.split(unfair, list(widths), -1)]
        return torch.stack([error, *parts], -1)
    if len(widths) == unfair.shape[-1]:
        return torch.cat([error.unsqueeze(-1), unfair], -1)
    parts = [part.sum(-1) for part in torch.split(unfair, list(widths), -1)]
    return torch.stack([error, *parts], -1)


def _gaps(out: Tensor, code: Tensor, weight: Tensor, away: Tensor, widths: Sequence[int]) -> Tensor:
    """Each column's gap [..., c]: the distance between its group's mean decision and everyone's.

    The covariance of an indicator with s is its group's share times its group's gap. A column that
    stands for two groups has the larger gap of the two, that of the group with the smaller share.
    """
    s = torch.softmax(SHARP * out, -2)
    share = (weight * code).sum(0)
    alone = torch.tensor([width == 1 for width in widths for _ in range(width)])
    least = torch.where(alone, torch.minimum(share, 1 - share), share)
    each = (s @ (weight * away)).abs().amax(-2)
    return each / least.clamp(min=1 / code.shape[0])


def measures(task: Task, outputs: Tensor, batch: Batch, wanted: Sequence[Aim]) -> Tensor:
    """The measured objectives [m] of outputs [n, o], or [R, m] of outputs [R, n, o].

    They are defined as in `isonomy.metrics`: the error rate, and the largest distance between a
    group's share predicted positive and everyone's. An attribute without examples has distance 0.
    """
    return measures_of_decisions(task, task.decide(outputs), batch, wanted)


def measures_of_decisions(
    task: Task, chosen: Tensor, batch: Batch, wanted: Sequence[Aim]
) -> Tensor:
    """As `measures`, of predicted classes [n] or [R, n]; with two classes they may be booleans."""
    real, two = batch.weight, task.classes == 2
    # With two classes, what holds of class 0 follows from class 1.
    yes = [
        (chosen if two else chosen == c).to(real.dtype) for c in range(1 if two else task.classes)
    ]
    found = []
    for aim in wanted:
        if aim.notion is None:
            total = real.sum()
            if two:
                wrong = (real * (batch.y == 1)).sum() + yes[0] @ (real * (1 - 2 * (batch.y == 1)))
            else:
                wrong = total - sum(yes[c] @ (real * (batch.y == c)) for c in range(task.classes))
            found.append(wrong / total.clamp(min=1))
            continue
        count = aim.notion.restrict(real, batch.y)
        group = batch.groups[:, aim.attribute].unsqueeze(-1)
        member = (group == torch.arange(task.levels[aim.attribute])).to(real.dtype)
        member = torch.cat([member * count.unsqueeze(-1), count.unsqueeze(-1)], 1)
        positive = yes if two or aim.notion.label is None else yes[1:2]
        size = member.sum(0).unsqueeze(-1)  # [groups and everyone, 1]
        rate = torch.stack([one @ member for one in positive], -1) / size.clamp(min=1)
        rate, whole = rate[..., :-1, :], rate[..., -1, :]
        gap = vmap(gap_to_everyone, (0, 0, None)) if chosen.dim() > 1 else gap_to_everyone
        found.append(gap(rate, whole, size[:-1] > 0))
    return torch.stack(found, -1)
