"""The partition `rotations`: clusters of clients whose images are rotated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isonomy.data.partition.random_rows import iid
from isonomy.data.partition.registry import MINIMUM, partition
from isonomy.data.partition.rows import Rows, Seed
from isonomy.errors import ConfigError


def rotation_angles(
    degrees: Sequence[float], counts: Sequence[int], minimum: int = 10
) -> tuple[float, ...]:
    """Return the angle of every client under the partition `rotations`, cluster by cluster.

    >>> rotation_angles((0, 90), (3, 1))
    (0.0, 0.0, 0.0, 90.0)
    """
    del minimum
    if len(degrees) != len(counts) or not degrees:
        raise ConfigError(
            f"partition 'rotations': there are {len(degrees)} degrees and {len(counts)} counts; "
            "give one angle and one number of clients for each cluster."
        )
    if not all(math.isfinite(angle) for angle in degrees):
        raise ConfigError(
            f"partition 'rotations': degrees are {list(degrees)}; all must be finite numbers."
        )
    if len({angle % 360 for angle in degrees}) < len(degrees):
        raise ConfigError(
            f"partition 'rotations': degrees are {list(degrees)}; give every cluster a different "
            "angle."
        )
    if min(counts) < 1:
        raise ConfigError(
            f"partition 'rotations': counts are {list(counts)}; give every cluster 1 client or "
            "more, or remove its angle."
        )
    pairs = zip(degrees, counts, strict=True)
    return tuple(float(angle) for angle, count in pairs for _ in range(count))


def _names(rows: Rows, **options: Any) -> tuple[str, ...]:
    del rows
    angles = rotation_angles(**options)
    return tuple(f"client {k}, {angle:g} degrees" for k, angle in enumerate(angles))


@partition(
    "rotations",
    "clusters of clients whose images are rotated by different angles",
    counted=True,
    angles=rotation_angles,
    names=_names,
    degrees="each cluster's angle, counter-clockwise; multiples of 90 are exact",
    counts="each cluster's number of clients",
    minimum=MINIMUM,
)
def rotations(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    degrees: Sequence[float] = (0.0, 90.0, 180.0),
    counts: Sequence[int] = (7, 2, 1),
    minimum: int = 10,
) -> list[Tensor]:
    """Assign rows as `iid` does (Chu et al., FOCUS); the data set applies `rotation_angles`.

    `clients` is 0, or the sum of the counts.
    """
    total = len(rotation_angles(degrees, counts))
    if clients not in (0, total):
        raise ConfigError(
            f"partition 'rotations': counts {list(counts)} make {total} clients, not {clients}; "
            f"remove the number of clients, or set counts that add up to {clients}."
        )
    return iid(rows, total, seed, minimum=minimum)
