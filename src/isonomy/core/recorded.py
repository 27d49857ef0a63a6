"""What an algorithm records about its rounds, as JSON can store it."""

from __future__ import annotations

import math

from torch import Tensor

Recorded = float | str | None | dict[str, float | None]
"""What an algorithm records: a number (None if not finite), a word, or a number per client."""


def plain_record(value: float | str | Tensor, ids: Tensor) -> Recorded:
    """A recorded value as JSON can store it: seven digits, and None for what is not finite."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Tensor) or not value.ndim:
        return float(f"{float(value):.7g}") if math.isfinite(value) else None
    if value.shape != ids.shape:
        raise ValueError(
            f"a recorded tensor has the shape {tuple(value.shape)}, but the cohort has {len(ids)} "
            "clients; record one number for each of cohort.ids."
        )
    pairs = zip(ids.tolist(), value.tolist(), strict=True)
    return {str(k): float(f"{v:.7g}") if math.isfinite(v) else None for k, v in pairs}
