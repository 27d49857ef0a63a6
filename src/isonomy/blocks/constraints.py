"""Bounds on the mean losses of cells of examples: the constraints of PFFL and Local BGL.

Constraints define the cells, which examples are in each cell, and an upper bound on each cell's
mean loss: r_z(w) = mean loss over cell z - bound_z <= 0. A mean of convex losses is convex, so r is
convex for a linear model. To write your own, subclass `Constraints`, implement `members`, `bounds`
and `names`, and give the import path of the class as the option `constraint`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softmax

from isonomy.blocks.descent import Objective
from isonomy.core.client import Client
from isonomy.core.disclosure import told
from isonomy.core.examples import Split
from isonomy.core.importing import from_path
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree, add, mix
from isonomy.core.verdict import About
from isonomy.errors import ConfigError, unknown

Columns = tuple[int, ...]
LATE = 3  # the weight of round t in the late mean grows as t to this power


@dataclass(frozen=True)
class Constraints(ABC):
    """Abstract. `zeta` bounds every cell, `zetas` each label; for `attributes` see `columns`."""

    slack: ClassVar[bool] = True  # whether the multipliers may sum to less than B
    certifies: ClassVar[bool] = True  # whether there are bounds to certify

    zeta: float
    zetas: tuple[float, ...] = ()
    attributes: tuple[str, ...] = ()

    @abstractmethod
    def members(self, task: Task, batch: Batch) -> Tensor:
        """1 where an example is in a cell, else 0, [n, Z]. Must be pure and work under vmap."""

    @abstractmethod
    def bounds(self, task: Task) -> Tensor:
        """The upper bound on each cell's mean loss, [Z], in double precision."""

    @abstractmethod
    def names(self, about: About) -> list[str]:
        """A readable name for each cell."""


@dataclass(frozen=True)
class BGL(Constraints):
    """Bounded group loss: E[loss | A = a] <= zeta for every group a."""

    def members(self, task: Task, batch: Batch) -> Tensor:
        """One cell for each group of each attribute."""
        return groups_of(task, batch, columns(task, self.attributes))

    def bounds(self, task: Task) -> Tensor:
        """The same bound for all groups."""
        if self.zetas:
            raise ConfigError(
                "algorithm.zetas gives bounds by label, which only cbgl uses; set algorithm.zeta."
            )
        cells = sum(sizes(task, columns(task, self.attributes)))
        return torch.full((cells,), self.zeta, dtype=torch.float64)

    def names(self, about: About) -> list[str]:
        """`sex = Male`, `sex*race = Male & Other`."""
        return group_names(about, columns(about.task, self.attributes))


@dataclass(frozen=True)
class CBGL(Constraints):
    """Conditional bounded group loss: E[loss | A = a, Y = y] <= zeta_y for every a and y.

    There is no cell for a label whose bound is inf.
    """

    def members(self, task: Task, batch: Batch) -> Tensor:
        """One cell for each group and each label that has a bound."""
        groups = groups_of(task, batch, columns(task, self.attributes))
        labels = (batch.y.unsqueeze(-1) == torch.tensor(self._labels(task))).to(groups.dtype)
        return (groups.unsqueeze(-1) * labels.unsqueeze(-2)).flatten(-2)

    def bounds(self, task: Task) -> Tensor:
        """The labels' bounds, repeated for each group."""
        by_label = [self._zetas(task)[y] for y in self._labels(task)]
        groups = sum(sizes(task, columns(task, self.attributes)))
        return torch.tensor(by_label * groups, dtype=torch.float64)

    def names(self, about: About) -> list[str]:
        """`sex = Male, label rearrested`."""
        labels = about.labels or tuple(str(y) for y in range(about.task.classes))
        groups = group_names(about, columns(about.task, self.attributes))
        return [f"{g}, label {labels[y]}" for g in groups for y in self._labels(about.task)]

    def _zetas(self, task: Task) -> tuple[float, ...]:
        if task.classes < 2:
            raise ConfigError(
                "algorithm.constraint = 'cbgl' bounds losses by label, but this is a regression; "
                "use bgl."
            )
        if self.zetas and len(self.zetas) != task.classes:
            raise ConfigError(
                f"algorithm.zetas has {len(self.zetas)} bounds for {task.classes} labels; give one "
                "bound for each label, inf for no bound."
            )
        return self.zetas or (self.zeta,) * task.classes

    def _labels(self, task: Task) -> list[int]:
        found = [y for y, zeta in enumerate(self._zetas(task)) if zeta < math.inf]
        if not found:
            raise ConfigError(
                "algorithm.zetas bounds no label; give a finite bound for at least one."
            )
        return found


