"""Counts made the slow way, one example after another, and random predictions to count."""

from typing import NamedTuple

import numpy as np

from isonomy.core.examples import Attribute
from isonomy.metrics import Counts


class Examples(NamedTuple):
    client: np.ndarray
    groups: np.ndarray  # [n, A]
    y: np.ndarray
    h: np.ndarray
    loss: np.ndarray


def random_examples(
    seed: int, *, n: int = 400, clients: int = 5, classes: int = 2, levels: tuple[int, ...] = (3,)
) -> Examples:
    random = np.random.default_rng(seed)
    groups = np.stack([random.integers(0, each, n) for each in levels], axis=1)
    y = random.integers(0, classes, n)
    # Right more often for group 0, so gaps are not close to zero.
    right = random.random(n) < 0.5 + 0.3 * (groups[:, 0] == 0)
    h = np.where(right, y, random.integers(0, classes, n))
    return Examples(random.integers(0, clients, n), groups, y, h, random.exponential(1, n))


def attributes(*levels: int) -> tuple[Attribute, ...]:
    return tuple(
        Attribute(f"a{i}", tuple(f"g{j}" for j in range(each))) for i, each in enumerate(levels)
    )


def counted(examples: Examples, *, clients: int, classes: int, levels: tuple[int, ...]) -> Counts:
    rows = 1 + sum(levels)
    counts = np.zeros((clients, rows, classes, classes), dtype=np.int64)
    loss = np.zeros((clients, rows, classes))
    for k, groups, y, h, each in zip(*examples, strict=True):
        starts = np.cumsum([1, *levels])[: len(levels)]
        for row in [0, *(starts + groups)]:
            counts[k, row, y, h] += 1
            loss[k, row, y] += each
    return Counts(counts, loss, attributes(*levels))


def some(examples: Examples, chosen: np.ndarray) -> Examples:
    return Examples(*(each[chosen] for each in examples))
