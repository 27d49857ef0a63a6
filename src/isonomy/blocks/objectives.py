"""What a preference weighs: the loss, and measures of unfairness between groups.

Objectives go by name: "error" (trained as the cross-entropy, measured as the error rate), "dp.NAME"
(demographic parity of protected attribute NAME) and "eo.NAME" (equal opportunity: the same among
the positive examples); without a name the first attribute is meant. What is trained stands in for
what is measured: the dependence between group and output,

    squared      sum over columns c and outputs j of mean_i ((a_ic - a_c) (o_ij - o_j))^2
    covariance   sum over columns c and classes j of |mean_i (a_ic - a_c) (p_ij - p_j)|
    gap          the largest |mean of s_j over a group - mean of s_j| of a group and a class j

with o the logits, p the probabilities, s those of logits times `SHARP`, which are nearly decisions,
and means over the batch. `gap` is ours: what is measured, made smooth. The columns a are one
indicator for each group, of which two groups need only one; or the group's number, as in the
authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, unknown

Fairness = Literal["squared", "covariance", "gap"]
Code = Literal["one-hot", "number"]
SHARP = 3.0  # how much steeper than the probabilities those are that stand for decisions
NOTIONS = ("dp", "eo")


class Aim(NamedTuple):
    """An objective taken apart: its notion ("error", "dp", "eo") and attribute's number."""

    notion: str
    attribute: int


def check_names(objectives: Sequence[str]) -> None:
    """Refuse what is no list of objectives; attributes are looked up when the data is there."""
    if len(objectives) < 2 or objectives[0] != "error" or len(set(objectives)) < len(objectives):
        raise ValueError(
            f"objectives = {list(objectives)}: give 'error' first, then one or more others, such "
            "as 'dp' or 'eo.sex', none of them twice."
        )
    for name in objectives[1:]:
        if name.partition(".")[0] not in NOTIONS:
            raise ValueError(
                f"objective '{name}': use 'dp' or 'eo', or with an attribute 'dp.sex'."
            )


def aims(objectives: Sequence[str], attributes: Sequence[str]) -> tuple[Aim, ...]:
    """The objectives with their attributes found, or a sentence on why not."""
    found = []
    for name in objectives:
        notion, _, attribute = name.partition(".")
        if notion == "error":
            found.append(Aim(notion, -1))
            continue
        if not attributes:
            raise ConfigError(
                f"objective '{name}' needs groups, and the data has no protected attribute; name "
                "one, or choose another algorithm."
            )
        if attribute and attribute not in attributes:
            raise ConfigError(f"objective '{name}': {unknown('attribute', attribute, attributes)}")
        found.append(Aim(notion, attributes.index(attribute) if attribute else 0))
    return tuple(found)


class Examples(NamedTuple):
    """Examples as the head sees them: latent features, labels, columns of groups."""

    latent: Tensor  # [n, d]
    y: Tensor  # [n]
    code: Tensor  # [n, columns]
    member: Tensor  # [n, columns]: 1 where the example counts for the column
    weight: Tensor  # [n]

    def table(self) -> Tensor:
        """All but the weights as one table of numbers, so that a batch is one lookup."""
        y = self.y.unsqueeze(-1).to(self.latent.dtype)
        return torch.cat([self.latent, self.code, self.member, y], -1)


def looked_up(table: Tensor, rows: Tensor, weight: Tensor, columns: int) -> Examples:
    """The examples at some rows of a table."""
    found = torch.nn.functional.embedding(rows, table)
    widths = [table.shape[-1] - 2 * columns - 1, columns, columns, 1]
    latent, code, member, y = torch.split(found, widths, -1)
    return Examples(latent, y.squeeze(-1).to(torch.int64), code, member, weight)


def columns(aim: Aim, levels: Sequence[int], code: Code) -> int:
    """How many columns an objective has."""
    if aim.notion == "error":
        return 0
    return 1 if code == "number" or levels[aim.attribute] == 2 else levels[aim.attribute]


