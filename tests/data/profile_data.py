"""Federations with known differences between clients, for the tests of descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from isonomy.core.examples import Attribute, Split
from isonomy.data.federation import Federation, build

Array = np.ndarray[Any, Any]


def federation(
    xs: Sequence[Array],
    ys: Sequence[Array],
    groups: Sequence[Array] | None = None,
    *,
    classes: int = 2,
    levels: tuple[str, ...] = ("a", "b"),
    test: float = 0.0,
    **more: Any,
) -> Federation:
    """One client for each array; the last rows of a client test, as many as `test` says."""
    sizes = [len(y) for y in ys]
    starts = np.cumsum([0, *sizes])
    parts: dict[Split, list[torch.Tensor]] = {"train": [], "validation": [], "test": []}
    for start, size in zip(starts, sizes, strict=False):
        cut = size - round(test * size)
        parts["train"].append(torch.arange(start, start + cut))
        parts["validation"].append(torch.arange(0))
        parts["test"].append(torch.arange(start + cut, start + size))
    y = torch.from_numpy(np.concatenate(ys))
    code = np.zeros((len(y), 0), dtype=np.int64)
    if groups is not None:
        code = np.concatenate(groups).astype(np.int64)[:, None]
    return build(
        torch.from_numpy(np.concatenate(xs)),
        y.to(torch.int64) if classes else y.float(),
        torch.from_numpy(code),
        parts,
        classes=classes,
        attributes=() if groups is None else (Attribute("g", levels),),
        source="made up",
        **more,
    )


def draw(rng: np.random.Generator, rows: int, share: float, kind: str, width: int = 8) -> Any:
    """x and y of one client: P(x | y) is the same for all clients, P(y=1) is `share`."""
    y = (rng.random(rows) < share).astype(np.int64)
    if kind == "normal":
        x = rng.standard_normal((rows, width)) + 0.5 * y[:, None]
    elif kind == "skew":
        x = rng.exponential(size=(rows, width)) + 0.5 * y[:, None]
    else:  # indicators, some of them rare
        x = rng.random((rows, width)) < np.linspace(0.002, 0.3, width) * (1 + y[:, None])
    return x.astype(np.float64), y
