"""Histograms of scores, made from lists of scores and by drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from isonomy.core.examples import Attribute
from isonomy.metrics.scores import BINS, Scores

SEX = (Attribute("sex", ("F", "M")),)


def histogram(clients: Sequence[Mapping[int, Sequence[tuple[float, int]]]]) -> Scores:
    """From each client's (score, label) pairs by group; a score is rounded down to its bin."""
    counts = np.zeros((len(clients), 3, 2, BINS), dtype=np.int64)
    for k, groups in enumerate(clients):
        for a, pairs in groups.items():
            for score, label in pairs:
                for row in (0, 1 + a):
                    counts[k, row, label, round(score * BINS)] += 1
    return Scores(counts, SEX)


def drawn(seed: int, sizes: Sequence[tuple[int, int]], tilt: float = 1.0) -> Scores:
    """Calibrated scores that differ between the groups; `tilt` below 1 makes them too low."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((len(sizes), 3, 2, BINS), dtype=np.int64)
    for k, both in enumerate(sizes):
        for a, size in enumerate(both):
            true = rng.beta(1.2 + 0.8 * a + 0.2 * k, 3, size)
            label = (rng.random(size) < true).astype(np.int64)
            place = np.minimum((true * tilt * BINS).astype(np.int64), BINS - 1)
            for row in (0, 1 + a):
                np.add.at(counts, (k, row, label, place), 1)
    return Scores(counts, SEX)
