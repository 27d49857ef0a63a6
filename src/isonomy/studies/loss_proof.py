"""Whether a linear model can meet requirements on losses at all, proved on the training examples.

The losses of a linear model are convex in its weights, so the least violation that any model can
attain is bracketed from both sides (`isonomy.blocks.feasibility`), as PFFL does for its bounds. A
lower end above 0 proves that no linear model meets the requirements on the training examples; an
upper end of at most 0 proves that one does. Here a cell is everyone, a client, or a group. If
clients may have their own models, the minimum is over one linear model per client.

The minimum is over weights of length at most `isonomy.blocks.saddle.RADIUS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import saddle
from isonomy.blocks.feasibility import Attainable, least_violation
from isonomy.core import tree
from isonomy.core.task import Batch
from isonomy.core.tree import Tree
from isonomy.metrics.requirements import Requirement
from isonomy.runs.build import Setting

CURVES = 20  # largest number of sums for one minimum
PROVED = 1e-6  # a violation of this size can be a rounding error
MOST = 4e9  # rows times squared weights of the largest problem that is solved


@dataclass(frozen=True)
class LossProof:
    """What is proved about requirements on losses, for one model or for one model per client.

    `low` and `high` are the ends of the least violation that any such model attains: some
    requirement is missed by at least `low` in every model, and by at most `high` in the best one.
    """

    requirements: tuple[Requirement, ...]
    personal: bool
    low: float
    high: float
    examples: int

    @property
    def infeasible(self) -> bool:
        """Whether no model meets the requirements."""
        return self.low > PROVED

    @property
    def text(self) -> str:
        """The result as a sentence."""
        which = "set of linear models, one per client," if self.personal else "linear model"
        every = " and ".join(one.text for one in self.requirements)
        on = f"on the {self.examples:,} training examples"
        if self.infeasible:
            return (
                f"No {which} meets {every} {on}: in every one, a bound is missed by at least "
                f"{self.low:.4f}, and in the best one by at most {self.high:.4f}."
            )
        if self.high <= 0:
            return f"Some {which} meets {every} {on}; other examples may differ."
        return (
            f"It is not known whether a {which} meets {every} {on}: the least violation is between "
            f"{self.low:+.4f} and {self.high:+.4f}."
        )


class _Cell(NamedTuple):
    """The examples whose mean loss is bounded: of a client, of a group, or all."""

    client: int | None
    column: int | None
    level: int
    bound: float


def loss_proofs(setting: Setting, requirements: Sequence[Requirement]) -> tuple[LossProof, ...]:
    """What can be proved: for one linear model and, if that fails, for one model per client.

    Empty without a requirement on losses, or if the model is not linear or too large.
    """
    wanted = tuple(one for one in requirements if one.target.quantity.is_loss)
    federation, params = setting.federation, setting.params
    weights = sum(p.numel() for p in params.values())
    rows = int(federation.sizes("train").sum())
    if not wanted or not saddle.measurable(setting.task, params) or rows * weights**2 > MOST:
        return ()
    cells = [cell for one in wanted for cell in _cells(setting, one)]
    out = []
    for personal in (False, True):
        found = _bracket(setting, cells, personal)
        out.append(LossProof(wanted, personal, found.low, found.high, rows))
        if not out[0].infeasible:
            break
    return tuple(out)


def _cells(setting: Setting, requirement: Requirement) -> list[_Cell]:
    federation, target = setting.federation, requirement.target
    if target.quantity.whose == "clients":
        return [_Cell(k, None, 0, requirement.bound) for k in range(len(federation))]
    if target.quantity.whose == "everyone":
        return [_Cell(None, None, 0, requirement.bound)]
    names = [attribute.name for attribute in federation.attributes]
    column = names.index(target.attribute)
    levels = len(federation.attributes[column].levels)
    return [_Cell(None, column, level, requirement.bound) for level in range(levels)]


def _bracket(setting: Setting, cells: Sequence[_Cell], personal: bool) -> Attainable:
    """The least violation of one model, or of one model per client."""
    task, federation = setting.task, setting.federation
    batches, inside = [], []
    for k in range(len(federation)):
        at = federation.rows(k, "train")
        x, y, groups = federation.x[at], federation.y[at], federation.groups[at]
        batches.append(Batch(x, y, groups, torch.ones(len(y))))
        inside.append(torch.stack([_members(cell, k, groups) for cell in cells], 1))
    size = torch.stack([one.sum(0) for one in inside]).sum(0)
    known = size > 0  # a group without training examples cannot be violated
    share = torch.where(known, 1 / size.clamp(min=1), 0.0)
    bounds = torch.tensor([cell.bound for cell in cells], dtype=torch.float64)
    start = torch.zeros_like(saddle.matrix(setting.params))
    who = [[k] for k in range(len(batches))] if personal else [list(range(len(batches)))]
    starts = [start for _ in who]

    def losses(at: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(bounds)
        for members, weights in zip(who, at, strict=True):
            for k in members:
                total = total + inside[k].T @ saddle.losses(task, weights, batches[k])
        return (total * share - bounds)[known]

    def lowest(inner: Tensor) -> tuple[Tensor, float]:
        lam = torch.zeros_like(bounds).masked_scatter(known, inner)
        bound = -float(lam @ bounds)
        for i, members in enumerate(who):
            weight = [inside[k] @ (lam * share) for k in members]
            some = [batches[k] for k in members]
            reached = saddle.minimised(_curve(setting, some, weight), starts[i], CURVES)
            starts[i] = reached.at
            got = _summed(
                [
                    saddle.dual(task, reached.at, reached.move, batch, w)
                    for batch, w in zip(some, weight, strict=True)
                ]
            )
            bound += saddle.lower_bound(got["value"], got["residual"])
        return losses(starts), bound

    return least_violation(lowest, losses(starts), torch.ones(int(known.sum())).double())


def _members(cell: _Cell, client: int, groups: Tensor) -> Tensor:
    """1 for each of a client's examples that is in the cell, else 0."""
    if cell.client is not None:
        return torch.full((len(groups),), float(cell.client == client), dtype=torch.float64)
    if cell.column is None:
        return torch.ones(len(groups), dtype=torch.float64)
    return (groups[:, cell.column] == cell.level).double()


def _curve(
    setting: Setting, batches: Sequence[Batch], weight: Sequence[Tensor]
) -> Callable[[Tensor], Tree]:
    def curve(at: Tensor) -> Tree:
        return _summed(
            [
                saddle.curvature(setting.task, at, batch, w)
                for batch, w in zip(batches, weight, strict=True)
            ]
        )

    return curve


def _summed(parts: Sequence[Tree]) -> Tree:
    total = parts[0]
    for part in parts[1:]:
        total = tree.add(total, part)
    return total
