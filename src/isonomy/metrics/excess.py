"""Excess risk and fairness through agent awareness (FAA).

Chu et al., "FOCUS: Fairness via Agent-Awareness for Federated Learning on Heterogeneous Data".
A client with noisy labels has a high loss under any model. Clients are therefore compared by their
excess risk instead of their loss: the difference to the loss of the best model for that client
alone. The best model is not known; a surrogate that was trained on the client's (or its cluster's)
own data takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from isonomy.errors import DataError
from isonomy.metrics.counts import Floats

LEVEL = 0.95  # of the interval of FAA, and of the test for an excess below 0


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


class Paired(NamedTuple):
    """Each client's excess with its standard error, from losses on the same examples.

    An excess cannot be negative: a model that is better than the surrogate shows that the surrogate
    is not the best model. Where this is beyond chance (`better`), the client's reference is the
    model itself, so its excess is 0.
    """

    excess: Floats
    error: Floats  # standard error; NaN for fewer than two examples
    better: Floats  # 1 where the model is better than the surrogate beyond chance, else 0
    sizes: Floats


def paired(losses: Sequence[Floats], surrogate: Sequence[Floats]) -> Paired:
    """The excess of each client, from the losses of its examples under both models.

    The test whether a model is better than the surrogate is one-sided, with Student's t, and its
    level holds for all clients together (Bonferroni).

    >>> found = paired([np.array([0.5, 0.7])], [np.array([0.25, 0.25])])
    >>> float(found.excess[0])
    0.35
    """
    from scipy.special import stdtrit  # imports scipy, which is slow

    rows = []
    for own, other in zip(losses, surrogate, strict=True):
        gap = excess(own, other)
        n = len(gap)
        mean = float(gap.mean()) if n else np.nan
        error = float(gap.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
        most = stdtrit(max(n - 1, 1), 1 - (1 - LEVEL) / len(losses))
        better = n > 1 and mean < -most * error
        rows.append((0.0, 0.0, 1.0, n) if better else (mean, error, 0.0, n))
    return Paired(*np.array(rows, np.float64).reshape(-1, 4).T)


def faa_interval(found: Paired) -> tuple[float, float]:
    """An interval that contains FAA with a probability of at least 95 %, over test examples.

    It follows from simultaneous intervals of the clients' excesses (Sidak, with Student's t). It
    takes the model and the surrogate as given. NaN if a client has fewer than two examples.
    """
    from scipy.special import stdtrit

    there = found.sizes > 0
    at, error, sizes = found.excess[there], found.error[there], found.sizes[there]
    if not at.size or not np.isfinite(error).all():
        return float("nan"), float("nan")
    each = 1 - LEVEL ** (1 / len(at))
    reach = stdtrit(np.maximum(sizes - 1, 1), 1 - each / 2) * error
    low, high = at - reach, at + reach
    return float(max(0.0, low.max() - high.min())), float(high.max() - low.min())
