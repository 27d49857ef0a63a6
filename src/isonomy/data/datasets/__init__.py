"""Named data sets.

To add one, write a file in this folder, with the data set's name and a `DATASET`; it is found
automatically, and imported when it is first used.

>>> federation = load("synthetic", clients=4, seed=1)
>>> len(federation), federation.features
(4, ('x1', 'x2', 'z'))
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isonomy.core.on_demand import OnDemand
from isonomy.core.options import check
from isonomy.data.dataset import Dataset, Request
from isonomy.data.download.fetch import Progress
from isonomy.data.federation import Federation
from isonomy.data.partition import Spec, plan
from isonomy.errors import ConfigError, unknown

__all__ = ["DATASETS", "Dataset", "load", "parts"]


DATASETS: Mapping[str, Dataset] = OnDemand(
    {one.name: f"{__name__}.{one.name}" for one in pkgutil.iter_modules(__path__)},
    lambda _, module: module.DATASET,
)


def load(
    name: str,
    *,
    clients: int | None = None,
    seed: int = 0,
    partition: Spec | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    fit: Callable[..., Any] | None = None,
) -> Federation:
    """Load a data set as a federation.

    `clients`, `partition` (a name, or a mapping with `name` and options) and `options` default to
    those of the data set; see `DATASETS[name]`. `fit` fits the preprocessing of tables in place of
    `isonomy.data.tables.fit.fit`, if it is given. The same arguments give the same federation on
    every machine.
    """
    dataset, request = _requested(name, clients, seed, partition, options, progress, fit)
    return dataset.load(request)


def parts(
    name: str,
    *,
    clients: int | None = None,
    seed: int = 0,
    partition: Spec | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Federation]:
    """The clients of a data set, some at a time if it can be made in that way."""
    dataset, request = _requested(name, clients, seed, partition, options)
    if dataset.parts is None:
        yield dataset.load(request)
    else:
        yield from dataset.parts(request)


def _requested(
    name: str,
    clients: int | None,
    seed: int,
    partition: Spec | None,
    options: Mapping[str, Any] | None,
    progress: Progress | None = None,
    fit: Callable[..., Any] | None = None,
) -> tuple[Dataset, Request]:
    """The data set, and the checked and complete request."""
    if name not in DATASETS:
        raise ConfigError(unknown("data set", name, DATASETS))
    dataset = DATASETS[name]
    if clients is not None and clients < 1:
        raise ConfigError(f"data set '{name}': clients is {clients}; set it to 1 or more.")
    if seed < 0:
        raise ConfigError(
            f"data set '{name}': seed is {seed}; set it to a whole number of 0 or more."
        )
    chosen, chosen_options = plan(
        dataset.partition if partition is None else partition, dataset.partitions
    )
    default = 0 if chosen.counts else dataset.clients
    request = Request(
        clients=default if clients is None else clients,
        seed=seed,
        partition=chosen,
        partition_options=chosen_options,
        options=check("data", name, dataset.options, options or {}),
        progress=progress,
        fit=fit,
    )
    return dataset, request
