"""Add a matrix product to a tensor in one operation.

`p - rate * (a @ b)` is a step of gradient descent, and `a @ b + bias` a linear layer. As separate
operations, the product is written to memory, read and written again to be scaled, and read once
more to be subtracted. As one operation, the product is added to `p` where it lies, and the factor
scales the smaller of `a` and `b`. The results differ in rounding, because the factor is applied
before the sum over products instead of after it.

Whether operations are joined depends on shapes alone, never on values or on time, so a repeated or
resumed run computes the same.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from isonomy.engines.batched.trace import LAYOUT, Layout, Traced

aten = torch.ops.aten

_ADDING: dict[Any, Any] = {
    aten.bmm.default: aten.baddbmm.default,
    aten.mm.default: aten.addmm.default,
}


class _Product(NamedTuple):
    """A matrix product times some factors, each of which is one number for a whole matrix."""

    node: torch.fx.Node
    factors: tuple[torch.fx.Node, ...]


def add_products(graph: Traced) -> None:
    """Join matrix products with the addition or subtraction of their result, as far as possible."""
    for node in list(graph.graph.nodes):
        if node.target not in (aten.add.Tensor, aten.sub.Tensor) or node.kwargs:
            continue
        left, right = node.args
        minus = node.target is aten.sub.Tensor
        for other, term in ((left, right),) if minus else ((left, right), (right, left)):
            product = _product(term)
            if product is not None and _fits(other, product.node, node):
                _join(graph.graph, node, other, product, minus)
                break
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _product(term: Any) -> _Product | None:
    """The product that a term is, if nothing else reads it."""
    if not isinstance(term, torch.fx.Node) or len(term.users) != 1:
        return None
    if term.target in _ADDING:
        return _Product(term, ())
    if term.target is not aten.mul.Tensor:
        return None
    for one, factor in (term.args, term.args[::-1]):
        inner = _product(one)
        if inner is not None and _is_factor(factor, inner.node):
            return _Product(inner.node, (*inner.factors, factor))  # type: ignore[arg-type]
    return None


def _is_factor(factor: Any, product: torch.fx.Node) -> bool:
    """Whether this is one number of the product's type for each matrix, or for all of them."""
    own, whole = _layout(factor), _layout(product)
    if own is None or whole is None or own.dtype != whole.dtype:
        return False
    matrices = (*whole.shape[:-2], 1, 1)
    single = math.prod(own.shape) == 1 and len(own.shape) <= len(matrices)
    return single or own.shape == matrices


def _fits(other: Any, product: torch.fx.Node, total: torch.fx.Node) -> bool:
    """Whether the sum has the product's shape, so that `other` is as large or is repeated."""
    own, made, out = _layout(other), _layout(product), _layout(total)
    if own is None or made is None or out is None:
        return False
    dense = tuple(math.prod(out.shape[i + 1 :]) for i in range(len(out.shape)))
    same = own.dtype == made.dtype == out.dtype and out.dtype.is_floating_point
    return same and made.shape == out.shape and out.stride == dense


def _join(
    graph: torch.fx.Graph, node: torch.fx.Node, other: Any, product: _Product, minus: bool
) -> None:
    """Replace a sum by one operation."""
    a, b = product.node.args
    # the first is the gradient, as a rule: it was just written, and is in the cache
    first = math.prod(_shape(a)) <= 2 * math.prod(_shape(b))
    with graph.inserting_before(node):
        scaled: Any = a if first else b
        for factor in product.factors:
            if minus:
                factor, minus = _like(graph, aten.neg.default, factor, factor), False
            scaled = _like(graph, aten.mul.Tensor, scaled, scaled, factor)
        if minus:
            scaled = _like(graph, aten.neg.default, scaled, scaled)
        a, b = (scaled, b) if first else (a, scaled)
        made = graph.call_function(_ADDING[product.node.target], (other, a, b))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _like(graph: torch.fx.Graph, target: Any, like: Any, *args: Any) -> torch.fx.Node:
    """An operation whose result has the shape and type of a node."""
    made = graph.call_function(target, args)
    made.meta = dict(like.meta)
    return made


def _layout(node: Any) -> Layout | None:
    found: Layout | None = node.meta.get(LAYOUT) if isinstance(node, torch.fx.Node) else None
    return found


def _shape(node: Any) -> tuple[int, ...]:
    layout = _layout(node)
    return () if layout is None else layout.shape
