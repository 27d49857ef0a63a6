"""Partitions that assign rows at random: clients differ in size at most."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from isonomy.data.partition.registry import EXPONENT, MINIMUM, partition
from isonomy.data.partition.rows import Rows, Seed, generator
from isonomy.data.partition.sizes import check_feasible, cut, largest_remainders, power_law_sizes


@partition("iid", "rows assigned at random, in equal numbers", minimum=MINIMUM)
def iid(rows: Rows, clients: int, seed: Seed, *, minimum: int = 10) -> list[Tensor]:
    """Assign rows at random; the sizes of clients are equal or differ by one."""
    check_feasible(len(rows), clients, minimum)
    sizes = largest_remainders(np.full(clients, 1 / clients), len(rows))
    return cut(generator("partition", seed).permutation(len(rows)), sizes)


@partition(
    "power_law",
    "rows assigned at random, in numbers that decrease by a power law",
    exponent=EXPONENT,
    minimum=MINIMUM,
)
def power_law(
    rows: Rows, clients: int, seed: Seed, *, exponent: float = 1.5, minimum: int = 10
) -> list[Tensor]:
    """Assign rows at random: `minimum` to each client, plus its power-law share of the rest."""
    sizes = power_law_sizes(len(rows), clients, exponent, minimum)
    return cut(generator("partition", seed).permutation(len(rows)), sizes)
