"""The partition 'domains' of data sets of texts: every client has texts of one domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.core.options import Option
from isonomy.data.dataset import Request
from isonomy.data.partition import Integers, Partition, Rows, allocate, generator
from isonomy.data.partition import split as deal
from isonomy.errors import ConfigError, unknown

Shares = tuple[dict[Split, list[Tensor]], tuple[str, ...], tuple[int, ...] | None]
"""The rows of each client in each split, the clients' names, and their clusters if known."""


def partition(what: str) -> Partition:
    """Return the partition for a data set whose texts are called `what`, such as "sentences"."""
    meaning = "number of clients of each domain, in the order of domains"
    return Partition(
        "domains",
        f"clusters of clients, each with the {what} of one domain",
        {"counts": Option((7, 3), meaning)},
        counts=True,
    )


def check(dataset: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raise ConfigError unless the option `domains` names one or more, each once."""
    for domain in wanted:
        if domain not in known:
            raise ConfigError(unknown(f"domain of data set '{dataset}'", domain, known))
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"data set '{dataset}': domains are {list(wanted)}; give one or more, each once."
        )


def share_out(
    labels: Integers, domains: Integers, wanted: Sequence[str], request: Request
) -> Shares:
    """Assign rows to clients; `domains` [rows] are indices of the domains `wanted`."""
    fractions, how = request.options["fractions"], request.partition_options
    if request.partition.name != "domains":
        rows = Rows(labels)
        return *allocate(
            rows, request.partition, how, request.clients, request.seed, fractions
        ), None
    counts = how["counts"]
    if len(counts) != len(wanted) or min(counts) < 1:
        raise ConfigError(
            f"partition 'domains': counts are {list(counts)} for {len(wanted)} domains; give each "
            "domain 1 client or more."
        )
    if request.clients not in (0, sum(counts)):
        raise ConfigError(
            f"partition 'domains': counts {list(counts)} make {sum(counts)} clients, not "
            f"{request.clients}; remove the number of clients."
        )
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    names, clusters = [], []
    for number, (domain, count) in enumerate(zip(wanted, counts, strict=True)):
        mixed = generator("domains", (request.seed, number)).permutation(
            np.flatnonzero(domains == number)
        )
        for k, mine in enumerate(np.array_split(mixed, count)):
            seed = (request.seed, number, k)
            pieces = deal(torch.from_numpy(np.sort(mine)), labels, None, fractions, seed)
            for name in SPLITS:
                parts[name].append(pieces[name])
            names.append(f"{domain} {k}")
            clusters.append(number)
    return parts, tuple(names), tuple(clusters)
