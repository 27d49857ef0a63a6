"""What a client reports about its predictions: counts by group, label and predicted class.

Every metric of the package is arithmetic on these counts and on sums of losses. They are
added over pages of examples and over clients, so no prediction has to leave a client, and every
engine computes the same numbers.

The row axis, of length 1 + G, holds everyone first, then each level of the first protected
attribute, then each level of the second, and so on; G is the number of levels of all attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isonomy.core.examples import Attribute
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, DataError, unknown

Floats = NDArray[np.float64]


def count(
    task: Task,
    outputs: Tensor,
    batch: Batch,
    most: float = math.inf,
    decisions: Tensor | None = None,
    powers: bool = False,
) -> dict[str, Tensor]:
    """Count one page of one client's examples; safe under `torch.func.vmap`.

    Returns `counts` [1 + G, C, C] int64, the number of real examples by row, label and predicted
    class, and `loss` [1 + G, C] float64, the sum of their losses by row and label. C is the
    number of classes, or 1 for regression, where every example has label and prediction 0.
    An example whose group value is not a level of the attribute (such as -1 for "unknown") is
    counted with everyone and in no group of that attribute. A loss above `most` counts as `most`.
    `decisions` [n], if given, are the predicted classes in place of the task's own. With `powers`
    also `powers` [1 + G, 2], the sums of the squares and of the cubes of the losses.

    Raises DataError if the model has more outputs than the task has classes.
    """
    classes, rows = max(task.classes, 1), 1 + sum(task.levels)
    possible = outputs.shape[-1] if task.loss_name == "cross_entropy" else 2
    if task.classes and possible > classes:
        # Without this check, such a prediction would be counted in another row.
        raise DataError(
            f"the model has {possible} outputs but the task has {classes} classes: give the "
            "model as many outputs as there are classes."
        )
    real = batch.weight > 0
    losses = task.each_loss(outputs, batch.y).to(torch.float64).clamp(max=most)
    if task.classes:
        label = batch.y.to(torch.int64)
        predicted = task.decide(outputs) if decisions is None else decisions
    else:
        label = predicted = torch.zeros_like(real, dtype=torch.int64)

    # One flat index per example and attribute, so that no one-hot [n, 1 + G, C, C] is needed.
    row, is_in = row_index(task, batch)
    cell = row * classes + label
    # `where`, not a product: the loss of padding may be NaN, and NaN times 0 is NaN.
    loss = torch.where(is_in, losses, torch.zeros_like(losses))
    counts = torch.zeros(rows * classes * classes, dtype=torch.int64, device=outputs.device)
    sums = torch.zeros(rows * classes, dtype=torch.float64, device=outputs.device)
    counts = counts.scatter_add(0, (cell * classes + predicted).flatten(), is_in.long().flatten())
    sums = sums.scatter_add(0, cell.flatten(), loss.flatten())
    out = {
        "counts": counts.reshape(rows, classes, classes),
        "loss": sums.reshape(rows, classes),
    }
    if powers:
        zero = torch.zeros(rows, dtype=torch.float64, device=outputs.device)
        each = [zero.scatter_add(0, row.flatten(), (loss**k).flatten()) for k in (2, 3)]
        out["powers"] = torch.stack(each, -1)
    return out


def row_index(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """The rows that each example is counted in: row numbers and whether it is, [1 + A, n] each.

    There is an entry for everyone and for each of the A attributes. Padding is in no row, and an
    example of unknown group in no group of that attribute.
    """
    real = batch.weight > 0
    row, member = [torch.zeros_like(real, dtype=torch.int64)], [real]
    start = 1
    for column, levels in enumerate(task.levels):
        group = batch.groups[:, column]
        member.append(real & (group >= 0) & (group < levels))
        row.append(start + group.clamp(0, levels - 1))
        start += levels
    return torch.stack(row), torch.stack(member)


@dataclass(frozen=True, eq=False)
class Tally:
    """The sums that metrics are computed from, for everyone and for the groups of one attribute.

    Each array is float64 [..., 1 + L, C]: row 0 is everyone, then the L groups, and C the
    classes. `label` counts the examples of each class, `predicted` those predicted to be in
    it, `hit` those of that class predicted to be in it; `loss` sums the losses of the examples
    of each class. Every metric keeps leading axes (clients, bootstrap replicates).

    `values` has what was computed from histograms of scores and from sums of errors, if these were
    measured: [..., 1 + L] by name.
    """

    label: Floats
    predicted: Floats
    hit: Floats
    loss: Floats
    values: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def size(self) -> Floats:
        """The number of examples of each row, [..., 1 + L]."""
        total: Floats = self.label.sum(-1)
        return total

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.label.shape[-1])

    def only(self, rows: Sequence[int]) -> Tally:
        """A tally of these rows only."""
        at = list(rows)
        return Tally(
            self.label[..., at, :],
            self.predicted[..., at, :],
            self.hit[..., at, :],
            self.loss[..., at, :],
            {name: value[..., at] for name, value in self.values.items()},
        )


class Noise(NamedTuple):
    """The noise in counts: its variance in every cell, of the shape of the counts.

    Noise in different cells of a client's groups is independent and normal. `later` is how many
    times as large the variance will be in the counts of the test examples.
    """

    variance: Floats
    later: float = 1.0


@dataclass(frozen=True, eq=False)
class Counts:
    """Every client's counts of one split.

    `counts[k, g, y, p]` is the number of examples of client k in row g with label y and
    predicted class p; `loss[k, g, y]` is the sum of their losses. `powers[k, g]` are the sums of
    the squares and of the cubes of all losses of the row, None if these were not measured. With
    `noise`, the counts are released under differential privacy: real numbers, perhaps negative.

    >>> page = {"counts": [[[[3, 1], [0, 4]]]], "loss": [[[2.0, 1.0]]]}
    >>> both = Counts.of(page) + Counts.of(page)
    >>> both.sizes.tolist()
    [16]
    """

    counts: NDArray[np.int64]
    loss: Floats
    attributes: tuple[Attribute, ...] = ()
    powers: Floats | None = None
    noise: Noise | None = None

    def __post_init__(self) -> None:
        rows = 1 + sum(len(a.levels) for a in self.attributes)
        shape = self.counts.shape
        if len(shape) != 4 or shape[1] != rows or shape[2] != shape[3] or shape[2] < 1:
            raise DataError(
                f"counts of shape {shape}: give [clients, {rows}, classes, classes], a row for "
                f"everyone and one for each of the {rows - 1} groups."
            )
        if self.loss.shape != shape[:3]:
            raise DataError(f"loss sums of shape {self.loss.shape}: give {shape[:3]}.")
        if self.powers is not None and self.powers.shape != (*shape[:2], 2):
            raise DataError(f"powers of shape {self.powers.shape}: give {(*shape[:2], 2)}.")
        if self.noise is None:
            object.__setattr__(self, "counts", self.counts.astype(np.int64, copy=False))
        elif self.noise.variance.shape != shape:
            raise DataError(f"noise of shape {self.noise.variance.shape}: give {shape}.")
        object.__setattr__(self, "loss", self.loss.astype(np.float64, copy=False))

    @classmethod
    def of(
        cls, page: Mapping[str, ArrayLike | Tensor], attributes: tuple[Attribute, ...] = ()
    ) -> Counts:
        """From results of `count` stacked on a leading client axis, as `vmap` returns them."""
        return cls(_numpy(page["counts"]), _numpy(page["loss"]), attributes)

    @classmethod
    def zeros(cls, clients: int, classes: int, attributes: tuple[Attribute, ...] = ()) -> Counts:
        """Counts of 0, the start of a sum over pages; `classes` is 0 for regression."""
        rows, columns = 1 + sum(len(a.levels) for a in attributes), max(classes, 1)
        return cls(
            np.zeros((clients, rows, columns, columns), dtype=np.int64),
            np.zeros((clients, rows, columns)),
            attributes,
        )

    @classmethod
    def join(cls, parts: Sequence[Counts]) -> Counts:
        """The clients of all parts, concatenated. Raises DataError if the parts do not match."""
        if not parts:
            raise DataError("no counts to join: give at least one part.")
        for part in parts[1:]:
            parts[0]._check(part, clients=False)
        return cls(
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.loss for part in parts]),
            parts[0].attributes,
            _all(np.concatenate, [part.powers for part in parts]),
        )

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __add__(self, other: Counts) -> Counts:
        return self.merge(other)

    def merge(self, other: Counts) -> Counts:
        """Add another page of the same clients. Raises DataError if the pages do not match."""
        self._check(other, clients=True)
        return replace(
            self,
            counts=self.counts + other.counts,
            loss=self.loss + other.loss,
            powers=_all(sum, [self.powers, other.powers]),
        )

    def pooled(self) -> Counts:
        """All clients' examples together, as one client."""
        noise = self.noise
        if noise is not None:
            noise = noise._replace(variance=noise.variance.sum(0, keepdims=True))
        return replace(
            self,
            noise=noise,
            counts=self.counts.sum(0, keepdims=True),
            loss=self.loss.sum(0, keepdims=True),
            powers=None if self.powers is None else self.powers.sum(0, keepdims=True),
        )

    def only(self, clients: int | ArrayLike) -> Counts:
        """These clients only, by number or by a boolean mask, in the given order."""
        at = np.atleast_1d(np.asarray(clients))
        at = at if at.dtype == np.bool_ else at.astype(np.int64)
        powers = None if self.powers is None else self.powers[at]
        noise = self.noise
        if noise is not None:
            noise = noise._replace(variance=noise.variance[at])
        return replace(self, counts=self.counts[at], loss=self.loss[at], powers=powers, noise=noise)

    @property
    def classes(self) -> int:
        """The number of classes; 0 for regression."""
        return 0 if self.regression else int(self.counts.shape[-1])

    @property
    def regression(self) -> bool:
        """Whether the task is a regression, for which only the losses are defined."""
        return bool(self.counts.shape[-1] == 1)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Every client's number of examples, [clients]."""
        total: NDArray[np.int64] = self.counts[:, 0].sum((1, 2))
        return total

    def rows(self, attribute: str) -> slice:
        """The rows of an attribute's groups. Raises ConfigError for an unknown attribute."""
        return rows_of(self.attributes, attribute)

    def group_sizes(self, attribute: str) -> NDArray[np.int64]:
        """Every client's number of examples of each group, [clients, levels]."""
        total: NDArray[np.int64] = self.counts[:, self.rows(attribute)].sum((2, 3))
        return total

    def tally(self, attribute: str | None = None) -> Tally:
        """Each client's sums for everyone and for one attribute's groups; None: for every row."""
        if attribute is None:
            return tally_of(self.counts, self.loss)
        at = with_everyone(self.rows(attribute))
        return tally_of(self.counts[:, at], self.loss[:, at])

    def everyone(self) -> Tally:
        """Each client's sums for everyone only."""
        return tally_of(self.counts[:, :1], self.loss[:, :1])

    def _names(self) -> list[str]:
        return [each.name for each in self.attributes]

    def _check(self, other: Counts, *, clients: bool) -> None:
        mine, theirs = self.counts.shape, other.counts.shape
        if mine[1:] != theirs[1:] or self.attributes != other.attributes:
            raise DataError(
                f"counts {theirs[1:]} of {other._names()} do not match counts {mine[1:]} of "
                f"{self._names()}: count both with the same classes and attributes."
            )
        if clients and mine[0] != theirs[0]:
            raise DataError(
                f"pages of {mine[0]} and of {theirs[0]} clients: merge pages of the same clients "
                "(Counts.join concatenates different clients)."
            )


