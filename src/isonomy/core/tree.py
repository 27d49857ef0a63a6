"""Operations on trees of tensors.

A tree is a tensor, or a dict, list, tuple or NamedTuple of trees. Messages, replies, server
state and client state are all trees, so the same functions average, store and send them.

>>> import torch
>>> float(sq_norm({"w": torch.tensor([3.0, 4.0])}))
25.0
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A tensor, or a dict, list, tuple or NamedTuple of trees."""


def tmap(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to each leaf (with the same leaf of every other tree).

    As torch's `tree_map`, which takes several times as long for the trees of a round.
    """
    if isinstance(tree, Tensor):
        return function(tree, *others)
    kind = type(tree)
    if kind is dict and all(type(other) is dict for other in others):
        if not others:
            return {name: tmap(function, part) for name, part in tree.items()}
        if all(other.keys() == tree.keys() for other in others):
            return {
                name: tmap(function, part, *(other[name] for other in others))
                for name, part in tree.items()
            }
    elif _is_tuple(tree) and all(
        type(other) is kind and len(other) == len(tree) for other in others
    ):
        parts = [tmap(function, *each) for each in zip(tree, *others, strict=True)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return pytree.tree_map(function, tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in a fixed order."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) is dict:
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if _is_tuple(tree):
        return [leaf for part in tree for leaf in leaves(part)]
    return list(pytree.tree_leaves(tree))


def _is_tuple(tree: Tree) -> bool:
    """Whether this is a tuple, a list or a NamedTuple, and not a class of torch's own."""
    kind = type(tree)
    return kind is tuple or kind is list or (isinstance(tree, tuple) and hasattr(kind, "_fields"))


def add(a: Tree, b: Tree) -> Tree:
    """A + b."""
    return tmap(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """A - b."""
    return tmap(torch.sub, a, b)


def scale(a: Tree, factor: float | Tensor) -> Tree:
    """Factor * a."""
    return tmap(lambda t: t * factor, a)


def mix(a: Tree, b: Tree, share: float | Tensor) -> Tree:
    """(1 - share) * a + share * b."""
    return tmap(lambda s, t: (1 - share) * s + share * t, a, b)


def zeros_like(a: Tree) -> Tree:
    """A tree of zeros of the same shape."""
    return tmap(torch.zeros_like, a)


def dot(a: Tree, b: Tree) -> Tensor:
    """Inner product of two trees seen as vectors."""
    parts = [(s * t).sum() for s, t in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(parts).sum() if parts else torch.zeros(())


def sq_norm(a: Tree) -> Tensor:
    """Squared Euclidean norm of a tree seen as a vector."""
    parts = [t.square().sum() for t in leaves(a)]  # cheaper to differentiate than dot(a, a)
    return torch.stack(parts).sum() if parts else torch.zeros(())


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack equal trees on a new leading axis."""
    return tmap(lambda *ts: torch.stack(ts), trees[0], *trees[1:])


def concat(trees: Sequence[Tree]) -> Tree:
    """Join stacked trees along their leading axis."""
    return trees[0] if len(trees) == 1 else tmap(lambda *ts: torch.cat(ts), trees[0], *trees[1:])


def take(tree: Tree, index: int | slice | Tensor) -> Tree:
    """Index the leading axis of every leaf."""
    return tmap(lambda t: t[index], tree)


def weighted_sum(stacked: Tree, weight: Tensor) -> Tree:
    """Sum over the leading axis, each entry times its weight."""
    return tmap(lambda t: torch.tensordot(weight.to(t.dtype), t, dims=1), stacked)


def weighted_mean(stacked: Tree, weight: Tensor) -> Tree:
    """Mean over the leading axis with weights that need not sum to one."""
    return weighted_sum(stacked, weight / weight.sum())


def nbytes(tree: Tree) -> int:
    """The number of bytes of the tree's tensors."""
    return sum(t.numel() * t.element_size() for t in leaves(tree))


def finite(tree: Tree) -> bool:
    """Whether every floating number in the tree is finite.

    A sum is finite only if all of its numbers are, and takes a fifth of the time to check. It may
    also overflow, so that numbers whose sum is not finite are checked one by one.
    """
    return sums_finite(tree) or all(
        bool(torch.isfinite(t).all()) for t in leaves(tree) if t.is_floating_point()
    )


def sums_finite(tree: Tree) -> bool:
    """Whether the sum of every leaf is finite, which implies that all numbers are."""
    sums = [t.sum() for t in leaves(tree) if t.is_floating_point()]
    return sum(float(s) * 0.0 for s in sums) == 0.0


# --- a tree as named arrays and a JSON description: for files and messages, without pickle


def pack(tree: Tree) -> tuple[dict[str, Tensor], Any]:
    """Split a tree into named arrays and a description of its structure that fits in JSON.

    >>> import torch
    >>> arrays, shape = pack({"a": (torch.ones(1), torch.zeros(1))})
    >>> sorted(arrays)
    ['a/0', 'a/1']
    """
    arrays: dict[str, Tensor] = {}

    def walk(node: Tree, path: str) -> Any:
        def child(name: object) -> str:
            return f"{path}/{name}" if path else str(name)

        if isinstance(node, Tensor):
            arrays[path or "value"] = node.detach()
            return path or "value"
        if isinstance(node, dict):
            if not all(isinstance(k, str) and k and "/" not in k for k in node):
                raise TypeError(f"tree at '{path}': dict keys must be strings without '/'")
            return {"dict": {k: walk(v, child(k)) for k, v in node.items()}}
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            fields = zip(node._fields, node, strict=True)
            return {
                "named": type(node).__name__,
                "fields": {k: walk(v, child(k)) for k, v in fields},
            }
        if isinstance(node, tuple | list):
            kind = "tuple" if isinstance(node, tuple) else "list"
            return {kind: [walk(v, child(i)) for i, v in enumerate(node)]}
        raise TypeError(f"tree at '{path}': {type(node).__name__} is not a tensor or a container")

    shape = walk(tree, "")
    return arrays, shape


def unpack(arrays: dict[str, Tensor], shape: Any) -> Tree:
    """Undo `pack`. A NamedTuple is restored as a plain namedtuple with the same fields."""
    if isinstance(shape, str):
        return arrays[shape]
    if "dict" in shape:
        return {k: unpack(arrays, v) for k, v in shape["dict"].items()}
    if "named" in shape:
        kind = namedtuple(shape["named"], list(shape["fields"]))  # type: ignore[misc]
        return kind(**{k: unpack(arrays, v) for k, v in shape["fields"].items()})
    if "tuple" in shape:
        return tuple(unpack(arrays, v) for v in shape["tuple"])
    return [unpack(arrays, v) for v in shape["list"]]


def like(template: Tree, tree: Tree) -> Tree:
    """Give `tree`'s leaves the containers of `template` (its own NamedTuple classes)."""
    _, spec = pytree.tree_flatten(template)
    return pytree.tree_unflatten(leaves(tree), spec)