@dataclass(frozen=True)
class MinMax(BGL):
    """The worst group's loss as the objective: zeta = 0, with multipliers on the simplex."""

    slack: ClassVar[bool] = False
    certifies: ClassVar[bool] = False


KINDS: dict[str, type[Constraints]] = {"bgl": BGL, "cbgl": CBGL, "minmax": MinMax}


def constraints(
    kind: str, zeta: float, zetas: tuple[float, ...], attributes: tuple[str, ...]
) -> Constraints:
    """The constraints of that name, or a user's own class by 'package.module:Class'.

    Raises ConfigError for an unknown name or a class that is not a subclass of `Constraints`.
    """
    if ":" in kind:
        found = from_path("constraint", kind)
        if not (isinstance(found, type) and issubclass(found, Constraints)):
            raise ConfigError(
                f"algorithm.constraint: '{kind}' is not a subclass of "
                "isonomy.blocks.constraints.Constraints; name a class that is."
            )
        return found(zeta, zetas, attributes)
    if kind not in KINDS:
        raise ConfigError(f"algorithm.constraint: {unknown('constraint', kind, KINDS)}")
    return KINDS[kind](zeta, zetas, attributes)


# --- groups ---------------------------------------------------------------------------------------


def columns(task: Task, attributes: tuple[str, ...]) -> list[Columns]:
    """The columns of each protected attribute that is named; `sex*race` is an intersection.

    If none is named, each of the data's attributes by itself. Raises ConfigError for an unknown
    attribute, or if the data has none.
    """
    if not task.levels:
        raise ConfigError(
            "the algorithm compares groups, but the data has no protected attribute; name one in "
            "data.protected."
        )
    known = task.attributes or tuple(str(i) for i in range(len(task.levels)))
    out: list[Columns] = []
    for wanted in attributes or known:
        # the data may already have the intersection as one attribute
        parts = [wanted] if wanted in known else [part.strip() for part in wanted.split("*")]
        for part in parts:
            if part not in known:
                raise ConfigError(
                    f"algorithm.attributes: {unknown('protected attribute', part, known)}"
                )
        out.append(tuple(known.index(part) for part in parts))
    return out


def sizes(task: Task, at: list[Columns]) -> list[int]:
    """The number of groups of each attribute or intersection."""
    return [math.prod(task.levels[c] for c in one) for one in at]


def groups_of(task: Task, batch: Batch, at: list[Columns]) -> Tensor:
    """1 where an example is in a group, else 0, [n, groups of all]; 0 if its group is unknown.

    In the groups of an intersection, the last attribute varies fastest.
    """
    parts = []
    for one, count in zip(at, sizes(task, at), strict=True):
        index = torch.zeros_like(batch.groups[:, 0])
        known = torch.ones_like(index, dtype=torch.bool)
        for c in one:
            level = batch.groups[:, c]
            known = known & (level >= 0) & (level < task.levels[c])
            index = index * task.levels[c] + level
        inside = torch.where(known, index, -1).unsqueeze(-1) == torch.arange(count)
        parts.append(inside.to(torch.float32))
    return torch.cat(parts, -1)


def group_names(about: About, at: list[Columns]) -> list[str]:
    """A readable name for each group."""
    out = []
    for one in at:
        attributes = [about.attributes[c] for c in one]
        title = "*".join(attribute.name for attribute in attributes)
        levels = [""]
        for attribute in attributes:
            levels = [f"{b} & {x}" if b else x for b in levels for x in attribute.levels]
        out += [f"{title} = {level}" for level in levels]
    return out


# --- what clients measure, and what the server computes from it -----------------------------------


def reported(inner: Constraints, task: Task, client: Client, split: Split, least: int) -> Tensor:
    """1 for each cell [Z] whose sums the client reports: those that are told with `least`."""
    counts = [
        (inner.members(task, page) * page.weight.unsqueeze(-1)).double().sum(0)
        for page in client.pages(split)
    ]
    count = torch.stack(counts).sum(0)
    return told_by_attribute(task, inner.attributes, count, max(least, 1)).double()


