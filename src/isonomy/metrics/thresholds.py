"""Thresholds of scores: fitted on histograms, and the decisions that they make.

A threshold t decides "positive" for a score above t. Thresholds are fitted among those that cut
between bins (`isonomy.metrics.scores.cut`), so that the decisions counted on the examples of the
fit are exactly those of the histogram.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isonomy.core.task import Batch, Task
from isonomy.metrics.counts import Floats, Tally
from isonomy.metrics.group import accuracy
from isonomy.metrics.scores import Scores, cut, positive_score
from isonomy.metrics.values import balanced_accuracy, f1

CRITERIA: dict[str, Callable[[Tally], Floats]] = {
    "balanced": lambda tally: balanced_accuracy(tally)[..., 0],
    "f1": lambda tally: f1(tally)[..., 0],
    "accuracy": accuracy,
}
"""What a fitted threshold makes as large as possible."""


@dataclass(frozen=True)
class Thresholds:
    """The threshold of everyone and, with an attribute, of each of its groups.

    `column` is the attribute's column of `Batch.groups`; None: there is one threshold only.
    Examples of unknown group have that of everyone.
    """

    everyone: float
    groups: tuple[float, ...] = ()
    column: int | None = None

    def tensor(self) -> Tensor:
        """Everyone's threshold and the groups', as a message has them."""
        return torch.tensor((self.everyone, *self.groups), dtype=torch.float64)


def decide(
    task: Task, outputs: Tensor, batch: Batch, thresholds: Tensor, column: int | None
) -> Tensor:
    """The decision for each example, [n] int64: 1 if its score is above its threshold."""
    score = positive_score(task, outputs)
    if column is None:
        return (score > thresholds[0]).to(torch.int64)
    group, levels = batch.groups[:, column], thresholds.shape[0] - 1
    known = (group >= 0) & (group < levels)
    return (score > thresholds[torch.where(known, group + 1, 0)]).to(torch.int64)


def fit(scores: Scores, criterion: str, attribute: str | None = None) -> Thresholds:
    """The thresholds that are best on all clients' examples together, and in each group.

    A group without examples of both classes has the threshold of everyone, and if everyone has
    examples of one class only, it is .5.
    """
    counts = scores.pooled().counts[0]
    everyone = best(counts[0], criterion, otherwise=0.5)
    if attribute is None:
        return Thresholds(everyone)
    rows = scores.rows(attribute)
    names = [each.name for each in scores.attributes]
    groups = (best(counts[g], criterion, everyone) for g in range(rows.start, rows.stop))
    return Thresholds(everyone, tuple(groups), names.index(attribute))


def best(histogram: np.ndarray, criterion: str, otherwise: float) -> float:
    """The best threshold for one histogram [2, bins]; of equally good ones the nearest to .5."""
    if not (histogram.sum(-1) > 0).all():
        return otherwise
    bins = histogram.shape[-1]
    total = histogram.sum(-1)
    # [bins + 1, label, prediction]: with threshold number k, bins below k are negative
    negative = np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(histogram, -1)], -1).T
    counts = np.stack([negative, total - negative], -1)
    tally = Tally(
        label=np.broadcast_to(total, (bins + 1, 1, 2)).astype(np.float64),
        predicted=counts.sum(-2, dtype=np.float64)[:, None],
        hit=np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64)[:, None],
        loss=np.zeros((bins + 1, 1, 2)),
    )
    value = CRITERIA[criterion](tally)
    value = np.where(np.isnan(value), -np.inf, value)
    good = np.flatnonzero(value >= value.max() - 1e-12)
    return cut(int(min(good, key=lambda k: (abs(2 * k - bins), k))), bins)
