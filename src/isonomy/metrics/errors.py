"""What a client reports about the size of its errors: sums over examples, by group.

For classes with a likelihood (cross-entropy and logistic loss) it is the squared error of the
predicted probabilities; for regression the squared and absolute error of the predicted number, and
the labels with their squares, of which the variance follows. They are exact, and are added over
pages of examples and over clients. The row axis is that of `isonomy.metrics.counts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from isonomy.core.examples import Attribute
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, DataError
from isonomy.metrics.counts import Floats, row_index
from isonomy.metrics.scores import positive_score

OF_CLASSES = ("size", "squared")
OF_NUMBERS = ("size", "squared", "absolute", "label", "label squared")
"""What is summed: the parts of the last axis, for classes and for regression."""


def has_errors(task: Task) -> bool:
    """Whether the task has errors that can be summed; the hinge loss defines no probabilities."""
    return task.loss_name != "hinge"


def error_sums(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """The sums of one page of one client's examples, [1 + G, parts]; safe under `vmap`.

    The parts are `OF_NUMBERS` for regression, otherwise `OF_CLASSES`. With two classes the squared
    error is that of the probability of class 1; with more, the squared errors of all classes'
    probabilities are added. Raises ConfigError if the task has no such errors.
    """
    if not has_errors(task):
        raise ConfigError(
            f"the loss '{task.loss_name}' defines no probabilities, so their errors cannot be "
            "measured: use cross_entropy or logistic."
        )
    row, is_in = row_index(task, batch)
    each = torch.stack(_each(task, outputs.to(torch.float64), batch.y))
    # `where`, not a product: values of padding may be NaN
    kept = torch.where(is_in.unsqueeze(1), each, 0.0).permute(1, 0, 2).flatten(1)
    sums = torch.zeros(len(each), 1 + sum(task.levels), dtype=torch.float64, device=outputs.device)
    at = row.flatten().unsqueeze(0).expand(len(each), -1)
    return sums.scatter_add(1, at, kept).T


def _each(task: Task, outputs: Tensor, y: Tensor) -> list[Tensor]:
    """The parts of each example, in the order of `OF_CLASSES` or `OF_NUMBERS`."""
    label = y.to(torch.float64)
    if not task.classes:
        error = outputs.squeeze(-1) - label
        return [torch.ones_like(label), error.square(), error.abs(), label, label.square()]
    if task.classes == 2:
        return [torch.ones_like(label), (positive_score(task, outputs) - label).square()]
    chances = outputs.softmax(-1)
    truth = (y.unsqueeze(-1) == torch.arange(outputs.shape[-1])).to(torch.float64)
    return [torch.ones_like(label), (chances - truth).square().sum(-1)]


@dataclass(frozen=True, eq=False)
class Errors:
    """Every client's sums on one split: `sums[k, g, m]` is part m of client k in row g."""

    sums: Floats
    attributes: tuple[Attribute, ...] = ()

    def __post_init__(self) -> None:
        rows, shape = 1 + sum(len(a.levels) for a in self.attributes), self.sums.shape
        known = (len(OF_CLASSES), len(OF_NUMBERS))
        if len(shape) != 3 or shape[1] != rows or shape[2] not in known:
            raise DataError(
                f"sums of errors of shape {shape}: give [clients, {rows}, {known[0]} or "
                f"{known[1]}], a row for everyone and one for each of the {rows - 1} groups."
            )
        object.__setattr__(self, "sums", self.sums.astype(np.float64, copy=False))

    @classmethod
    def join(cls, parts: Sequence[Errors]) -> Errors:
        """The clients of all parts, concatenated. Raises DataError if the parts do not match."""
        if not parts:
            raise DataError("no sums of errors to join: give at least one part.")
        for part in parts[1:]:
            parts[0]._check(part)
        return cls(np.concatenate([part.sums for part in parts]), parts[0].attributes)

    def __len__(self) -> int:
        return int(self.sums.shape[0])

    def __add__(self, other: Errors) -> Errors:
        return self.merge(other)

    def merge(self, other: Errors) -> Errors:
        """Add another page of the same clients. Raises DataError if the pages do not match."""
        self._check(other)
        if len(self) != len(other):
            raise DataError(
                f"pages of {len(self)} and of {len(other)} clients: merge pages of the same "
                "clients (Errors.join concatenates different clients)."
            )
        return replace(self, sums=self.sums + other.sums)

    def pooled(self) -> Errors:
        """All clients' examples together, as one client."""
        return replace(self, sums=self.sums.sum(0, keepdims=True))

    def only(self, clients: int | ArrayLike) -> Errors:
        """These clients only, by number or by a boolean mask, in the given order."""
        at = np.atleast_1d(np.asarray(clients))
        return replace(self, sums=self.sums[at if at.dtype == np.bool_ else at.astype(np.int64)])

    @property
    def regression(self) -> bool:
        """Whether these are errors of predicted numbers."""
        return bool(self.sums.shape[-1] == len(OF_NUMBERS))

    def _check(self, other: Errors) -> None:
        if self.sums.shape[1:] != other.sums.shape[1:] or self.attributes != other.attributes:
            raise DataError(
                f"sums of errors {other.sums.shape[1:]} do not match {self.sums.shape[1:]}: sum "
                "both with the same task and attributes."
            )
