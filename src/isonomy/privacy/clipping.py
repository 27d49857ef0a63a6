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

    rows: Tensor  # [clients, numbers], double precision
    norms: Tensor  # before clipping; inf where a number was not finite


def clip_rows(rows: Tensor, clip: float) -> Clipped:
    """Rows of at most this Euclidean norm.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0]]), 1.0).rows.tolist()
    [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    """
    rows = rows.double()
    good = torch.isfinite(rows).all(1)
    rows = torch.where(good.unsqueeze(1), rows, 0.0)
    largest = rows.abs().amax(1, keepdim=True).clamp(min=1e-300)  # squares do not overflow
    norms = (rows / largest).square().sum(1).sqrt() * largest.squeeze(1)
    factor = (clip / norms.clamp(min=1e-300)).clamp(max=1.0)
    short = (rows * factor.unsqueeze(1)).clamp(-clip, clip)  # where a norm overflowed to inf
    short = torch.where(torch.isfinite(norms).unsqueeze(1), short, 0.0)
    return Clipped(short, torch.where(good, norms, torch.inf))


def part_of(ask: Ask, name: str, value: Any) -> Trained:
    """How the vector of a part is counted: from what was sent, or from zero."""
    found = {part.name: part for part in trained(ask, {name: value[name]})}
    return found.get(name, Trained(name, None))


def rows_of(value: Any, part: Trained, at: Tensor) -> Tensor:
    """The vectors of a part, one row per client, in double precision."""
    exact = {part.name: tree.tmap(lambda t: t.double(), value[part.name])}
    return updates(exact, [part], at)


def with_rows(value: Any, part: Trained, at: Tensor, rows: Tensor, *, origin: bool) -> Any:
    """The part with other vectors: added to what was sent (`origin`), or alone."""
    kind = torch.get_default_dtype()
    like = {part.name: tree.tmap(lambda t: t.to(kind), value[part.name])}
    where = part if origin else Trained(part.name, None)
    return replied(like, [where], at, rows)[part.name]
