"""Values of a set of examples: ranking, calibration, errors, and rates averaged over classes.

Each function keeps leading axes. Those of scores take histograms [..., 2, B] (label, bin), those of
errors take sums [..., parts], and those of counts take a `Tally` and return [..., 1 + L], a value
for everyone and for each group. A value is NaN where it is undefined.

Scores in the same bin are not told apart, so the AUC and the average precision are those of the
bins' numbers as scores. A pair of a positive and a negative example in the same bin counts half for
the AUC, which is therefore wrong by at most half of such pairs (`auc_resolution`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isonomy.core.examples import Attribute
from isonomy.metrics.counts import Floats, Tally, ratio
from isonomy.metrics.errors import OF_CLASSES, OF_NUMBERS, Errors
from isonomy.metrics.scores import Scores

CALIBRATION_BINS = 10
_BLOCK = 4_000_000  # numbers of histograms at a time


# --- of scores ------------------------------------------------------------------------------------


def auc(histogram: Floats) -> Floats:
    """The area under the ROC curve: the share of pairs of a positive and a negative example in
    which the positive one has the higher score; a pair in the same bin counts half.

    >>> float(auc(np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])))  # (2 + 2.5) of 6 pairs
    0.75
    """
    negative, positive = histogram[..., 0, :], histogram[..., 1, :]
    below = np.cumsum(negative, -1) - negative / 2
    return ratio((positive * below).sum(-1), positive.sum(-1) * negative.sum(-1))


def auc_resolution(histogram: Floats) -> Floats:
    """The most by which `auc` can differ from that of the scores themselves."""
    negative, positive = histogram[..., 0, :], histogram[..., 1, :]
    return ratio((positive * negative).sum(-1) / 2, positive.sum(-1) * negative.sum(-1))


def average_precision(histogram: Floats) -> Floats:
    """The sum over bins, from the highest, of precision times the increase of recall.

    NaN unless there are positive and negative examples.
    """
    positive = histogram[..., 1, ::-1]
    found, chosen = np.cumsum(positive, -1), np.cumsum(histogram[..., ::-1].sum(-2), -1)
    precision = np.where(chosen > 0, found / np.maximum(chosen, 1), 0.0)
    both = (histogram.sum(-1) > 0).all(-1)
    total = np.where(both, positive.sum(-1), 0.0)
    return ratio((positive * precision).sum(-1), total)


def calibration_error(histogram: Floats) -> Floats:
    """The expected calibration error of the probability of class 1, in ten bins of equal width.

    It is the mean over examples of the distance between the mean probability and the share of
    positive examples in the example's bin. A probability counts as the middle of its own narrow
    bin, which changes the result by half the width of that bin at most.
    """
    bins = histogram.shape[-1]
    middle = (np.arange(bins) + 0.5) / bins
    wide = (*histogram.shape[:-2], CALIBRATION_BINS, bins // CALIBRATION_BINS)
    size = histogram.sum(-2)
    apart = (size * middle - histogram[..., 1, :]).reshape(wide).sum(-1)
    return ratio(np.abs(apart).sum(-1), size.sum(-1))


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

OF_SCORES: dict[str, Callable[[Floats], Floats]] = {
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
        out: dict[str, Floats] = {}
        if self.scores is not None:
            counts = self.scores.counts
            block = max(1, _BLOCK // counts[0].size) if len(counts) else 1
            parts = [
                _stacked(OF_SCORES, counts[at : at + block].astype(np.float64))
                for at in range(0, max(len(counts), 1), block)
            ]
            out |= {name: np.concatenate([part[name] for part in parts]) for name in OF_SCORES}
        if self.errors is not None:
            out |= _stacked(_of_errors(self.errors), self.errors.sums)
        return out

    def drawn(self, times: Floats) -> dict[str, Floats]:
        """Each value on the examples of all clients together, [replicates, 1 + G].

        Client k counts `times[r, k]` times in replicate r. Histograms are added one row at a time,
        and for some replicates at a time, which bounds memory.
        """
        out: dict[str, Floats] = {}
        if self.scores is not None:
            rows: list[Mapping[str, Floats]] = []
            counts, bins = self.scores.counts, self.scores.bins
            for g in range(counts.shape[1]):
                each = counts[:, g].reshape(len(counts), 2 * bins).astype(np.float64)
                block = max(1, _BLOCK // (2 * bins))
                parts = [
                    _stacked(OF_SCORES, (times[at : at + block] @ each).reshape(-1, 2, bins))
                    for at in range(0, len(times), block)
                ]
                rows.append({k: np.concatenate([part[k] for part in parts]) for k in OF_SCORES})
            out |= {name: np.stack([row[name] for row in rows], -1) for name in OF_SCORES}
        if self.errors is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                sums = np.tensordot(times, self.errors.sums, axes=1)
            out |= _stacked(_of_errors(self.errors), sums)
        return out


def _of_errors(errors: Errors) -> dict[str, Callable[[Floats], Floats]]:
    return OF_REGRESSION if errors.regression else OF_PROBABILITIES


def _stacked(which: Mapping[str, Callable[[Floats], Floats]], at: Floats) -> dict[str, Floats]:
    return {name: compute(at) for name, compute in which.items()}
