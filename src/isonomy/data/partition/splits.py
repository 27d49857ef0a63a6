"""Which of a client's rows train, validate and test."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.data.partition.rows import Integers, Seed, generator
from isonomy.errors import ConfigError

FRACTIONS = (0.7, 0.1, 0.2)


def split(
    rows: Tensor,
    labels: Integers,
    groups: Integers | None,
    fractions: Sequence[float],
    seed: Seed,
) -> dict[Split, Tensor]:
    """Split row numbers into train, validation and test, stratified by label x group.

    The rows are shuffled, sorted by stratum and assigned evenly along that order. So the size of
    each split is its fraction of the rows, rounded, and its number of rows of every stratum is
    within one or two of that fraction. The training split is never empty.

    >>> parts = split(torch.arange(10), np.arange(10) % 2, None, (0.6, 0.2, 0.2), seed=0)
    >>> [len(parts[name]) for name in SPLITS]
    [6, 2, 2]
    """
    train, validation, test = _check_fractions(fractions)
    index = rows.numpy()
    index = generator("split", seed).permutation(index)
    strata = [labels[index]] if groups is None else [groups[index], labels[index]]
    index = index[np.lexsort(strata)]
    tested = _spread_evenly(len(index), test)
    rest = index[~tested]
    validated = _spread_evenly(len(rest), validation / (train + validation))
    if validated.all():  # very few rows: one of them has to be a training row
        validated[-1:] = False
    if not len(rest):
        tested[-1:] = False
        rest, validated = index[~tested], np.zeros(min(1, len(index)), dtype=bool)
    pieces = {"train": rest[~validated], "validation": rest[validated], "test": index[tested]}
    return {name: torch.from_numpy(np.sort(pieces[name])) for name in SPLITS}


def _spread_evenly(count: int, fraction: float) -> NDArray[np.bool_]:
    """Return a mask with round(count * fraction) true entries, spread as evenly as possible."""
    steps = np.floor(np.arange(count + 1) * fraction + 0.5 + 1e-9).astype(np.int64)
    out: NDArray[np.bool_] = steps[1:] > steps[:-1]
    return out


def _check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    if (
        len(fractions) != 3
        or not all(math.isfinite(f) and f >= 0 for f in fractions)
        or fractions[0] <= 0
        or abs(sum(fractions) - 1) > 1e-6
    ):
        raise ConfigError(
            f"fractions are {list(fractions)}; give three numbers for train, validation and test "
            "that add up to 1, the first of them above 0."
        )
    return float(fractions[0]), float(fractions[1]), float(fractions[2])
