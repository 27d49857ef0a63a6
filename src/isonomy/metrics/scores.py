"""What a client reports about its scores: how many examples have a score in each of many bins.

The score of an example is the predicted probability of class 1, so scores exist for two classes
and for losses that are likelihoods (cross-entropy and logistic). Histograms are added over pages of
examples and over clients, as `isonomy.metrics.counts` are, and have the same row axis.

Bin b of B holds the scores from b / B (included) up to (b + 1) / B (excluded; the last bin includes
1). A decision is "score > threshold". At the threshold `cut(b)`, the largest number below b / B,
the positive decisions are exactly the examples in bins b, b + 1, ..., so that what is counted in a
histogram is what such a threshold decides. The threshold .5 is the decision of the task itself; it
differs from `cut(500)` only for a score of exactly .5, which the task decides to be negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isonomy.core.examples import Attribute
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, DataError
from isonomy.metrics.counts import row_index, rows_of

BINS = 1000
"""The number of bins of a histogram of scores."""


def has_scores(task: Task) -> bool:
    """Whether the task has scores: two classes, and a loss that is a likelihood."""
    return task.classes == 2 and task.loss_name in ("cross_entropy", "logistic")


def positive_score(task: Task, outputs: Tensor) -> Tensor:
    """The predicted probability of class 1 of each example, [n] float64.

    Raises ConfigError if the task has no scores.
    """
    if not has_scores(task):
        why = f"the loss '{task.loss_name}'" if task.classes == 2 else f"{task.classes} classes"
        raise ConfigError(
            f"scores are defined for two classes and the losses cross_entropy and logistic, and "
            f"this task has {why}: use metrics of decisions and losses instead."
        )
    wide = outputs.to(torch.float64)
    if task.loss_name == "cross_entropy":
        return torch.sigmoid(wide[..., 1] - wide[..., 0])
    return torch.sigmoid(wide.squeeze(-1))


def cut(place: int, bins: int = BINS) -> float:
    """The threshold at which the scores in bins `place`, `place` + 1, ... are positive.

    >>> cut(250) < 0.25, cut(0) < 0.0, cut(1000)  # at the last, no score is
    (True, True, 1.0)
    """
    if place >= bins:
        return 1.0
    return math.nextafter(place / bins, -math.inf)


def bin_of(score: Tensor, bins: int = BINS) -> Tensor:
    """The bin of each score; a score of exactly b / bins is in bin b. Safe under vmap."""
    near = torch.floor(score * bins)
    # The product is rounded: .57 * 100 is 56.99999999999999. Quotients decide at the edges.
    near = near + (score >= (near + 1) / bins).to(near.dtype) - (score < near / bins).to(near.dtype)
    return near.nan_to_num(0.0).clamp(0, bins - 1).to(torch.int64)


def histogram(task: Task, outputs: Tensor, batch: Batch, bins: int = BINS) -> Tensor:
    """Count one page of one client's examples; safe under `torch.func.vmap`.

    Returns [1 + G, 2, bins] int64, the number of real examples by row, label and bin of the score.
    Raises ConfigError if the task has no scores.
    """
    row, is_in = row_index(task, batch)
    label, place = batch.y.to(torch.int64), bin_of(positive_score(task, outputs), bins)
    rows = 1 + sum(task.levels)
    counts = torch.zeros(rows * 2 * bins, dtype=torch.int64, device=outputs.device)
    cell = (row * 2 + label) * bins + place
    counts = counts.scatter_add(0, cell.flatten(), is_in.long().flatten())
    return counts.reshape(rows, 2, bins)


@dataclass(frozen=True, eq=False)
class Scores:
    """Every client's histograms of scores on one split.

    `counts[k, g, y, b]` is the number of examples of client k in row g with label y and a score in
    bin b.

    >>> page = Scores(np.array([[[[3, 1], [0, 4]]]]))
    >>> (page + page).pooled().sizes.tolist()
    [16]
    """

    counts: NDArray[np.integer]
    attributes: tuple[Attribute, ...] = ()

    def __post_init__(self) -> None:
        rows = 1 + sum(len(a.levels) for a in self.attributes)
        shape = self.counts.shape
        if len(shape) != 4 or shape[1] != rows or shape[2] != 2 or shape[3] < 1:
            raise DataError(
                f"histograms of shape {shape}: give [clients, {rows}, 2, bins], a row for "
                f"everyone and one for each of the {rows - 1} groups."
            )
        if not np.issubdtype(self.counts.dtype, np.integer):
            raise DataError(f"histograms of type {self.counts.dtype}: give whole numbers.")

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """The clients of all parts, concatenated. Raises DataError if the parts do not match."""
        if not parts:
            raise DataError("no histograms to join: give at least one part.")
        for part in parts[1:]:
            parts[0]._check(part)
        return cls(np.concatenate([part.counts for part in parts]), parts[0].attributes)

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __add__(self, other: Scores) -> Scores:
        return self.merge(other)

    def merge(self, other: Scores) -> Scores:
        """Add another page of the same clients. Raises DataError if the pages do not match."""
        self._check(other)
        if len(self) != len(other):
            raise DataError(
                f"pages of {len(self)} and of {len(other)} clients: merge pages of the same "
                "clients (Scores.join concatenates different clients)."
            )
        return replace(self, counts=self.counts.astype(np.int64) + other.counts)

    def pooled(self) -> Scores:
        """All clients' examples together, as one client."""
        return replace(self, counts=self.counts.sum(0, keepdims=True, dtype=np.int64))

    def only(self, clients: int | ArrayLike) -> Scores:
        """These clients only, by number or by a boolean mask, in the given order."""
        at = np.atleast_1d(np.asarray(clients))
        return replace(
            self, counts=self.counts[at if at.dtype == np.bool_ else at.astype(np.int64)]
        )

    @property
    def bins(self) -> int:
        """The number of bins."""
        return int(self.counts.shape[-1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Every client's number of examples, [clients]."""
        total: NDArray[np.int64] = self.counts[:, 0].sum((1, 2), dtype=np.int64)
        return total

    def rows(self, attribute: str) -> slice:
        """The rows of an attribute's groups. Raises ConfigError for an unknown attribute."""
        return rows_of(self.attributes, attribute)

    def _check(self, other: Scores) -> None:
        mine, theirs = self.counts.shape, other.counts.shape
        if mine[1:] != theirs[1:] or self.attributes != other.attributes:
            raise DataError(
                f"histograms {theirs[1:]} do not match histograms {mine[1:]}: count both with the "
                "same bins and attributes."
            )
