"""How many rows each client gets: rounding, power laws and the minimum."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.data.partition.rows import Integers
from isonomy.errors import ConfigError, DataError


def check_feasible(rows: int, clients: int, minimum: int) -> None:
    """Raise an error if the rows do not suffice for so many clients."""
    if clients < 1:
        raise ConfigError(f"the number of clients is {clients}; set it to 1 or more.")
    if minimum < 1:
        raise ConfigError(f"minimum is {minimum}; every client needs 1 row or more.")
    if clients * minimum > rows:
        raise DataError(
            f"{clients} clients with at least {minimum} rows each need {clients * minimum} rows "
            f"and there are {rows}; use fewer clients or a lower minimum."
        )


def check_positive(name: str, option: str, value: float) -> None:
    """Raise an error if an option of a partition is not a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"partition '{name}': {option} is {value}; set it to a number above 0.")


def largest_remainders(shares: NDArray[np.float64], total: int) -> Integers:
    """Return whole numbers in proportion to shares that add up to `total`.

    The numbers are rounded down, and those with the largest remainders are raised by one.

    >>> largest_remainders(np.array([0.5, 0.3, 0.2]), 6).tolist()
    [3, 2, 1]
    """
    exact = shares * total
    out = np.floor(exact + 1e-9).astype(np.int64)
    over = total - int(out.sum())
    if over:
        out[np.argsort(out - exact, kind="stable")[:over]] += 1
    return out


def power_law_sizes(rows: int, clients: int, exponent: float, minimum: int) -> Integers:
    """Return the clients' sizes: the minimum, plus a power-law share of the remaining rows."""
    check_feasible(rows, clients, minimum)
    if not (math.isfinite(exponent) and exponent >= 0):
        raise ConfigError(
            f"the power law's exponent is {exponent}; set it to a number of 0 or more."
        )
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    return minimum + largest_remainders(weights / weights.sum(), rows - clients * minimum)


def cut(order: Integers, sizes: Integers) -> list[Tensor]:
    """Cut a sequence of row numbers into pieces of these sizes, each in ascending order."""
    pieces = np.split(order, np.cumsum(sizes)[:-1])
    return [torch.from_numpy(np.sort(piece)) for piece in pieces]


def fill_to_minimum(parts: list[Integers], minimum: int) -> list[Integers]:
    """Move rows from the end of the largest part to the smallest until all have the minimum.

    The parts are expected in random order, so the moved rows are random ones.
    """
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < minimum:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        moved = int(min(minimum - sizes[poor], sizes[rich] - minimum))
        parts[poor] = np.concatenate([parts[poor], parts[rich][-moved:]])
        parts[rich] = parts[rich][:-moved]
        sizes[poor] += moved
        sizes[rich] -= moved
    return parts
