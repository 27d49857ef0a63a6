"""What a partition may use of the rows, and the random generator that it draws from."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isonomy.errors import ConfigError, unknown

Integers = NDArray[np.int64]
Seed = int | Sequence[int]


@dataclass(frozen=True)
class Categories:
    """A column of categories: the code of each row, and the names of the codes."""

    codes: Integers
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def count(self, level: str) -> int:
        """The number of rows that have a level."""
        return int((self.codes == self.levels.index(level)).sum()) if level in self.levels else 0


@dataclass(frozen=True)
class Rows:
    """What a partition may use: labels, groups (of the first attribute) and named columns."""

    labels: Integers
    groups: Integers | None = None
    columns: Mapping[str, Categories] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def cells(self, by: str) -> Integers:
        """The number of each row's cell: its label, its group, or the pair of both."""
        if by not in ("label", "group", "label*group"):
            raise ConfigError(unknown("value of by", by, ("label", "group", "label*group")))
        if by == "label":
            return _renumber(self.labels)
        if self.groups is None:
            raise ConfigError(
                f"by='{by}' needs a protected attribute and the data set has none; use by='label'."
            )
        groups = _renumber(self.groups)
        if by == "group":
            return groups
        return _renumber(_renumber(self.labels) * (int(groups.max(initial=0)) + 1) + groups)


def generator(stream: str, seed: Seed) -> np.random.Generator:
    """Return a PCG64 generator keyed by the name of the stream and the seed."""
    parts = [seed] if isinstance(seed, int) else list(seed)
    if any(part < 0 for part in parts):
        raise ConfigError(f"seed is {min(parts)}; set it to a whole number of 0 or more.")
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([zlib.crc32(stream.encode()), *parts]))
    )


def _renumber(codes: Integers) -> Integers:
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)
