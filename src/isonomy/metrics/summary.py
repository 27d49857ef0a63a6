"""Compute every metric of a split from its counts, with bootstrap intervals over clients.

What each name means is defined in `isonomy.metrics.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from isonomy.metrics.values import Values

LEVEL = 0.95
"""The confidence level of the intervals that `summarise` adds."""


def summarise(
    counts: Counts, values: Values | None = None, *, bootstrap: int = 0, seed: int = 0
) -> dict[str, float]:
    """Every metric of an evaluation by name; NaN where it is undefined.

    `values` are the same clients' histograms of scores and sums of errors, if they were measured.
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
    tally = _of_clients(counts, values)
    found |= _left_out(tally, counts.sizes > 0)
    found |= _point(counts, values, tally)
    if bootstrap:
        each = _intervals(counts, values, tally, None, bootstrap, LEVEL, seed)
        for name, ends in each.items():
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
    values: Values | None = None,
    replicates: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bootstrap percentile intervals over clients, for all or some names of `summarise`.

    Clients that have examples are drawn with replacement, as many as there are, and every metric
    is computed on the clients drawn; for metrics over examples, a client drawn twice contributes
    its examples twice. For a summary of a value that is undefined for some of these clients, those
    for which it is defined are drawn. Replicates where a metric is undefined are left out of its
    interval. Raises ConfigError for a name that `summarise` does not compute.
    """
    tally = _of_clients(counts, values)
    return _intervals(counts, values, tally, names, replicates, level, seed)


def _intervals(
    counts: Counts,
    values: Values | None,
    tally: Tally,
    names: Sequence[str] | None,
    replicates: int,
    level: float,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """As `intervals`, with the clients' tally."""
    present = counts.sizes > 0
    each = _client_values(tally, present)
    point = _point(counts, values, tally)
    chosen = list(point) if names is None else list(names)
    for name in chosen:
        if name not in point:
            raise ConfigError(unknown("metric with an interval", name, point))
    sums = np.stack([tally.label, tally.predicted, tally.hit, tally.loss], axis=1)[present]
    flat = sums.reshape(len(sums), int(np.prod(sums.shape[1:])))
    measured = None if values is None else values.only(present)
    need_pooled = any(not name.startswith("client.") for name in chosen)
    need_client = {v for v in each if any(name.startswith(f"client.{v}.") for name in chosen)}
    drawn: dict[str, list[Floats]] = {name: [] for name in point}
    for index in resamples(len(sums), replicates, seed):
        found: dict[str, Floats] = {}
        if need_pooled:
            # A loss that diverged is not finite; times 0 for a client not drawn it gives NaN, as
            # it should.
            times = _times(index)
            with np.errstate(invalid="ignore", over="ignore"):
                total = (times @ flat).reshape(len(index), *sums.shape[1:])
            also = {} if measured is None else measured.drawn(times)
            together = replace(Tally(*np.moveaxis(total, 1, 0)), values=also)
            found |= _pooled(together, counts.attributes)
        for value in need_client:
            if len(each[value]) == len(sums):
                found |= _spread(value, each[value][index])
        for name, value_drawn in found.items():
            drawn[name].append(value_drawn)
    for value in need_client:
        if len(each[value]) < len(sums):
            for index in resamples(len(each[value]), replicates, seed):
                for name, value_drawn in _spread(value, each[value][index]).items():
                    drawn[name].append(value_drawn)
    return {
        name: percentiles(np.concatenate(drawn[name] or [np.zeros(0)]), point[name], level)
        for name in chosen
    }


def per_client(counts: Counts, values: Values | None = None) -> dict[str, NDArray]:
    """One column per metric with one value per client; NaN where it is undefined.

    The columns are `size`, `accuracy`, `loss` and others on the client's own examples, and for each
    protected attribute `group.NAME.METRIC` between the groups inside that client.
    """
    columns: dict[str, NDArray] = {"size": counts.sizes}
    tally = _of_clients(counts, values)
    columns |= _values(tally)
    for attribute in counts.attributes:
        part = tally.only(with_everyone(counts.rows(attribute.name)))
        columns |= _between_groups(attribute.name, part)
    return columns


def _of_clients(counts: Counts, values: Values | None) -> Tally:
    """Each client's tally of all rows, with its values."""
    tally = counts.tally()
    return tally if values is None else replace(tally, values=values.of_clients())


def _point(counts: Counts, values: Values | None, tally: Tally) -> dict[str, float]:
    together = counts.pooled().tally()
    if values is not None:
        together = replace(together, values=values.drawn(np.ones((1, len(counts)))))
    found = _pooled(together, counts.attributes)
    for value, each in _client_values(tally, counts.sizes > 0).items():
        found |= _spread(value, each)
    return {name: float(np.squeeze(value)) for name, value in found.items()}


def _left_out(tally: Tally, present: NDArray[np.bool_]) -> dict[str, float]:
    """The number of clients with examples that a value leaves out, if there are any."""
    out = {}
    for name, each in _values(tally).items():
        lost = int(np.isnan(each[present]).sum()) if CLIENT_VALUES[name].partial else 0
        if lost:
            out[f"client.{name}.left_out"] = float(lost)
    return out


def _pooled(tally: Tally, attributes: tuple[Attribute, ...]) -> dict[str, Floats]:
    """`accuracy`, `loss` and `group.*`, with the tally's leading axes."""
    found = {
        name: metric.compute(tally) for name, metric in POOLED.items() if metric.defined(tally)
    }
    start = 1
    for attribute in attributes:
        stop = start + len(attribute.levels)
        part = tally.only(with_everyone(slice(start, stop)))
        start = stop
        found |= _between_groups(attribute.name, part)
        for rate, metric in RATES.items():
            if metric.defined(part):
                each = metric.compute(part)
                for at, level in enumerate(attribute.levels):
                    found[f"group.{attribute.name}.{rate}.{level}"] = each[..., at]
    return found


def _between_groups(attribute: str, tally: Tally) -> dict[str, Floats]:
    """The comparisons of an attribute's groups, with the tally's leading axes."""
    return {
        f"group.{attribute}.{name}": metric.compute(tally)
        for name, metric in GROUP_METRICS.items()
        if metric.defined(tally)
    }


def _values(tally: Tally) -> dict[str, Floats]:
    """Each client's own values, from the tally of clients."""
    return {
        name: value.metric.compute(tally)
        for name, value in CLIENT_VALUES.items()
        if value.metric.defined(tally)
    }


def _client_values(tally: Tally, present: NDArray[np.bool_]) -> dict[str, Floats]:
    """The values of the clients that have examples, and for a partial value, that have it."""
    found = {name: each[present] for name, each in _values(tally).items()}
    return {
        name: each[~np.isnan(each)] if CLIENT_VALUES[name].partial else each
        for name, each in found.items()
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
