"""A look at every reply before it counts: what is wrong with it, in a few words, or nothing."""

from __future__ import annotations

from torch.utils import _pytree as pytree

from isonomy import tree
from isonomy.tree import Tree

ROOM = 1 << 16  # bytes that a reply may have beyond its numbers


def most(like: Tree) -> int:
    """The most bytes that a reply of this shape may take."""
    return tree.nbytes(like) + 512 * len(tree.leaves(like)) + ROOM


def check(reply: Tree, like: Tree) -> str | None:
    """Why a reply cannot be used where `like` shows its shapes and types; None if it can."""
    got, want = pytree.tree_flatten_with_path(reply)[0], pytree.tree_flatten_with_path(like)[0]
    if [path for path, _ in got] != [path for path, _ in want]:
        return "it has other parts than were asked for"
    for (path, t), (_, expected) in zip(got, want, strict=True):
        name = pytree.keystr(path)
        if t.shape != expected.shape:
            return f"{name} has shape {list(t.shape)}, not {list(expected.shape)}"
        if t.dtype != expected.dtype:
            return f"{name} holds {_kind(t)}, not {_kind(expected)}"
        if not tree.finite(t):
            return f"{name} holds numbers that are not finite"
    return None


def _kind(t: object) -> str:
    return str(getattr(t, "dtype", type(t).__name__)).removeprefix("torch.")