def told_by_attribute(task: Task, attributes: tuple[str, ...], count: Tensor, least: int) -> Tensor:
    """Which counts [Z] are told: for each label, the groups of an attribute are all examples.

    A user's own constraints, whose cells are not the groups of attributes, are one set of cells.
    """
    numbers = sizes(task, columns(task, attributes))
    labels, rest = divmod(len(count), sum(numbers))
    if rest:
        return told(count, least)
    tables = torch.split(count.reshape(-1, labels), numbers)  # [groups, labels] each
    return torch.cat([told(table.T, least).T for table in tables]).flatten()


def cell_sums(
    inner: Constraints, task: Task, params: Params, client: Client, split: Split, least: int
) -> Tree:
    """A client's sums over each cell [Z]: of losses, their squares and cubes, and of examples."""
    total: Tree = None
    for page in client.pages(split):
        at = (inner.members(task, page) * page.weight.unsqueeze(-1)).double()
        losses = task.losses(params, page).double().unsqueeze(-1)
        part = {
            "losses": (at * losses).sum(0),
            "squares": (at * losses.square()).sum(0),
            "cubes": (at * losses**3).sum(0),
            "count": at.sum(0),
        }
        total = part if total is None else add(total, part)
    kept = reported(inner, task, client, split, least)
    return {name: value * kept for name, value in total.items()}


def weighted_losses(
    task: Task, weights: Callable[[Batch], Tensor], scale: float = 1.0
) -> Objective:
    """The mean over a batch of each example's weight times its loss, divided by `scale`."""

    def objective(params: Params, batch: Batch) -> Tensor:
        losses: Tensor = task.losses(params, batch) * weights(batch) * batch.weight
        return losses.sum() / batch.weight.sum().clamp(min=1) / scale

    return objective


def violations(losses: Tensor, count: Tensor, bounds: Tensor) -> Tensor:
    """r_z; a cell without examples has loss 0, so it is not violated."""
    return losses / count.clamp(min=1) - bounds


def multipliers(theta: Tensor, B: float, slack: bool = True) -> Tensor:
    """lambda_z = B exp(theta_z) / (1 + sum_z' exp(theta_z')), without overflow for large theta.

    The 1 is the slack: the sum of lambda stays below B. Without slack, lambda sums to B.

    >>> multipliers(torch.zeros(3), 8.0).tolist()
    [2.0, 2.0, 2.0]
    """
    if not slack:
        return B * softmax(theta, 0)
    return B * softmax(torch.cat([torch.zeros_like(theta[:1]), theta]), 0)[1:]


def mixed(mean: Params, new: Params, done: Tensor, report: str) -> tuple[Params, Tensor]:
    """The mean of models after `done` earlier ones, and the weight of the new one in it.

    With `late`, the model of round t has a weight that grows as t^3, so that the early rounds fade;
    otherwise all have the same weight.
    """
    growth = LATE if report == "late" else 0
    weight = (growth + 1) / (done + 1 + growth)
    return mix(mean, new, weight.float()), weight


# --- the step of the multipliers ------------------------------------------------------------------


class Ascent(NamedTuple):
    """What the multipliers follow: theta = rate * total."""

    total: Tensor  # [Z]: the sum of all r so far
    regret: Tensor  # what mixing has cost so far, from which the rate follows


def no_ascent(cells: int) -> Ascent:
    """Before the first step."""
    return Ascent(torch.zeros(cells, dtype=torch.float64), torch.zeros((), dtype=torch.float64))


def rate(state: Ascent, slack: bool) -> Tensor:
    """The rate of AdaHedge (de Rooij et al., 2014): log(n) / regret, for n multipliers.

    It is unbounded (here 1e12 log(n)) before the first step, whose r thereby sets the scale.
    """
    return math.log(max(len(state.total) + slack, 2)) / state.regret.clamp(min=1e-12)


def ascended(state: Ascent, r: Tensor, slack: bool) -> Ascent:
    """One step of ascent; `regret` grows by the step's mixability gap.

    The gap is log(sum_z p_z exp(rate r_z)) / rate - sum_z p_z r_z, with p = lambda / B and r = 0
    for the slack: it is large if multipliers that have weight differ in r, and 0 if one has all the
    weight.
    """
    eta = rate(state, slack)
    zero = torch.zeros_like(r[:1])
    theta = eta * state.total
    p = softmax(torch.cat([zero, theta]) if slack else theta, 0)
    gain = torch.cat([zero, r]) if slack else r
    top = gain.max()
    soft = top + torch.log((p * torch.exp(eta * (gain - top))).sum()) / eta
    return Ascent(state.total + r, state.regret + (soft - (p * gain).sum()).clamp(min=0))
