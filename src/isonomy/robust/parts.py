"""The parts of a reply that hold parameters: attacks change them and defences combine them.

Which parts these are follows from what the phase declares (`isonomy.core.phase`): a model is
counted as an update from the part of the message that it was trained from, updates and gradients
as they are. A model that was not trained from a sent model also counts as it is: an attack may
change it, but a defence does not combine it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.core.tree import Tree


@dataclass(frozen=True, eq=False)
class Trained:
    """A part of replies that holds parameters, updates or gradients."""

    name: str
    origin: Tree | None  # what its update is counted from; None: from zero
    own: bool = False  # whether `origin` is each client's own, stacked over the ids asked
    combines: bool = True  # whether a defence may combine it
    sent: Tree | None = None  # the model that all clients were sent, if it was the same


def trained(ask: Ask, value: Any) -> list[Trained]:
    """The parts with parameters in replies to a question, in the order of the reply."""
    declared, each = ask.declared.trained, ask.each or {}
    found = []
    for name in value:
        if name not in declared:
            continue
        part, sent = declared[name], ask.message.get(declared[name].of or "")
        if part.kind != "model":
            found.append(Trained(name, None, sent=sent))
        elif sent is not None:
            found.append(Trained(name, sent, sent=sent))
        elif part.of in each:
            found.append(Trained(name, each[part.of], own=True))
        else:
            found.append(Trained(name, None, combines=False))
    return found


def updates(value: Any, found: list[Trained], at: Tensor) -> Tensor:
    """The updates of some clients, flattened: one row per client.

    `value` are their replies; `at` is where they stand among the clients that were asked.
    """
    columns = []
    for part in found:
        origin = _origin(part, at)
        for i, leaf in enumerate(tree.leaves(value[part.name])):
            given = leaf if origin is None else leaf - origin[i]
            columns.append(given.reshape(len(leaf), math.prod(leaf.shape[1:])))
    return torch.cat(columns, 1)


def origins(value: Any, found: list[Trained], at: Tensor) -> Tensor:
    """What these updates are counted from, rows like those of `updates`; 0 where it is nothing."""
    zero = {p.name: pytree.tree_map(torch.zeros_like, value[p.name]) for p in found}
    return -updates(zero, found, at)


def replied(value: Any, found: list[Trained], at: Tensor, new: Tensor) -> Any:
    """The replies with their updates replaced."""
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


def _origin(part: Trained, at: Tensor) -> list[Tensor] | None:
    if part.origin is None:
        return None
    leaves = tree.leaves(part.origin)
    return [t[at] for t in leaves] if part.own else leaves
