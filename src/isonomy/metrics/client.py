"""Fairness between clients: how a per-client value varies over the clients.

Every client counts once, however many examples it has. A client without examples in the split has
no value and is left out. Every summary works along the last axis and keeps the others, so a
thousand bootstrap replicates need a single call.

For accuracy the worst clients have the lowest values, for loss the highest; functions that depend
on this take `better`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.errors import ConfigError
from isonomy.metrics.counts import Counts, Floats, ratio

Better = Literal["higher", "lower"]


def client_accuracy(counts: Counts) -> Floats:
    """The share of each client's examples predicted correctly, [clients]; NaN without examples."""
    tally = counts.everyone()
    return ratio(tally.hit.sum(-1), tally.size)[:, 0]


def client_loss(counts: Counts) -> Floats:
    """The mean loss of each client's examples, [clients]; NaN without examples."""
    tally = counts.everyone()
    return ratio(tally.loss.sum(-1), tally.size)[:, 0]


def mean(values: ArrayLike) -> Floats:
    """The mean over clients, each counting once."""
    at = _floats(values)
    return _quiet(lambda: at.sum(-1) / at.shape[-1])


def variance(values: ArrayLike) -> Floats:
    """The mean squared distance to the mean over clients (divided by n, not n - 1)."""
    at = _floats(values)
    return _quiet(lambda: np.square(at - mean(at)[..., None]).sum(-1) / at.shape[-1])


def std(values: ArrayLike) -> Floats:
    """The square root of `variance`."""
    return np.sqrt(variance(values))


def worst(values: ArrayLike, share: float, *, better: Better) -> Floats:
    """The mean over the worst clients: the `ceil(share * n)` of n furthest from the better end.

    The lowest values if higher is better (accuracy), the highest if lower is better (loss).

    >>> float(worst([0.9, 0.5, 0.7], 0.05, better="higher"))
    0.5
    >>> float(worst([0.9, 0.5, 0.7], 0.05, better="lower"))
    0.9
    """
    return _tail(_floats(values), share, low=better == "higher")


def best(values: ArrayLike, share: float, *, better: Better) -> Floats:
    """The mean over the best clients: the `ceil(share * n)` of n nearest to the better end."""
    return _tail(_floats(values), share, low=better == "lower")


def jain(values: ArrayLike) -> Floats:
    """Jain's index, (sum v)^2 / (n sum v^2): 1 if all are equal, 1/n if all but one are 0.

    Defined for values that are not negative (NaN otherwise); 1 if all values are 0.
    """
    at = _scaled(values)
    return _quiet(
        lambda: np.where(
            _zero(at), 1.0, np.square(at.sum(-1)) / (at.shape[-1] * np.square(at).sum(-1))
        )
    )


def gini(values: ArrayLike) -> Floats:
    """The Gini coefficient, sum over i, j of |v_i - v_j| / (2 n sum v): 0 if all are equal.

    Defined for values that are not negative (NaN otherwise); 0 if all values are 0.
    """
    at = np.sort(_scaled(values), axis=-1)
    n = at.shape[-1]
    # Sorted, the double sum is 2 sum_i (2i - n - 1) v_(i), with i from 1.
    rank = 2.0 * np.arange(1, n + 1) - n - 1
    return _quiet(lambda: np.where(_zero(at), 0.0, (rank * at).sum(-1) / (n * at.sum(-1))))


def entropy(values: ArrayLike) -> Floats:
    """The entropy of the shares v / sum v, divided by log n: 1 if all are equal.

    Defined for values that are not negative (NaN otherwise); 1 for a single client, and if all
    values are 0.
    """
    at = _scaled(values)
    n = at.shape[-1]

    def value() -> Floats:
        share = at / at.sum(-1, keepdims=True)
        terms = -share * np.log(np.where(share > 0, share, 1.0))
        # log 1 is 0: a single client, whose only term is 0 (or NaN), gives 1 (or NaN) instead.
        evenness = terms.sum(-1) / np.log(n) if n > 1 else 1.0 + terms.sum(-1)
        return np.where(_zero(at), 1.0, evenness) if n else np.full(at.shape[:-1], np.nan)

    return _quiet(value)


def variation(values: ArrayLike) -> Floats:
    """The coefficient of variation, std / mean: 0 if all are equal.

    Defined for values that are not negative (NaN otherwise); 0 if all values are 0.
    """
    at = _scaled(values)
    return _quiet(lambda: np.where(_zero(at), 0.0, std(at) / mean(at)))


def interval(
    values: ArrayLike,
    statistic: Callable[[Floats], Floats],
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """A bootstrap percentile interval of a summary over clients.

    Clients are drawn with replacement, as many as there are, `replicates` times; the interval lies
    between the (1 - level) / 2 and (1 + level) / 2 quantiles of the statistic. `statistic` works
    along the last axis, as every summary here does. The interval shows how much the number depends
    on which clients took part, not on the training seed.
    """
    at = _floats(values)
    found = [statistic(at[index]) for index in resamples(at.shape[-1], replicates, seed)]
    return percentiles(np.concatenate(found), statistic(at), level) if found else (np.nan, np.nan)


def resamples(clients: int, replicates: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Client numbers drawn with replacement, [some replicates, clients] at a time."""
    if replicates < 1:
        raise ConfigError(f"{replicates} bootstrap replicates: give at least 1.")
    if clients == 0:
        return
    random = np.random.default_rng(seed)
    block = max(1, 2_000_000 // clients)  # bounds memory; 16 MB of client numbers
    for start in range(0, replicates, block):
        yield random.integers(clients, size=(min(block, replicates - start), clients))


def percentiles(found: Floats, value: Floats | float, level: float) -> tuple[float, float]:
    """The two ends of a percentile interval.

    Replicates where the statistic is undefined (because a group was not drawn) are left out. If the
    statistic of the clients themselves is undefined, so is the interval.
    """
    if not 0 < level < 1:
        raise ConfigError(f"confidence level {level}: give a number between 0 and 1, such as 0.95.")
    found = found[np.isfinite(found)]
    if not np.isfinite(value) or not len(found):
        return np.nan, np.nan
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _tail(at: Floats, share: float, *, low: bool) -> Floats:
    if not 0 < share <= 1:
        raise ConfigError(
            f"a share of {share} of the clients: give a number above 0 and at most 1."
        )
    n = at.shape[-1]
    # Rounded first: 0.07 * 100 is 7.000000000000001, whose ceiling is 8.
    number = max(1, int(np.ceil(round(share * n, 9))))
    at = np.sort(at, axis=-1)
    if low and n:
        # NaN sorts last; a client whose value is NaN must not be counted among the best.
        missing = np.isnan(at[..., -1])
        return _quiet(lambda: np.where(missing, np.nan, mean(at[..., :number])))
    return mean(at[..., n - number :] if n else at)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _scaled(values: ArrayLike) -> Floats:
    """Divided by the largest, so that squares neither overflow nor underflow; NaN if negative."""
    at = _floats(values)
    if at.shape[-1] == 0:
        return at
    top = at.max(-1, keepdims=True)
    at = _quiet(lambda: np.where(top > 0, at / np.where(top > 0, top, 1.0), at))
    return np.where((at < 0).any(-1, keepdims=True), np.nan, at)


def _zero(at: Floats) -> NDArray[np.bool_]:
    """Whether there are clients and all their values are zero."""
    zero: NDArray[np.bool_] = (at == 0).all(-1) & (at.shape[-1] > 0)
    return zero


def _quiet(work: Callable[[], Floats]) -> Floats:
    """Run `work` without numpy warnings: infinite losses, or no clients at all, give NaN."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return work()
