"""Clipping: one client's reply can change what is released by at most a known amount.

A part of a reply is seen as one vector: a model as the difference to what was sent, everything
else as it is. A vector longer than the clip is shortened to it. A vector with a number that is not
finite becomes zero: its client takes part, but contributes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.robust.parts import Trained, replied, trained, updates

SLACK = 1e-6  # relative: what rounding to single precision may add to a norm


@dataclass(frozen=True, eq=False)
class Clipped:
    """The rows of one part after clipping, and how long they were before."""

    rows: Tensor  # [clients, numbers]
    norms: Tensor  # before clipping; inf where a number was not finite


def clip_rows(rows: Tensor, clip: float) -> Clipped:
    """Rows of at most this Euclidean norm.

    >>> rows = torch.tensor([[3.0, 4.0], [0.25, 0.5], [float("nan"), 1.0]]).double()
    >>> [[round(v, 6) for v in row] for row in clip_rows(rows, 1.0).rows.tolist()]
    [[0.6, 0.8], [0.25, 0.5], [0.0, 0.0]]
    """
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    good = torch.isfinite(norms)
    if not bool(good.all()):
        rows, norms = torch.where(good.unsqueeze(1), rows, 0.0), torch.where(good, norms, torch.inf)
    factor = (clip / norms.clamp(min=1e-300)).clamp(max=1.0)
    if float(factor.min()) < 1:
        rows = rows * factor.to(rows.dtype).unsqueeze(1)
    return Clipped(rows, norms)


def part_of(ask: Ask, name: str, value: Any) -> Trained:
    """How the vector of a part is counted: from what was sent, or from zero."""
    found = {part.name: part for part in trained(ask, {name: value[name]})}
    return found.get(name, Trained(name, None))


def rows_of(value: Any, part: Trained, at: Tensor) -> Tensor:
    """The vectors of a part, one row per client; whole numbers in double precision."""
    real = tree.tmap(lambda t: t if t.is_floating_point() else t.double(), value[part.name])
    return updates({part.name: real}, [part], at)


def with_rows(value: Any, part: Trained, at: Tensor, rows: Tensor, *, origin: bool) -> Any:
    """The part with other vectors: added to what was sent (`origin`), or alone."""
    kind = torch.get_default_dtype()
    like = {part.name: tree.tmap(lambda t: t.to(kind), value[part.name])}
    where = part if origin else Trained(part.name, None)
    return replied(like, [where], at, rows)[part.name]
