"""Fairness between the groups of one protected attribute.

Each function takes a `Tally`, which determines what is compared: `counts.pooled().tally("sex")`
compares the groups over all clients' examples together (global group fairness), and
`counts.tally("sex")` compares them inside each client (local group fairness). Leading axes are
kept.

Notation: h is the predicted class, y the label, z the group; probabilities are shares of
examples. With two classes the positive class is 1. With more, each class in turn is the
positive class and all others are negative, and the result is the largest gap over classes.

Each notion of `isonomy.core.notions` has two forms: `difference`, the largest minus the smallest
rate over groups, and `overall`, the largest distance between a group's rate and everyone's. A group
that has no examples to compute a rate from is left out. A difference is NaN if fewer than two
groups remain, and the overall form is NaN if none remains; a class that is NaN for this reason is
left out of the maximum over classes.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from isonomy.core.notions import NOTIONS, Notion
from isonomy.metrics.counts import Floats, Tally, ratio


def difference(tally: Tally, notion: Notion) -> Floats:
    """Largest minus smallest rate over groups; if the notion compares several rates, the largest.

    NaN if the difference of any of these rates is NaN.
    """
    return reduce(np.maximum, [_difference(*_rate(tally, label)) for label in notion.given])


def overall(tally: Tally, notion: Notion) -> Floats:
    """The largest distance between a group's rate and everyone's; if several rates, the largest.

    NaN if the distance for any of these rates is NaN.
    """
    return reduce(np.maximum, [_overall(*_rate(tally, label)) for label in notion.given])


def demographic_parity(tally: Tally) -> Floats:
    """Largest minus smallest share predicted positive, P(h=1 | z), over groups z.

    Two groups of ten, of which eight and five are predicted positive:

    >>> import numpy as np
    >>> tally = Tally(
    ...     label=np.array([[12.0, 8.0], [6.0, 4.0], [6.0, 4.0]]),
    ...     predicted=np.array([[7.0, 13.0], [2.0, 8.0], [5.0, 5.0]]),
    ...     hit=np.array([[5.0, 6.0], [2.0, 4.0], [3.0, 2.0]]),
    ...     loss=np.zeros((3, 2)),
    ... )
    >>> round(float(demographic_parity(tally)), 12)
    0.3
    """
    return difference(tally, NOTIONS["dp"])


def demographic_parity_overall(tally: Tally) -> Floats:
    """The largest |P(h=1 | z) - P(h=1)| over groups z."""
    return overall(tally, NOTIONS["dp"])


def equal_opportunity(tally: Tally) -> Floats:
    """Largest minus smallest true positive rate, P(h=1 | y=1, z), over groups z."""
    return difference(tally, NOTIONS["eo"])


def equal_opportunity_overall(tally: Tally) -> Floats:
    """The largest |P(h=1 | y=1, z) - P(h=1 | y=1)| over groups z."""
    return overall(tally, NOTIONS["eo"])


def equalised_odds(tally: Tally) -> Floats:
    """The larger of two differences over groups z: of P(h=1 | y=1, z) and of P(h=1 | y=0, z).

    NaN if either difference is NaN, because the definition needs both.
    """
    return difference(tally, NOTIONS["equalised_odds"])


def accuracy(tally: Tally) -> Floats:
    """The share of all examples predicted correctly; NaN without examples."""
    return ratio(tally.hit.sum(-1), tally.size)[..., 0]


def mean_loss(tally: Tally) -> Floats:
    """The mean loss of all examples; NaN without examples."""
    return ratio(tally.loss.sum(-1), tally.size)[..., 0]


def group_accuracy(tally: Tally) -> Floats:
    """The share of each group's examples predicted correctly, [..., L]; NaN for an empty group."""
    return ratio(tally.hit.sum(-1), tally.size)[..., 1:]


def group_loss(tally: Tally) -> Floats:
    """The mean loss of each group's examples, [..., L]; NaN for an empty group."""
    return ratio(tally.loss.sum(-1), tally.size)[..., 1:]


