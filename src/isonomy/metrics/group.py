"""Fairness between the groups of one protected attribute.

Each function takes a `Tally`: who is compared is said there. `counts.pooled().tally("sex")`
compares the groups over all clients' examples together (global group fairness),
`counts.tally("sex")` inside each client (local group fairness). Leading axes pass through.

Notation: h is the predicted class, y the label, z the group; probabilities are shares of
examples. With two classes the positive class is 1. With more, each class in turn is the
positive class and the rest the negative one, and the result is the largest gap over classes.

Each gap comes in two forms: the difference form, largest minus smallest over groups, and the
overall form, the largest distance of a group to everyone. A group without the examples a share
needs is left out of it. A difference is NaN when fewer than two groups remain, the overall form
when none does; a class that is NaN for this reason is left out of the maximum over classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isonomy.metrics.counts import Floats, Tally, ratio


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
    return _difference(*_positive_rate(tally))


def demographic_parity_overall(tally: Tally) -> Floats:
    """The largest |P(h=1 | z) - P(h=1)| over groups z."""
    return _overall(*_positive_rate(tally))


def equal_opportunity(tally: Tally) -> Floats:
    """Largest minus smallest true positive rate, P(h=1 | y=1, z), over groups z."""
    return _difference(*_true_positive_rate(tally))


def equal_opportunity_overall(tally: Tally) -> Floats:
    """The largest |P(h=1 | y=1, z) - P(h=1 | y=1)| over groups z."""
    return _overall(*_true_positive_rate(tally))


def equalised_odds(tally: Tally) -> Floats:
    """The larger of two differences over groups z: of P(h=1 | y=1, z) and of P(h=1 | y=0, z).

    NaN when either difference is: one half of the definition is not the definition.
    """
    return np.maximum(equal_opportunity(tally), _difference(*_false_positive_rate(tally)))


def group_accuracy(tally: Tally) -> Floats:
    """The share of each group's examples predicted right, [..., L]; NaN for an empty group."""
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

    One model is a front of one point, so it compares with methods that learn a whole front.
    """
    accuracy = ratio(tally.hit.sum(-1), tally.size)[..., 0]
    return accuracy * (1 - demographic_parity_overall(tally))


def positive_rate(tally: Tally) -> Floats:
    """P(h=1 | z) of each group, [..., L], with two classes; NaN for an empty group."""
    return _positive_rate(tally)[0][..., 1:, 0]


def true_positive_rate(tally: Tally) -> Floats:
    """P(h=1 | y=1, z) of each group, [..., L], with two classes; NaN without positives."""
    return _true_positive_rate(tally)[0][..., 1:, 0]


def false_positive_rate(tally: Tally) -> Floats:
    """P(h=1 | y=0, z) of each group, [..., L], with two classes; NaN without negatives."""
    return _false_positive_rate(tally)[0][..., 1:, 0]


def _positive_rate(tally: Tally) -> tuple[Floats, NDArray[np.bool_]]:
    """P(h=c | z) of each row and class, and where it is defined."""
    return _of_positive_classes(tally.predicted, tally.size[..., None])


def _true_positive_rate(tally: Tally) -> tuple[Floats, NDArray[np.bool_]]:
    """P(h=c | y=c, z)."""
    return _of_positive_classes(tally.hit, tally.label)


def _false_positive_rate(tally: Tally) -> tuple[Floats, NDArray[np.bool_]]:
    """P(h=c | y!=c, z)."""
    rest = tally.size[..., None] - tally.label
    return _of_positive_classes(tally.predicted - tally.hit, rest)


def _of_positive_classes(above: Floats, below: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    above, below = np.broadcast_arrays(above, below)
    if above.shape[-1] == 2:
        above, below = above[..., 1:], below[..., 1:]
    return ratio(above, below), below > 0


def _difference(rate: Floats, defined: NDArray[np.bool_]) -> Floats:
    rate, defined = rate[..., 1:, :], defined[..., 1:, :]
    top = np.where(defined, rate, -np.inf).max(-2, initial=-np.inf)
    bottom = np.where(defined, rate, np.inf).min(-2, initial=np.inf)
    return _largest(top - bottom, defined.sum(-2) >= 2)


def _overall(rate: Floats, defined: NDArray[np.bool_]) -> Floats:
    gap = np.abs(rate[..., 1:, :] - rate[..., :1, :])
    # A group with examples makes everyone's rate defined too.
    flat = (*gap.shape[:-2], -1)
    return _largest(gap.reshape(flat), defined[..., 1:, :].reshape(flat))


def _largest(values: Floats, defined: NDArray[np.bool_]) -> Floats:
    """The maximum over the last axis of what is defined, NaN if nothing is.

    `defined` comes from the counts and not from `isnan`, so a loss that diverged to NaN shows.
    """
    top = np.where(defined, values, -np.inf).max(-1, initial=-np.inf)
    return np.where(defined.any(-1), top, np.nan)