def examples(
    latent: Tensor, batch: Batch, wanted: Sequence[Aim], levels: Sequence[int], code: Code
) -> Examples:
    """A batch with its groups as columns, those of one objective after those of another."""
    codes, members = [], []
    for aim in wanted:
        width = columns(aim, levels, code)
        if not width:
            continue
        group = batch.groups[:, aim.attribute]
        known = (group >= 0) & (group < levels[aim.attribute])
        known = known & (batch.y == 1) if aim.notion == "eo" else known
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

    `widths` are the columns of each objective but the first.
    """
    logs = log_softmax(outputs, -1)
    label = (at.y.unsqueeze(-1) == torch.arange(outputs.shape[-1])).to(outputs.dtype)
    share = at.weight / at.weight.sum().clamp(min=1)
    error = -(logs * (label * share.unsqueeze(-1))).sum((-1, -2))
    weight = at.weight.unsqueeze(-1) * at.member  # [n, c]
    weight = weight / weight.sum(0).clamp(min=1)
    away = at.code - (weight * at.code).sum(0)
    if fairness == "squared":
        mean = weight.T @ outputs  # [..., c, o]
        by = (weight * away.square()).T  # [c, n]
        far = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # [..., c, n, o]
        unfair = (far.square() * by.unsqueeze(-1)).sum((-1, -2))
    elif fairness == "covariance":
        unfair = ((weight * away).T @ logs.exp()).abs().sum(-1)
    else:
        unfair = _gaps(outputs, at.code, weight, away, widths)
        parts = [part.amax(-1) for part in torch.split(unfair, list(widths), -1)]
        return torch.stack([error, *parts], -1)
    if len(widths) == unfair.shape[-1]:
        return torch.cat([error.unsqueeze(-1), unfair], -1)
    parts = [part.sum(-1) for part in torch.split(unfair, list(widths), -1)]
    return torch.stack([error, *parts], -1)


def _gaps(
    outputs: Tensor, code: Tensor, weight: Tensor, away: Tensor, widths: Sequence[int]
) -> Tensor:
    """Each column's gap [..., c]: its group's mean decision against everyone's, or the others'.

    The covariance of an indicator with s is its group's share times its group's gap; what is not
    in the group has the rest of the share, and is a group itself where there are two.
    """
    s = torch.softmax(SHARP * outputs, -1)
    share = (weight * code).sum(0)
    alone = torch.tensor([width == 1 for width in widths for _ in range(width)])
    least = torch.where(alone, torch.minimum(share, 1 - share), share)
    each = ((weight * away).T @ s).abs().amax(-1)
    return each / least.clamp(min=1 / code.shape[0])


def measures(task: Task, outputs: Tensor, batch: Batch, wanted: Sequence[Aim]) -> Tensor:
    """The measured objectives [m] of outputs [n, o], as `isonomy.metrics` defines them.

    The error rate; the largest distance between a group's share predicted positive and everyone's.
    An attribute without examples counts as fair.
    """
    chosen = task.decide(outputs)
    real = batch.weight
    found = []
    for aim in wanted:
        if aim.notion == "error":
            wrong = (chosen != batch.y).to(real.dtype)
            found.append((wrong * real).sum() / real.sum().clamp(min=1))
            continue
        count = real * (batch.y == 1).to(real.dtype) if aim.notion == "eo" else real
        group = batch.groups[:, aim.attribute].unsqueeze(-1)
        member = (group == torch.arange(task.levels[aim.attribute])).to(real.dtype)
        member = member * count.unsqueeze(-1)  # [n, groups]
        one = task.classes == 2 or aim.notion == "eo"
        classes = torch.arange(1, 2) if one else torch.arange(task.classes)
        yes = (chosen.unsqueeze(-1) == classes).to(real.dtype)  # [n, positive classes]
        size = member.sum(0).unsqueeze(-1)
        rate = member.T @ yes / size.clamp(min=1)
        whole = (count.unsqueeze(-1) * yes).sum(0) / count.sum().clamp(min=1)
        found.append(((rate - whole).abs() * (size > 0)).amax())
    return torch.stack(found)
