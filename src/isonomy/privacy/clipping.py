"""Clipping: one client's reply can change what is released by at most a known amount.

A part of a reply is seen as one vector: a model as the difference to what was sent, everything
else as it is. A vector longer than the clip is shortened to it. A vector with a number that is not
finite becomes zero: its client takes part, but contributes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Ask
from isonomy.core.phase import Declaration, Phase
from isonomy.core.task import Task
from isonomy.errors import ConfigError
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


class ClippedReplies:
    """Client side: a participant of a real federation sends nothing longer than the clips.

    The server clips replies again, because it cannot know that all participants did.
    """

    def __init__(self, clip: float, bounds: Mapping[str, float]) -> None:
        self.clip, self.bounds = clip, bounds

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase."""
        declared = ask.declared

        def wrapped(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
            reply, state = phase(task, message, client)
            return {name: self._part(declared, name, reply[name], message) for name in reply}, state

        wrapped.declaration = declared  # type: ignore[attr-defined]
        return wrapped

    def _part(self, declared: Declaration, name: str, value: Any, message: Message) -> Any:
        part, clip = declared.parts[name], self.bounds.get(name)
        origin = message.get(part.of or "") if part.kind == "model" else None
        if name in declared.trained:
            clip = self.clip
        if clip is None:
            raise ConfigError(
                f"privacy.bounds has no entry for '{name}', a statistic that phase "
                f"'{declared.name}' collects; nothing was sent."
            )
        zero = tree.tmap(torch.zeros_like, value) if origin is None else origin
        moved = tree.tmap(lambda t, o: t.double() - o.double(), value, zero)
        rows = torch.cat([t.reshape(1, -1) for t in tree.leaves(moved)], 1)
        found = clip_rows(rows, clip * (1 - SLACK))
        if float(found.norms[0]) <= clip * (1 - SLACK):
            return value
        short = iter(torch.split(found.rows[0], [t.numel() for t in tree.leaves(moved)]))
        return tree.tmap(lambda t, o: _moved(t, o, next(short)), value, zero)


def _moved(t: Tensor, origin: Tensor, by: Tensor) -> Tensor:
    """A tensor at this distance from its origin; whole numbers are rounded towards it."""
    by = by.reshape(t.shape) if t.is_floating_point() else by.reshape(t.shape).trunc()
    return (origin.double() + by).to(t.dtype)


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
