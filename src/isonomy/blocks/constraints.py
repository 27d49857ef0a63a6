"""Bounds on the mean losses of cells of examples: what a group-fair method may have to keep.

A constraint says which cells there are, which examples are in each, and how large each cell's
mean loss may be: r_z(w) = mean loss over cell z - bound_z <= 0. As the mean of convex losses is
convex, so is r. To write another, subclass `Constraints`, give `members`, `bounds` and `names`,
and name the class by its import path.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softmax

from isonomy.blocks.descent import Objective
from isonomy.core.client import Client
from isonomy.core.examples import Split
from isonomy.core.importing import from_path
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree, add
from isonomy.core.verdict import About
from isonomy.errors import ConfigError, unknown

Columns = tuple[int, ...]


@dataclass(frozen=True)
class Constraints(ABC):
    """Abstract. `zeta` bounds every cell, `zetas` bounds by label; `attributes` as in `columns`."""

    slack: ClassVar[bool] = True  # whether the multipliers may sum to less than B
    asks: ClassVar[bool] = True  # whether there is something to certify

    zeta: float
    zetas: tuple[float, ...] = ()
    attributes: tuple[str, ...] = ()

    @abstractmethod
    def members(self, task: Task, batch: Batch) -> Tensor:
        """1 where an example [n] is in a cell [Z], else 0. Pure, and safe under vmap."""

    @abstractmethod
    def bounds(self, task: Task) -> Tensor:
        """What each cell's mean loss may be at most, [Z], in double precision."""

    @abstractmethod
    def names(self, about: About) -> list[str]:
        """Each cell in words."""


@dataclass(frozen=True)
class BGL(Constraints):
    """Bounded group loss: E[loss | A = a] <= zeta for every group a."""

    def members(self, task: Task, batch: Batch) -> Tensor:
        """A cell for each group of each attribute."""
        return groups_of(task, batch, columns(task, self.attributes))

    def bounds(self, task: Task) -> Tensor:
        """The same for all."""
        if self.zetas:
            raise ConfigError("algorithm.zetas is for cbgl, by label; bgl has one bound, zeta.")
        cells = sum(sizes(task, columns(task, self.attributes)))
        return torch.full((cells,), self.zeta, dtype=torch.float64)

    def names(self, about: About) -> list[str]:
        """`sex = Male`, `sex*race = Male & Other`."""
        return group_names(about, columns(about.task, self.attributes))


@dataclass(frozen=True)
class CBGL(Constraints):
    """Conditional bounded group loss: E[loss | A = a, Y = y] <= zeta_y for every a and y.

    A label whose bound is inf has no cell.
    """

    def members(self, task: Task, batch: Batch) -> Tensor:
        """A cell for each group and each label that has a bound."""
        groups = groups_of(task, batch, columns(task, self.attributes))
        labels = (batch.y.unsqueeze(-1) == torch.tensor(self._labels(task))).to(groups.dtype)
        return (groups.unsqueeze(-1) * labels.unsqueeze(-2)).flatten(-2)

    def bounds(self, task: Task) -> Tensor:
        """Each label's bound, group after group."""
        by_label = [self._zetas(task)[y] for y in self._labels(task)]
        groups = sum(sizes(task, columns(task, self.attributes)))
        return torch.tensor(by_label * groups, dtype=torch.float64)

    def names(self, about: About) -> list[str]:
        """`sex = Male, label rearrested`."""
        words = about.labels or tuple(str(y) for y in range(about.task.classes))
        groups = group_names(about, columns(about.task, self.attributes))
        return [f"{g}, label {words[y]}" for g in groups for y in self._labels(about.task)]

    def _zetas(self, task: Task) -> tuple[float, ...]:
        if task.classes < 2:
            raise ConfigError("cbgl bounds losses by label, and this is a regression; use bgl.")
        if self.zetas and len(self.zetas) != task.classes:
            raise ConfigError(
                f"algorithm.zetas has {len(self.zetas)} bounds for {task.classes} labels; give one "
                "for each, inf where there is none."
            )
        return self.zetas or (self.zeta,) * task.classes

    def _labels(self, task: Task) -> list[int]:
        found = [y for y, zeta in enumerate(self._zetas(task)) if zeta < math.inf]
        if not found:
            raise ConfigError("algorithm.zetas bounds no label; give a number for at least one.")
        return found


@dataclass(frozen=True)
class MinMax(BGL):
    """The worst group's loss as the objective: zeta = 0, the multipliers on the simplex."""

    slack: ClassVar[bool] = False
    asks: ClassVar[bool] = False


KINDS: dict[str, type[Constraints]] = {"bgl": BGL, "cbgl": CBGL, "minmax": MinMax}