def min_accuracy(tally: Tally) -> Floats:
    """The smallest accuracy of a group that has examples."""
    return -_largest(-group_accuracy(tally), tally.size[..., 1:] > 0)


def max_loss(tally: Tally) -> Floats:
    """The largest mean loss of a group that has examples."""
    return _largest(group_loss(tally), tally.size[..., 1:] > 0)


def max_loss_given_label(tally: Tally) -> Floats:
    """The largest mean loss over pairs of a group and a label that have examples."""
    label = tally.label[..., 1:, :]
    cells = ratio(tally.loss[..., 1:, :], label)
    flat = (*cells.shape[:-2], -1)
    return _largest(cells.reshape(flat), (label > 0).reshape(flat))


def hypervolume(tally: Tally) -> Floats:
    """The area between the point (error, `demographic_parity_overall`) and (1, 1).

    A single model is a front of one point, so this can be compared with methods that learn a
    whole front.
    """
    return accuracy(tally) * (1 - demographic_parity_overall(tally))


def positive_rate(tally: Tally) -> Floats:
    """P(h=1 | z) of each group, [..., L], with two classes; NaN for an empty group."""
    return _rate(tally, None)[0][..., 1:, 0]


def true_positive_rate(tally: Tally) -> Floats:
    """P(h=1 | y=1, z) of each group, [..., L], with two classes; NaN without positives."""
    return _rate(tally, 1)[0][..., 1:, 0]


def false_positive_rate(tally: Tally) -> Floats:
    """P(h=1 | y=0, z) of each group, [..., L], with two classes; NaN without negatives."""
    return _rate(tally, 0)[0][..., 1:, 0]


def value_difference(each: Floats) -> Floats:
    """Largest minus smallest value [..., L] over groups; NaN if fewer than two groups have one."""
    return _difference_of(each[..., None], ~np.isnan(each)[..., None])


def _rate(tally: Tally, label: int | None) -> tuple[Floats, NDArray[np.bool_]]:
    """Each row's rate of predictions of each positive class c, and where it is defined."""
    above, below = rate_counts(tally, label)
    return ratio(above, below), below > 0


def rate_counts(tally: Tally, label: int | None) -> tuple[Floats, Floats]:
    """Numerators and denominators [..., 1 + L, positive classes c] of each row's rates.

    P(h=c | z) for label None, P(h=c | y=c, z) for label 1, P(h=c | y!=c, z) for label 0.
    """
    if label is None:
        above, below = tally.predicted, tally.size[..., None]
    elif label == 1:
        above, below = tally.hit, tally.label
    else:
        above, below = tally.predicted - tally.hit, tally.size[..., None] - tally.label
    above, below = np.broadcast_arrays(above, below)
    return (above[..., 1:], below[..., 1:]) if above.shape[-1] == 2 else (above, below)


def _difference(rate: Floats, defined: NDArray[np.bool_]) -> Floats:
    return _difference_of(rate[..., 1:, :], defined[..., 1:, :])


def _difference_of(rate: Floats, defined: NDArray[np.bool_]) -> Floats:
    """Largest minus smallest over groups [..., L, C], and the largest such difference over C."""
    top = np.where(defined, rate, -np.inf).max(-2, initial=-np.inf)
    bottom = np.where(defined, rate, np.inf).min(-2, initial=np.inf)
    return _largest(top - bottom, defined.sum(-2) >= 2)


def _overall(rate: Floats, defined: NDArray[np.bool_]) -> Floats:
    gap = np.abs(rate[..., 1:, :] - rate[..., :1, :])
    # If a group has examples, everyone's rate is defined too.
    flat = (*gap.shape[:-2], -1)
    return _largest(gap.reshape(flat), defined[..., 1:, :].reshape(flat))


def _largest(values: Floats, defined: NDArray[np.bool_]) -> Floats:
    """The maximum over the last axis of the defined values, NaN if there are none.

    `defined` comes from the counts and not from `isnan`, so that a loss that diverged to NaN
    remains visible.
    """
    top = np.where(defined, values, -np.inf).max(-1, initial=-np.inf)
    return np.where(defined.any(-1), top, np.nan)