def tally_of(counts: NDArray[np.int64] | Floats, loss: Floats) -> Tally:
    """The sums of counts [..., rows, C, C], with any leading axes."""
    return Tally(
        label=counts.sum(-1).astype(np.float64),
        predicted=counts.sum(-2).astype(np.float64),
        hit=np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64),
        loss=loss,
    )


def rows_of(attributes: tuple[Attribute, ...], name: str) -> slice:
    """The rows of an attribute's groups. Raises ConfigError for an unknown attribute."""
    start = 1
    for each in attributes:
        if each.name == name:
            return slice(start, start + len(each.levels))
        start += len(each.levels)
    raise ConfigError(unknown("protected attribute", name, [each.name for each in attributes]))


def with_everyone(rows: slice) -> list[int]:
    """Row 0 and then the rows of an attribute."""
    return [0, *range(rows.start, rows.stop)]


def ratio(above: Floats, below: Floats) -> Floats:
    """`above / below`, NaN where `below` is 0."""
    above, below = np.broadcast_arrays(above, below)
    out: Floats = np.full(below.shape, np.nan)
    np.divide(above, below, out=out, where=below > 0)
    return out


def _all(join: Callable[[list[Floats]], Any], parts: Sequence[Floats | None]) -> Floats | None:
    """The parts joined; None if one is missing."""
    known = [part for part in parts if part is not None]
    return join(known) if len(known) == len(parts) else None


def _numpy(value: ArrayLike | Tensor) -> NDArray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
