"""Excess risk and fairness through agent awareness (FAA).

Chu et al., "FOCUS: Fairness via Agent-Awareness for Federated Learning on Heterogeneous Data".
A client with noisy labels has a high loss under any model. Clients are therefore compared by their
excess risk instead of their loss: the difference to the loss of the best model for that client
alone. The best model is not known; a surrogate that was trained on the client's (or its cluster's)
own data takes its place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from isonomy.errors import DataError
from isonomy.metrics.counts import Floats


def excess(test_loss: ArrayLike, surrogate_loss: ArrayLike) -> Floats:
    """Each client's test loss minus its surrogate's loss on the same examples.

    Negative if the surrogate is worse than the model; it is not clipped at 0. Raises DataError if
    the shapes differ.
    """
    loss, floor = np.asarray(test_loss, np.float64), np.asarray(surrogate_loss, np.float64)
    if loss.shape != floor.shape:
        raise DataError(
            f"test losses of shape {loss.shape} and surrogate losses of shape {floor.shape}: give "
            "both for the same clients in the same order."
        )
    with np.errstate(invalid="ignore"):
        gap: Floats = loss - floor
    return gap


def faa(excess: ArrayLike, sizes: ArrayLike | None = None) -> float:
    """The largest difference of excess risk between two clients: maximum minus minimum.

    Lower is fairer in the sense of FAA. With `sizes`, clients without examples are left out;
    an excess that is NaN for another reason makes the result NaN. NaN if no client is left.

    >>> faa(excess([0.5, 0.75], [0.25, 0.625]))
    0.125
    """
    at = np.asarray(excess, np.float64)
    if sizes is not None:
        present = np.asarray(sizes)
        if present.shape != at.shape:
            raise DataError(
                f"{at.shape} excess risks and {present.shape} sizes: give one size per client."
            )
        at = at[present > 0]
    if not at.size:
        return float("nan")
    with np.errstate(invalid="ignore"):
        return float(at.max() - at.min())
