"""Partitions whose clients have different proportions of labels (or groups)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from isonomy.data.partition.registry import BY, EXPONENT, MINIMUM, partition
from isonomy.data.partition.rows import Integers, Rows, Seed, generator
from isonomy.data.partition.sizes import (
    check_feasible,
    check_positive,
    fill_to_minimum,
    largest_remainders,
    power_law_sizes,
)
from isonomy.errors import ConfigError, DataError


@partition(
    "dirichlet",
    "each label's (or group's) rows divided in proportions drawn from a Dirichlet distribution",
    beta="concentration: near 0 a label is at one client only, large values are even",
    by=BY,
    minimum=MINIMUM,
)
def dirichlet(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    beta: float = 0.5,
    by: str = "label",
    minimum: int = 10,
) -> list[Tensor]:
    """For each cell, shares over clients ~ Dirichlet(beta, ..., beta) (Yurochkin et al., 2019).

    A client that has fewer than `minimum` rows after the draw gets random rows of the client that
    is the largest at that moment; nothing is drawn again.
    """
    check_feasible(len(rows), clients, minimum)
    check_positive("dirichlet", "beta", beta)
    rng = generator("partition", seed)
    cells = rows.cells(by)
    shares = rng.dirichlet(np.full(clients, beta), size=int(cells.max()) + 1)
    members: list[list[Integers]] = [[] for _ in range(clients)]
    for cell, share in enumerate(shares):
        mine = rng.permutation(np.flatnonzero(cells == cell))
        for k, piece in enumerate(
            np.split(mine, np.cumsum(largest_remainders(share, len(mine)))[:-1])
        ):
            members[k].append(piece)
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in members]
    return [torch.from_numpy(np.sort(part)) for part in fill_to_minimum(parts, minimum)]


@partition(
    "uneven",
    "power-law sizes, and label proportions that differ between clients",
    exponent=EXPONENT,
    beta="concentration of a client's proportions around the overall ones: small is skewed",
    by=BY,
    minimum=MINIMUM,
)
def uneven(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    exponent: float = 1.5,
    beta: float = 5.0,
    by: str = "label",
    minimum: int = 50,
) -> list[Tensor]:
    """Sizes as in `power_law`; label proportions ~ Dirichlet(beta p), p the overall proportions.

    The smallest client chooses first. Where the rows of a label are used up, the client takes
    other labels in proportion to what remains, and the largest client takes the rest. So the
    sizes, and with them the minimum, are exact.
    """
    sizes = power_law_sizes(len(rows), clients, exponent, minimum)
    check_positive("uneven", "beta", beta)
    rng = generator("partition", seed)
    cells = rows.cells(by)
    stock = np.bincount(cells)
    mixes = rng.dirichlet(beta * stock / stock.sum(), size=clients)
    left = [rng.permutation(np.flatnonzero(cells == cell)) for cell in range(len(stock))]
    parts: list[Tensor] = [torch.empty(0)] * clients
    for k in np.argsort(sizes, kind="stable"):
        available = np.array([len(rest) for rest in left])
        take = np.minimum(largest_remainders(mixes[k], int(sizes[k])), available)
        short = int(sizes[k]) - int(take.sum())
        if short:
            rest_shares = (available - take) / (available - take).sum()
            take = take + largest_remainders(rest_shares, short)
        part = np.concatenate([rest[:count] for rest, count in zip(left, take, strict=True)])
        left = [rest[count:] for rest, count in zip(left, take, strict=True)]
        parts[k] = torch.from_numpy(np.sort(part))
    return parts


@partition(
    "shards",
    "rows sorted by label and cut into equal shards, a few shards per client",
    each="shards per client",
    counts="shards of each client, if they differ, such as [1, 2, 2]",
    minimum=MINIMUM,
)
def shards(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    each: int = 2,
    counts: tuple[int, ...] = (),
    minimum: int = 10,
) -> list[Tensor]:
    """McMahan et al. (2017): most clients have at most `each` labels.

    The sizes of shards are equal or differ by one. Raises DataError if that is below the minimum.
    """
    if each < 1 or any(count < 1 for count in counts):
        wrong = f"counts is {list(counts)}" if counts else f"each is {each}"
        raise ConfigError(f"partition 'shards': {wrong}; set it to 1 or more.")
    if counts and len(counts) != clients:
        raise ConfigError(
            f"partition 'shards': counts has {len(counts)} numbers for {clients} clients; give one "
            "for each."
        )
    counts = tuple(counts) or (each,) * clients
    total = sum(counts)
    check_feasible(len(rows), clients, minimum)
    smallest = len(rows) // total * min(counts)
    if smallest < minimum:
        raise DataError(
            f"partition 'shards': {total} shards of {len(rows)} rows leave a client as "
            f"few as {smallest} rows, below the minimum of {minimum}; use fewer clients or "
            "shards, or a lower minimum."
        )
    rng = generator("partition", seed)
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows.labels[order], kind="stable")]
    pieces = np.array_split(order, total)
    dealt = np.split(rng.permutation(total), np.cumsum(counts)[:-1])
    return [torch.from_numpy(np.sort(np.concatenate([pieces[i] for i in d]))) for d in dealt]


@partition(
    "windows",
    "a range of neighbouring labels per client, sizes and proportions drawn from lognormals",
    each="labels per client",
    spread="standard deviation of the logarithm of clients' sizes; 0: equal sizes",
    skew="standard deviation of the logarithm of a client's shares of its labels; 0: even",
    minimum=MINIMUM,
)
def windows(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    each: int = 5,
    spread: float = 1.0,
    skew: float = 1.0,
    minimum: int = 10,
) -> list[Tensor]:
    """Client k has the labels k, k + 1, ..., k + each - 1, modulo their number (FMTL's code).

    Target sizes are proportional to lognormal(3, spread) + 10, and a client's labels to
    lognormal(1, skew). The rows of each label are then divided in proportion to the targets, so
    that every row goes to one client and sizes come out near their targets. A label in no
    client's window is divided by size.
    """
    check_feasible(len(rows), clients, minimum)
    labels = rows.cells("label")
    many = int(labels.max()) + 1
    if each < 1:
        raise ConfigError(f"partition 'windows': each is {each}; set it to 1 or more.")
    each = min(each, many)
    for option, value in (("spread", spread), ("skew", skew)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"partition 'windows': {option} is {value}; set it to 0 or more.")
    rng = generator("partition", seed)
    sizes = rng.lognormal(3.0, spread, clients) + 10
    mine = (np.arange(clients)[:, None] + np.arange(each)) % many
    shares = rng.lognormal(1.0, skew, (clients, each))
    wanted = np.zeros((clients, many))
    np.put_along_axis(wanted, mine, sizes[:, None] * shares / shares.sum(1, keepdims=True), 1)
    members: list[list[Integers]] = [[] for _ in range(clients)]
    for label in range(many):
        available = rng.permutation(np.flatnonzero(labels == label))
        claims = wanted[:, label] if wanted[:, label].any() else sizes
        counts = largest_remainders(claims / claims.sum(), len(available))
        for k, piece in enumerate(np.split(available, np.cumsum(counts)[:-1])):
            members[k].append(piece)
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in members]
    return [torch.from_numpy(np.sort(part)) for part in fill_to_minimum(parts, minimum)]
