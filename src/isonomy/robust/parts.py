"""Which parts of a reply are models or updates: what an attack changes and a combiner combines.

A reply is a dict of named parts. Beside single tensors (losses, counts, shares), which are left
alone, it may hold trees of floating-point parameters. Such a part is

- a **model** if it has the tree of a part that was sent, the one of the same name if there is one,
  else the first such. Its update is what came back minus what was sent;
- an **update** in itself if it has the tree of a part that was sent and is called `gradient`,
  `update` or `delta`;
- **alone** if nothing like it was sent, but its tensors have names of parameters, with a dot
  (`fc1.weight`): layers, as FedMA sends them. Its update is what came back. Attacks change it,
  combiners do not.

So an algorithm says by the names in its messages what its replies are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.core.tree import Tree

UPDATES = ("gradient", "update", "delta")
"""Names of parts that are differences in themselves."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the replies: its name, what its update is counted from, whether it was sent."""

    name: str
    origin: Tree | None  # None: from zero
    own: bool  # whether `origin` is each client's own, stacked over the ids that were asked
    sent: bool
    model: Tree | None = None  # the sent tree that it resembles, if all clients were sent the same


def parts(ask: Ask, value: Any) -> list[Part]:
    """The models and updates in stacked replies to a question."""
    if not isinstance(value, Mapping):
        return []
    common = {k: v for k, v in ask.message.items() if _is_tree(v)}
    own = {k: v for k, v in (ask.each or {}).items() if _is_tree(v)}
    found = []
    for name, part in value.items():
        if not _is_tree(part):
            if "." in name and _floating(part):
                found.append(Part(name, None, False, False))
            continue
        like = [k for k, v in common.items() if _alike(v, part, False)]
        mine = [k for k, v in own.items() if _alike(v, part, True)]
        if name in UPDATES and (like or mine):
            found.append(Part(name, None, False, True, common[like[0]] if like else None))
        elif name in like:
            found.append(Part(name, common[name], False, True, common[name]))
        elif name in mine:
            found.append(Part(name, own[name], True, True))
        elif like:
            found.append(Part(name, common[like[0]], False, True, common[like[0]]))
        elif mine:
            found.append(Part(name, own[mine[0]], True, True))
        elif any("." in key for key in _keys(part)):
            found.append(Part(name, None, False, False))
    return found


def updates(value: Any, found: list[Part], at: Tensor) -> Tensor:
    """The updates of some clients, flattened: a row a client.

    `value` are their replies; `at` is where they stand among the clients that were asked.
    """
    columns = []
    for part in found:
        origin = _origin(part, at)
        for i, leaf in enumerate(tree.leaves(value[part.name])):
            given = leaf if origin is None else leaf - origin[i]
            columns.append(given.reshape(len(leaf), math.prod(leaf.shape[1:])))
    return torch.cat(columns, 1)


def replied(value: Any, found: list[Part], at: Tensor, new: Tensor) -> Any:
    """The replies with other updates in the place of their own."""
    out = dict(value)
    first = 0
    for part in found:
        origin = _origin(part, at)
        leaves, spec = pytree.tree_flatten(value[part.name])
        made = []
        for i, leaf in enumerate(leaves):
            count = math.prod(leaf.shape[1:])
            moved = new[:, first : first + count].reshape(leaf.shape).to(leaf.dtype)
            made.append(moved if origin is None else origin[i] + moved)
            first += count
        out[part.name] = pytree.tree_unflatten(made, spec)
    return out


def _origin(part: Part, at: Tensor) -> list[Tensor] | None:
    if part.origin is None:
        return None
    leaves = tree.leaves(part.origin)
    return [t[at] for t in leaves] if part.own else leaves


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_tree(value: Any) -> bool:
    leaves = tree.leaves(value)
    return not isinstance(value, Tensor) and bool(leaves) and all(map(_floating, leaves))


def _alike(sent: Tree, part: Tree, stacked: bool) -> bool:
    """Whether stacked replies have the tree and the shapes of what was sent."""
    ours, spec = pytree.tree_flatten(sent)
    theirs, other = pytree.tree_flatten(part)
    skip = 1 if stacked else 0
    return spec == other and all(
        a.shape[skip:] == b.shape[1:] for a, b in zip(ours, theirs, strict=True)
    )


def _keys(part: Tree) -> list[str]:
    if isinstance(part, Mapping):
        return [str(k) for k in part] + [key for v in part.values() for key in _keys(v)]
    if isinstance(part, tuple | list):
        return [key for v in part for key in _keys(v)]
    return []
