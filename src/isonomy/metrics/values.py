"""Values of a set of examples: ranking, calibration, errors, and rates averaged over classes.

Each function keeps leading axes. Those of scores take `Ranks`, which are sums of histograms, those
of errors take sums [..., parts], and those of counts take a `Tally` and return [..., 1 + L], a
value for everyone and for each group. A value is NaN where it is undefined.

Scores in the same bin are not told apart, so the AUC and the average precision are those of the
bins' numbers as scores. A pair of a positive and a negative example in the same bin counts half for
the AUC, which is therefore wrong by at most half of such pairs (`auc_resolution`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.core.examples import Attribute
from isonomy.metrics.counts import Floats, Tally, ratio
from isonomy.metrics.errors import OF_CLASSES, OF_NUMBERS, Errors
from isonomy.metrics.scores import Scores

CALIBRATION_BINS = 10
_BLOCK = 2_000_000  # numbers of histograms at a time


# --- of scores ------------------------------------------------------------------------------------


class Ranks(NamedTuple):
    """What values of scores are computed from, all of it linear in the histogram.

    Each has the shape [..., B], but `apart` [..., 10].
    """

    positive: Floats  # positive examples in the bin
    negative: Floats  # negative examples in the bin
    below: Floats  # negative examples in lower bins, and half of those in the bin
    found: Floats  # positive examples in the bin and in higher ones
    chosen: Floats  # all examples in the bin and in higher ones
    apart: Floats  # in each tenth: the sum of probabilities minus the number of positive examples


def ranks(histogram: NDArray[np.integer], times: Floats | None = None) -> Ranks:
    """From histograms [clients, 2, B]; with `times` [R, clients], sums over clients [R, ...]."""
    counts = histogram.astype(np.float64)
    negative, positive = counts[:, 0], counts[:, 1]
    bins = counts.shape[-1]
    middle = (np.arange(bins) + 0.5) / bins
    size = negative + positive
    found, chosen = (np.cumsum(at[:, ::-1], -1)[:, ::-1] for at in (positive, size))
    tenths = (len(counts), CALIBRATION_BINS, bins // CALIBRATION_BINS)
    apart = (size * middle - positive).reshape(tenths).sum(-1)
    below = np.cumsum(negative, -1) - negative / 2
    each = Ranks(positive, negative, below, found, chosen, apart)
    return each if times is None else Ranks(*(times @ at for at in each))


def auc(at: Ranks) -> Floats:
    """The area under the ROC curve: the share of pairs of a positive and a negative example in
    which the positive one has the higher score; a pair in the same bin counts half.

    >>> few = np.zeros((1, 2, 10), np.int64)
    >>> few[0, 0, 1], few[0, 0, 7], few[0, 1, 5], few[0, 1, 7] = 2, 1, 1, 1
    >>> auc(ranks(few)).tolist()  # (2 + 2.5) of 6 pairs
    [0.75]
    """
    return ratio(_product(at.positive, at.below), _pairs(at))


def auc_resolution(at: Ranks) -> Floats:
    """The most by which `auc` can differ from that of the scores themselves."""
    return ratio(_product(at.positive, at.negative) / 2, _pairs(at))


def average_precision(at: Ranks) -> Floats:
    """The sum over bins, from the highest, of precision times the increase of recall.

    NaN unless there are positive and negative examples.
    """
    precision = at.found / np.maximum(at.chosen, 1)
    both = _pairs(at) > 0
    return ratio(_product(at.positive, precision), np.where(both, at.found[..., 0], 0.0))


def calibration_error(at: Ranks) -> Floats:
    """The expected calibration error of the probability of class 1, in ten bins of equal width.

    It is the mean over examples of the distance between the mean probability and the share of
    positive examples in the example's bin. A probability counts as the middle of its own narrow
    bin, which changes the result by half the width of that bin at most.
    """
    return ratio(np.abs(at.apart).sum(-1), at.chosen[..., 0])


def _pairs(at: Ranks) -> Floats:
    """The number of pairs of a positive and a negative example."""
    positive = at.found[..., 0]
    return np.asarray(positive * (at.chosen[..., 0] - positive))


def _product(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.einsum("...b,...b->...", first, second))


# --- of errors ------------------------------------------------------------------------------------


def brier(sums: Floats) -> Floats:
    """The mean squared error of the predicted probabilities."""
    return ratio(sums[..., 1], sums[..., 0])


def rmse(sums: Floats) -> Floats:
    """The root of the mean squared error of the predicted number."""
    return np.sqrt(ratio(sums[..., 1], sums[..., 0]))


def mae(sums: Floats) -> Floats:
    """The mean absolute error of the predicted number."""
    return ratio(sums[..., 2], sums[..., 0])


def r2(sums: Floats) -> Floats:
    """The coefficient of determination; NaN if the labels do not differ.

    It is 1 minus the squared errors over the squared distances of labels to their mean.
    """
    size, squared, label, square = (sums[..., i] for i in (0, 1, 3, 4))
    with np.errstate(invalid="ignore", over="ignore"):
        around = square - ratio(np.square(label), size)
        # what remains of equal labels is rounding
        return 1 - ratio(squared, np.where(around > 1e-12 * square, around, 0.0))


# --- of counts ------------------------------------------------------------------------------------


def balanced_accuracy(tally: Tally) -> Floats:
    """The mean over classes of the share of the class that is predicted correctly.

    Classes without examples are left out.
    """
    known = tally.label > 0
    recall = np.where(known, ratio(tally.hit, tally.label), 0.0)
    return ratio(recall.sum(-1), known.sum(-1).astype(np.float64))


def f1(tally: Tally) -> Floats:
    """F1, the harmonic mean of precision and recall, of class 1 of two.

    With more classes it is the mean of the classes' F1 (macro); a class that has no examples and
    is not predicted is left out.
    """
    both = tally.label + tally.predicted
    each = ratio(2 * tally.hit, both)
    if each.shape[-1] == 2:
        return each[..., 1]
    return ratio(np.where(both > 0, each, 0.0).sum(-1), (both > 0).sum(-1).astype(np.float64))


# --- all of them ----------------------------------------------------------------------------------

OF_SCORES: dict[str, Callable[[Ranks], Floats]] = {
    "auc": auc,
    "auc_resolution": auc_resolution,
    "average_precision": average_precision,
    "calibration_error": calibration_error,
}
OF_PROBABILITIES: dict[str, Callable[[Floats], Floats]] = {"brier": brier}
OF_REGRESSION: dict[str, Callable[[Floats], Floats]] = {"rmse": rmse, "mae": mae, "r2": r2}


@dataclass(frozen=True, eq=False)
class Values:
    """What clients report beside their counts: histograms of scores and sums of errors.

    Each is None if the task has none.
    """

    scores: Scores | None = None
    errors: Errors | None = None

    @classmethod
    def zeros(
        cls, clients: int, classes: int, attributes: tuple[Attribute, ...], *, likelihood: bool
    ) -> Values:
        """Values of no examples; `classes` is 0 for regression."""
        rows, scores, errors = 1 + sum(len(a.levels) for a in attributes), None, None
        if likelihood and classes == 2:
            empty = np.zeros((clients, rows, 2, CALIBRATION_BINS), np.int64)
            scores = Scores(empty, attributes)
        if likelihood or not classes:
            parts = OF_CLASSES if classes else OF_NUMBERS
            errors = Errors(np.zeros((clients, rows, len(parts))), attributes)
        return cls(scores, errors)

    def only(self, clients: int | ArrayLike) -> Values:
        """These clients only, by number or by a boolean mask, in the given order."""
        return Values(
            None if self.scores is None else self.scores.only(clients),
            None if self.errors is None else self.errors.only(clients),
        )

    def of_clients(self) -> dict[str, Floats]:
        """Each value on each client's own examples, [clients, 1 + G]."""
        return self._all(None)

    def drawn(self, times: Floats) -> dict[str, Floats]:
        """Each value on the examples of all clients together, [replicates, 1 + G].

        Client k counts `times[r, k]` times in replicate r.
        """
        return self._all(times)

    def _all(self, times: Floats | None) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        if self.scores is not None:
            rows = [
                _of_row(self.scores.counts[:, g], times) for g in range(self.scores.counts.shape[1])
            ]
            out |= {name: np.stack([row[name] for row in rows], -1) for name in OF_SCORES}
        if self.errors is not None:
            sums, which = self.errors.sums, OF_PROBABILITIES
            if self.errors.regression:
                which = OF_REGRESSION
            if times is not None:
                with np.errstate(invalid="ignore", over="ignore"):
                    sums = np.tensordot(times, sums, axes=1)
            out |= {name: compute(sums) for name, compute in which.items()}
        return out


def _of_row(histogram: NDArray[np.integer], times: Floats | None) -> dict[str, Floats]:
    """The values of scores of one row, for some clients or replicates at a time to save memory."""
    clients, bins = len(histogram), histogram.shape[-1]
    count, block = clients if times is None else len(times), max(1, _BLOCK // bins)
    found: list[Mapping[str, Floats]] = []
    for start in range(0, max(count, 1), block):
        chunk = slice(start, start + block)
        at = ranks(histogram[chunk]) if times is None else ranks(histogram, times[chunk])
        found.append({name: compute(at) for name, compute in OF_SCORES.items()})
    return {name: np.concatenate([part[name] for part in found]) for name in OF_SCORES}
