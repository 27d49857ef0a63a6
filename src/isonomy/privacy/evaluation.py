"""Noisy counts: how predictions are counted under differential privacy.

What clients count are examples by group, label and prediction. An example is in one cell of every
attribute (of everyone, if there is no attribute), so with A attributes

- level `example`: one example changes a client's counts by sqrt(A), and every client adds noise to
  its own counts;
- level `client`: at most `counted` examples of each client are used, so one client changes the sum
  of all clients by counted sqrt(A), and the server adds noise to the sum. Nothing is known of
  single clients.

The counts of everyone are sums over the groups of an attribute, averaged over attributes, so they
need no release of their own.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.examples import SPLITS
from isonomy.data.federation import Federation
from isonomy.privacy.noise import Key

Floats = NDArray[np.float64]


class Noised(NamedTuple):
    """Counts [clients, rows, classes, classes] with noise, and its variance in every cell.

    At level `client` there is one row of clients, their sum.
    """

    counts: Floats
    variance: Floats


class Counting(NamedTuple):
    """How counts are noised: the level, the groups of each attribute, and the noise multiplier."""

    level: Literal["client", "example"]
    levels: tuple[int, ...]
    multiplier: float
    counted: int = 1  # examples of a client that are used at most, at level `client`

    @property
    def sensitivity(self) -> float:
        """By how much one client or example changes the counts of all attributes."""
        each = float(self.counted) if self.level == "client" else 1.0
        return each * math.sqrt(max(len(self.levels), 1))

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in one cell of a group."""
        return self.multiplier * self.sensitivity

    def released(self, counts: NDArray[np.int64]) -> Floats:
        """What is released before noise: the groups of every attribute, or everyone."""
        at = counts.astype(np.float64)
        at = at[:, 1:] if self.levels else at
        return at.sum(0, keepdims=True) if self.level == "client" else at

    def noised(self, counts: NDArray[np.int64], key: Key, *name: object) -> Noised:
        """The counts with noise; each name is used once."""
        exact = self.released(counts)
        drawn = np.stack(
            [key.normal(one.shape, "counts", *name, k).numpy() for k, one in enumerate(exact)]
        )
        return self.with_everyone(exact + self.deviation * drawn)

    def with_everyone(self, noisy: Floats) -> Noised:
        """Noisy counts of groups, with a row for everyone before them."""
        variance = np.full(noisy.shape, self.deviation**2)
        if not self.levels:
            return Noised(noisy, variance)
        ends = np.cumsum([0, *self.levels])
        number = len(self.levels)
        totals = [noisy[:, a:b].sum(1) for a, b in itertools.pairwise(ends.tolist())]
        spread = sum(self.levels) / number**2 * self.deviation**2
        everyone: Floats = np.sum(totals, axis=0)[:, None] / number
        return Noised(
            np.concatenate([everyone, noisy], 1),
            np.concatenate([np.full(everyone.shape, spread), variance], 1),
        )


@lru_cache(maxsize=8)
def capped(federation: Federation, most: int, seed: int) -> Federation:
    """The federation with at most so many validation and test examples of each client.

    Which of a client's examples are used is drawn at random; cached, so the same object.
    """
    keep, ranges, at = [], torch.zeros_like(federation.ranges), 0
    for k in range(len(federation)):
        for s, split in enumerate(SPLITS):
            start, stop = federation.ranges[k, s].tolist()
            rows = torch.arange(start, stop)
            if split != "train" and len(rows) > most:
                generator = torch.Generator().manual_seed((seed * 1_000_003 + k) * 3 + s)
                rows = rows[torch.randperm(len(rows), generator=generator)[:most].sort().values]
            keep.append(rows)
            ranges[k, s, 0], ranges[k, s, 1] = at, at + len(rows)
            at += len(rows)
    index = torch.cat(keep)
    return replace(
        federation,
        x=federation.x[index],
        y=federation.y[index],
        groups=federation.groups[index],
        ranges=ranges,
    )
