"""Compute every metric of a split from its counts, with bootstrap intervals over clients.

What each name means is defined in `isonomy.metrics.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.core.examples import Attribute
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.client import Better, percentiles, resamples
from isonomy.metrics.counts import Counts, Floats, Tally, with_everyone
from isonomy.metrics.registry import (
    CLIENT_SUMMARIES,
    CLIENT_VALUES,
    GROUP_METRICS,
    POOLED,
    RATES,
)

LEVEL = 0.95
"""The confidence level of the intervals that `summarise` adds."""


def summarise(counts: Counts, *, bootstrap: int = 0, seed: int = 0) -> dict[str, float]:
    """Every metric of an evaluation by name; NaN where it is undefined.

    For regression the accuracies and everything that needs classes are left out. With
    `bootstrap` replicates each name also has `NAME:low` and `NAME:high`, the ends of its 95 %
    percentile interval over clients.

    >>> page = {"counts": [[[[3, 1], [0, 4]]], [[[1, 1], [1, 1]]]], "loss": [[[2, 2]], [[2, 2]]]}
    >>> found = summarise(Counts.of(page))
    >>> found["accuracy"], found["client.accuracy.mean"], found["client.accuracy.worst5"]
    (0.75, 0.6875, 0.5)
    """
    found = {
        "client.number": float((counts.sizes > 0).sum()),
        "client.left_out": float((counts.sizes == 0).sum()),
    }
    found |= _point(counts)
    if bootstrap:
        for name, ends in intervals(counts, replicates=bootstrap, seed=seed).items():
            found[f"{name}:low"], found[f"{name}:high"] = ends
    return found


def spread(values: ArrayLike, *, better: Better) -> dict[str, Floats]:
    """Every summary of a per-client value along the last axis; NaN if there is no client."""
    at = np.asarray(values, dtype=np.float64)
    if at.shape[-1] == 0:
        return {name: np.full(at.shape[:-1], np.nan) for name in CLIENT_SUMMARIES}
    return {name: summary.compute(at, better) for name, summary in CLIENT_SUMMARIES.items()}


def intervals(
    counts: Counts,
    names: Sequence[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bootstrap percentile intervals over clients, for all or some names of `summarise`.

    Clients that have examples are drawn with replacement, as many as there are, and every metric
    is computed on the clients drawn; for metrics over examples, a client drawn twice contributes
    its examples twice. Replicates where a metric is undefined are left out of its interval.
    Raises ConfigError for a name that `summarise` does not compute.
    """
    present = counts.sizes > 0
    values = _client_values(counts, present)
    point = _point(counts)
    chosen = list(point) if names is None else list(names)
    for name in chosen:
        if name not in point:
            raise ConfigError(unknown("metric with an interval", name, point))
    tally = counts.tally()
    sums = np.stack([tally.label, tally.predicted, tally.hit, tally.loss], axis=1)[present]
    flat = sums.reshape(len(sums), int(np.prod(sums.shape[1:])))
    need_pooled = any(not name.startswith("client.") for name in chosen)
    need_client = {v for v in values if any(name.startswith(f"client.{v}.") for name in chosen)}
    drawn: dict[str, list[Floats]] = {name: [] for name in chosen}
    for index in resamples(len(sums), replicates, seed):
        found: dict[str, Floats] = {}
        if need_pooled:
            # A loss that diverged is not finite; times 0 for a client not drawn it gives NaN, as
            # it should.
            with np.errstate(invalid="ignore", over="ignore"):
                total = (_times(index) @ flat).reshape(len(index), *sums.shape[1:])
            found |= _pooled(Tally(*np.moveaxis(total, 1, 0)), counts.attributes)
        for value in need_client:
            found |= _spread(value, values[value][index])
        for name in chosen:
            drawn[name].append(found[name])
    return {
        name: percentiles(np.concatenate(drawn[name] or [np.zeros(0)]), point[name], level)
        for name in chosen
    }


def per_client(counts: Counts) -> dict[str, NDArray]:
    """One column per metric with one value per client; NaN where it is undefined.

    The columns are `size`, `accuracy` and `loss` on the client's own examples, and for each
    protected attribute `group.NAME.METRIC` between the groups inside that client.
    """
    columns: dict[str, NDArray] = {"size": counts.sizes}
    columns |= _client_values(counts, np.ones(len(counts), dtype=np.bool_))
    for attribute in counts.attributes:
        columns |= _between_groups(attribute.name, counts.tally(attribute.name))
    return columns


def _point(counts: Counts) -> dict[str, float]:
    found = _pooled(counts.pooled().tally(), counts.attributes)
    for value, each in _client_values(counts, counts.sizes > 0).items():
        found |= _spread(value, each)
    return {name: float(np.squeeze(value)) for name, value in found.items()}


def _pooled(tally: Tally, attributes: tuple[Attribute, ...]) -> dict[str, Floats]:
    """`accuracy`, `loss` and `group.*`, with the tally's leading axes."""
    found = {
        name: metric.compute(tally)
        for name, metric in POOLED.items()
        if metric.defined(tally.classes)
    }
    start = 1
    for attribute in attributes:
        stop = start + len(attribute.levels)
        part = tally.only(with_everyone(slice(start, stop)))
        start = stop
        found |= _between_groups(attribute.name, part)
        for rate, metric in RATES.items():
            if metric.defined(tally.classes):
                each = metric.compute(part)
                for at, level in enumerate(attribute.levels):
                    found[f"group.{attribute.name}.{rate}.{level}"] = each[..., at]
    return found


def _between_groups(attribute: str, tally: Tally) -> dict[str, Floats]:
    """The comparisons of an attribute's groups, with the tally's leading axes."""
    return {
        f"group.{attribute}.{name}": metric.compute(tally)
        for name, metric in GROUP_METRICS.items()
        if metric.defined(tally.classes)
    }


def _client_values(counts: Counts, present: NDArray[np.bool_]) -> dict[str, Floats]:
    return {
        name: value.compute(counts)[present]
        for name, value in CLIENT_VALUES.items()
        if value.regression or not counts.regression
    }


def _spread(value: str, at: Floats) -> dict[str, Floats]:
    found = spread(at, better=CLIENT_VALUES[value].better)
    return {f"client.{value}.{name}": each for name, each in found.items()}


def _times(index: NDArray[np.int64]) -> Floats:
    """How often each client was drawn in each replicate."""
    replicates, clients = index.shape
    flat = index + clients * np.arange(replicates)[:, None]
    times = np.bincount(flat.ravel(), minlength=replicates * clients)
    return times.reshape(replicates, clients).astype(np.float64)