def constraints(
    kind: str, zeta: float, zetas: tuple[float, ...], attributes: tuple[str, ...]
) -> Constraints:
    """The constraints of that name, or by 'package.module:Class' a user's own."""
    if ":" in kind:
        found = from_path("constraint", kind)
        if not (isinstance(found, type) and issubclass(found, Constraints)):
            raise ConfigError(
                f"constraint '{kind}' is not a subclass of isonomy.blocks.constraints.Constraints; "
                "name a class that is."
            )
        return found(zeta, zetas, attributes)
    if kind not in KINDS:
        raise ConfigError(unknown("constraint", kind, KINDS))
    return KINDS[kind](zeta, zetas, attributes)


# --- groups ---------------------------------------------------------------------------------------


def columns(task: Task, attributes: tuple[str, ...]) -> list[Columns]:
    """The columns of each protected attribute that is named; `sex*race` is an intersection.

    None named: all the data's attributes, each by itself.
    """
    if not task.levels:
        raise ConfigError(
            "the data has no protected attribute, so there are no groups; name some in "
            "data.protected."
        )
    known = task.attributes or tuple(str(i) for i in range(len(task.levels)))
    out: list[Columns] = []
    for wanted in attributes or known:
        # the data may hold an intersection as an attribute of its own
        parts = [wanted] if wanted in known else [part.strip() for part in wanted.split("*")]
        for part in parts:
            if part not in known:
                raise ConfigError(
                    f"algorithm.attributes: {unknown('protected attribute', part, known)}"
                )
        out.append(tuple(known.index(part) for part in parts))
    return out


def sizes(task: Task, at: list[Columns]) -> list[int]:
    """The number of groups of each."""
    return [math.prod(task.levels[c] for c in one) for one in at]


def groups_of(task: Task, batch: Batch, at: list[Columns]) -> Tensor:
    """1 where an example is in a group, else 0, [n, groups of all]; no group where it is not told.

    An intersection's groups run over its last attribute first.
    """
    parts = []
    for one, count in zip(at, sizes(task, at), strict=True):
        index = torch.zeros_like(batch.groups[:, 0])
        told = torch.ones_like(index, dtype=torch.bool)
        for c in one:
            level = batch.groups[:, c]
            told = told & (level >= 0) & (level < task.levels[c])
            index = index * task.levels[c] + level
        inside = torch.where(told, index, -1).unsqueeze(-1) == torch.arange(count)
        parts.append(inside.to(torch.float32))
    return torch.cat(parts, -1)


def group_names(about: About, at: list[Columns]) -> list[str]:
    """Every group in words."""
    out = []
    for one in at:
        told = [about.attributes[c] for c in one]
        title = "*".join(attribute.name for attribute in told)
        levels = [""]
        for attribute in told:
            levels = [f"{b} & {x}" if b else x for b in levels for x in attribute.levels]
        out += [f"{title} = {level}" for level in levels]
    return out


# --- what clients measure and the server makes of it ----------------------------------------------


def told(inner: Constraints, task: Task, client: Client, split: Split, least: int) -> Tensor:
    """1 for a cell [Z] whose figures the client tells: one with at least `least` examples."""
    counts = [
        (inner.members(task, page) * page.weight.unsqueeze(-1)).double().sum(0)
        for page in client.pages(split)
    ]
    return (torch.stack(counts).sum(0) >= max(least, 1)).double()


def cell_sums(
    inner: Constraints, task: Task, params: Params, client: Client, split: Split, least: int
) -> Tree:
    """A client's sums over each cell [Z]: of losses, their squares, and the number of examples."""
    total: Tree = None
    for page in client.pages(split):
        at = (inner.members(task, page) * page.weight.unsqueeze(-1)).double()
        losses = task.losses(params, page).double().unsqueeze(-1)
        part = {
            "losses": (at * losses).sum(0),
            "squares": (at * losses.square()).sum(0),
            "count": at.sum(0),
        }
        total = part if total is None else add(total, part)
    shown = told(inner, task, client, split, least)
    return {name: value * shown for name, value in total.items()}


def weighted_losses(task: Task, say: Callable[[Batch], Tensor], scale: float = 1.0) -> Objective:
    """The mean over a batch of each example's weight `say` times its loss, divided by `scale`."""

    def objective(params: Params, batch: Batch) -> Tensor:
        losses: Tensor = task.losses(params, batch) * say(batch) * batch.weight
        return losses.sum() / batch.weight.sum().clamp(min=1) / scale

    return objective


def violations(losses: Tensor, count: Tensor, bounds: Tensor) -> Tensor:
    """r_z; a cell without examples has loss 0, so it asks for nothing."""
    return losses / count.clamp(min=1) - bounds


def multipliers(theta: Tensor, B: float, slack: bool = True) -> Tensor:
    """lambda_z = B exp(theta_z) / (1 + sum_z' exp(theta_z')), whatever the size of theta.

    The 1 is the slack: |lambda| stays below B. Without it lambda sums to B.

    >>> multipliers(torch.zeros(3), 8.0).tolist()
    [2.0, 2.0, 2.0]
    """
    if not slack:
        return B * softmax(theta, 0)
    return B * softmax(torch.cat([torch.zeros_like(theta[:1]), theta]), 0)[1:]
