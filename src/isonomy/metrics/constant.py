"""The prediction of one class for everyone: the least that a useful model has to beat.

It has no gaps between groups, whatever the data, so a gap of 0 says nothing about a model that
predicts one class for everyone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from isonomy.metrics.counts import Counts
from isonomy.metrics.summary import summarise


def constant_metrics(counts: Counts, label: int) -> dict[str, float]:
    """The metrics of predicting this class for every counted example, without losses.

    >>> page = {"counts": [[[[3, 1], [0, 4]]], [[[1, 1], [0, 1]]]], "loss": [[[2, 2]], [[2, 2]]]}
    >>> constant_metrics(Counts.of(page), 0)["accuracy"]  # 6 of 11 have label 0
    0.5454545454545454
    """
    fixed = np.zeros_like(counts.counts)
    fixed[..., label] = counts.counts.sum(-1)
    found = summarise(Counts(fixed, np.zeros_like(counts.loss), counts.attributes))
    return {name: value for name, value in found.items() if "loss" not in name}


def most_frequent(labels: ArrayLike) -> int:
    """The class with the largest number of examples, given the number of each; the first if equal.

    >>> most_frequent([3, 5, 5])
    1
    """
    return int(np.argmax(np.asarray(labels)))


def label_counts(counts: Counts) -> list[int]:
    """The number of examples of each class, over all clients."""
    return [int(n) for n in counts.counts[:, 0].sum((0, 2))]


def only_class(counts: Counts, names: Sequence[str] = ()) -> str | None:
    """The name of the class that is predicted for every example; None if there are several.

    None also if all examples have one label, so that predicting it is no fault, and without any.
    """
    predicted = counts.counts[:, 0].sum((0, 1))
    if (
        counts.regression
        or (predicted > 0).sum() != 1
        or np.count_nonzero(label_counts(counts)) < 2
    ):
        return None
    at = int(predicted.argmax())
    return names[at] if at < len(names) else f"class {at}"
