"""Screening: a reply that is not finite or wrongly shaped never reaches the model.

Its client counts as not replying in that exchange, and is named with the reason. The screen is the
outermost server-side middleware, so it also sees what attacks changed.

Which shape is right? In a simulation the engine runs honest code, so the first reply shows it
(`learn`, the innermost middleware). If replies come from elsewhere, it is the shape that more than
half of the asked clients sent; until one shape has a majority, replies are held back, and if none
ever has, the most frequent one counts (of equally frequent ones, that of the lowest client).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import tree
from isonomy.core.cohort import Ask, Exchange, Replies
from isonomy.core.tree import Tree

NOT_FINITE = "sent numbers that are not finite"
WRONG_SHAPE = "sent a reply of a wrong shape"


class Shape(NamedTuple):
    """The containers, dtypes and shapes of one client's reply."""

    spec: Any
    leaves: tuple[tuple[torch.dtype, tuple[int, ...]], ...]


def shape_of(reply: Tree, *, stacked: bool = False) -> Shape:
    """The shape of a reply, or of each of several that are stacked on a leading axis.

    >>> one, many = {"w": torch.zeros(3)}, {"w": torch.zeros(7, 3)}
    >>> shape_of(one) == shape_of(many, stacked=True)
    True
    """
    leaves, spec = pytree.tree_flatten(reply)
    skip = 1 if stacked else 0
    return Shape(spec, tuple((t.dtype, tuple(t.shape)[skip:]) for t in leaves))


def fault(reply: Tree, like: Tree) -> str | None:
    """What is wrong with a single reply that should have the shapes and types of `like`; or None.

    >>> fault({"w": torch.tensor([0.0, float("nan")])}, {"w": torch.zeros(2)})
    "['w'] holds numbers that are not finite"
    """
    got, want = pytree.tree_flatten_with_path(reply)[0], pytree.tree_flatten_with_path(like)[0]
    if [path for path, _ in got] != [path for path, _ in want]:
        return "it has other parts than requested"
    for (path, t), (_, expected) in zip(got, want, strict=True):
        name = pytree.keystr(path)
        if not isinstance(t, Tensor) or t.dtype != expected.dtype:
            return f"{name} holds {_kind(t)}, not {_kind(expected)}"
        if t.shape != expected.shape:
            return f"{name} has shape {list(t.shape)}, not {list(expected.shape)}"
        if not tree.finite(t):
            return f"{name} holds numbers that are not finite"
    return None


def _kind(t: object) -> str:
    return str(getattr(t, "dtype", type(t).__name__)).removeprefix("torch.")


class Screen:
    """Screens the exchanges of a round; `rejected` holds each rejected client's first reason."""

    def __init__(self) -> None:
        self.rejected: dict[int, str] = {}
        self._right: Shape | None = None

    def learn(self, exchange: Exchange) -> Exchange:
        """The innermost middleware of an engine that runs honest phases: learns the right shape."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            for chunk in exchange(ask):
                if self._right is None and len(chunk.ids):
                    self._right = shape_of(chunk.value, stacked=True)
                yield chunk

        return wrapped

    def __call__(self, exchange: Exchange) -> Exchange:
        """The outermost middleware: passes on valid replies only."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            self._right = None
            held: list[tuple[Shape, Replies]] = []
            for chunk in exchange(ask):
                if not len(chunk.ids):
                    continue
                shape = shape_of(chunk.value, stacked=True)
                if self._right is None:
                    held.append((shape, chunk))
                    self._right, many = _most_frequent(held)
                    if 2 * many <= len(ask.ids):
                        self._right = None
                        continue
                    for earlier, before in held:
                        yield from self._valid(earlier, before)
                    held = []
                else:
                    yield from self._valid(shape, chunk)
            if held:
                self._right = _most_frequent(held)[0]
                for shape, chunk in held:
                    yield from self._valid(shape, chunk)

        return wrapped

    def _valid(self, shape: Shape, chunk: Replies) -> Iterator[Replies]:
        """The valid replies of a chunk."""
        if shape != self._right or any(len(t) != len(chunk.ids) for t in tree.leaves(chunk.value)):
            self._reject(chunk.ids, WRONG_SHAPE)
            return
        if tree.sums_finite(chunk.value):
            yield chunk
            return
        good = torch.ones(len(chunk.ids), dtype=torch.bool)
        for leaf in tree.leaves(chunk.value):
            if leaf.is_floating_point():
                good &= torch.isfinite(leaf).reshape(len(good), -1).all(1).cpu()
        self._reject(chunk.ids[~good], NOT_FINITE)
        at = good.nonzero().squeeze(-1)
        if len(at) == len(good):
            yield chunk
        elif len(at):
            yield Replies(tree.take(chunk.value, at), chunk.ids[at], chunk.sizes[at])

    def _reject(self, ids: Tensor, why: str) -> None:
        for k in ids.tolist():
            self.rejected.setdefault(int(k), why)


def _most_frequent(held: list[tuple[Shape, Replies]]) -> tuple[Shape, int]:
    """The most frequent shape, and how many clients sent it."""
    kinds: list[tuple[Shape, int, int]] = []  # the shape, its clients, the lowest of them
    for shape, chunk in held:
        count, lowest = len(chunk.ids), int(chunk.ids.min())
        for i, (known, many, first) in enumerate(kinds):
            if known == shape:
                kinds[i] = (known, many + count, min(first, lowest))
                break
        else:
            kinds.append((shape, count, lowest))
    best = max(kinds, key=lambda kind: (kind[1], -kind[2]))
    return best[0], best[1]
