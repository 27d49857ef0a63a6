"""Make a traced step cheaper to run: fewer operations, less memory, less overhead per operation.

The bits of the result stay the same: `optimised` runs the graph before and after on the inputs that
it was traced with, and keeps the original if the results differ.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from isonomy.engines.batched.trace import Traced

aten = torch.ops.aten


def optimised(
    graph: Traced, inputs: list[Tensor], carried: int, *, compare: bool = True
) -> Callable[..., Any]:
    """The graph as a function that may write over its first `carried` inputs.

    Without `compare`, the graph itself is changed.
    """
    made = graph.copy() if compare else graph
    relu_after_pooling(made)
    write_over_operands(made, carried)
    native(made)
    if compare:
        expected = graph(*inputs)
        got = made(*(t.clone() for t in inputs[:carried]), *inputs[carried:])
        if not all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)):
            return graph.forward
    return made.forward


def without_python(
    program: Callable[..., Any], inputs: list[Tensor], carried: int
) -> Callable[..., Any]:
    """The program run by TorchScript's interpreter, with less overhead per operation.

    It calls the same kernels. The program itself is returned if the results differ, or if this
    torch has no TorchScript.
    """

    def copied() -> list[Tensor]:
        return [*(t.clone() for t in inputs[:carried]), *inputs[carried:]]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.jit.trace(  # type: ignore[no-untyped-call]
                lambda *t: tuple(program(*t)), copied(), check_trace=False
            )
        expected = program(*copied())
        for _ in range(3):  # it is optimised in its first calls
            got = made(*copied())
            if not all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)):
                return program
    except Exception:  # it is an optimisation only
        return program
    return cast(Callable[..., Any], made)


# --- fewer operations -----------------------------------------------------------------------------


def simplify(graph: Traced, device: torch.device | None = None) -> None:
    """Remove operations that change nothing or only fill a shape.

    `device` is that of all tensors, None for the CPU.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _FILLS:
            _fill(graph, node, device)
        elif node.target in _VIEWS | {aten.mul.Scalar}:
            same = _same_as(node) or _shorter_sum(graph.graph, node)
            if same is not None:
                node.replace_all_uses_with(same)
                graph.graph.erase_node(node)
        elif node.target is aten.mul.Tensor:
            other = _times_one(node)
            if other is not None:
                node.replace_all_uses_with(other)
                graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()  # such as the loss, if only its gradient is used
    graph.recompile()


def _same_as(node: torch.fx.Node) -> torch.fx.Node | None:
    """The earliest tensor that this one is only another name of."""
    found = None
    at = node
    while at.op == "call_function" and isinstance(at.args[0], torch.fx.Node):
        if at.target is aten.mul.Scalar and at.args[1] != 1:
            break
        if at.target not in _VIEWS | {aten.mul.Scalar} or at.target in _OFFSET:
            break
        at = at.args[0]
        # the same memory in the same layout from the same beginning is the same tensor
        if _layout(at.meta.get("tensor_meta")) == _layout(node.meta.get("tensor_meta")):
            found = at
    return found


def _shorter_sum(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """A sum without the axes that it was taken along, for a view that drops them."""
    total = node.args[0]
    if node.target is not aten.view.default or not isinstance(total, torch.fx.Node):
        return None
    if total.target is not aten.sum.dim_IntList or total.kwargs or total.args[2:] != (True,):
        return None
    term, axes = total.args[:2]
    if not isinstance(term, torch.fx.Node) or not axes or len(total.users) > 1:
        return None
    before, layout = term.meta.get("tensor_meta"), node.meta.get("tensor_meta")
    if before is None or layout is None:
        return None
    shape = before.shape
    gone = {axis % len(shape) for axis in axes}  # type: ignore[union-attr, operator]
    if tuple(n for i, n in enumerate(shape) if i not in gone) != tuple(layout.shape):
        return None
    with graph.inserting_before(node):
        made = graph.call_function(aten.sum.dim_IntList, (term, axes))
    made.meta = dict(node.meta)
    return made


def _times_one(node: torch.fx.Node) -> torch.fx.Node | None:
    """The other factor of a product with ones, if the product has its layout."""
    for one, other in (node.args, node.args[::-1]):
        if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node):
            return None
        ones = _root(one).target in (aten.ones.default, aten.ones_like.default)
        if ones and _layout(other.meta.get("tensor_meta")) == _layout(node.meta["tensor_meta"]):
            return other
    return None


def relu_after_pooling(graph: Traced) -> None:
    """Let ReLU follow max pooling where it precedes it, with a fraction of the numbers.

    The largest number of a window after ReLU is ReLU of the largest. The gradient goes to the same
    position, or is 0 because no number of the window is positive.
    """
    for node in list(graph.graph.nodes):
        if node.target is not aten.relu.default:
            continue
        pools = [u for u in node.users if u.target is aten.max_pool2d_with_indices.default]
        slopes = [u for u in node.users if u.target is _POOLING_SLOPE and u.args[0] is not node]
        cuts = [u for u in node.users if u.target is aten.threshold_backward.default]
        if len(pools) != 1 or len({*pools, *slopes, *cuts}) != len(node.users):
            continue  # something else reads it
        parts = {u.args[1]: u for u in pools[0].users if u.target is operator.getitem}
        where = set(parts[1].users) if 1 in parts else set()
        if 0 not in parts or len(pools[0].users) != len(parts) or where != set(slopes):
            continue
        own = all(set(s.users) <= set(cuts) for s in slopes)
        if own and all(c.args[0] in slopes and c.args[1:] == (node, 0) for c in cuts):
            _move_behind(graph.graph, node, parts[0], slopes, cuts)
    graph.recompile()


_POOLING_SLOPE = aten.max_pool2d_with_indices_backward.default


def _move_behind(
    graph: torch.fx.Graph,
    relu: torch.fx.Node,
    largest: torch.fx.Node,
    slopes: list[torch.fx.Node],
    cuts: list[torch.fx.Node],
) -> None:
    """Replace a ReLU before max pooling by one behind it, and likewise in its derivative."""
    with graph.inserting_after(largest):
        behind = graph.call_function(aten.relu.default, (largest,))
    behind.meta = dict(largest.meta)
    largest.replace_all_uses_with(behind, delete_user_cb=lambda user: user is not behind)
    for slope in slopes:
        with graph.inserting_before(slope):
            cut = graph.call_function(aten.threshold_backward.default, (slope.args[0], behind, 0))
        cut.meta = dict(largest.meta)
        slope.args = (cut, *slope.args[1:])
    for cut in cuts:
        cut.replace_all_uses_with(cut.args[0])  # type: ignore[arg-type]
        graph.erase_node(cut)
    relu.replace_all_uses_with(relu.args[0])  # type: ignore[arg-type]
    graph.erase_node(relu)


_FILLS: dict[Any, Any] = {
    aten.ones_like.default: aten.ones.default,
    aten.zeros_like.default: aten.zeros.default,
    aten.new_zeros.default: aten.zeros.default,
}


def _fill(graph: Traced, node: torch.fx.Node, device: torch.device | None) -> None:
    """Make a constant of a shape that is known already."""
    meta = node.meta["tensor_meta"]
    with graph.graph.inserting_before(node):
        kind = {"dtype": meta.dtype} | ({} if device is None else {"device": device})
        made = graph.graph.call_function(_FILLS[node.target], (list(meta.shape),), kind)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.graph.erase_node(node)


def _layout(meta: Any) -> Any:
    return None if meta is None else (meta.shape, meta.stride, meta.dtype)


# --- less memory ----------------------------------------------------------------------------------


def write_over_operands(graph: Traced, carried: int) -> None:
    """Let operations element by element write over an operand that nothing reads after them.

    Such as `p - step`, where p is one of the first `carried` inputs: the runner owns them. The bits
    stay the same, and the cohort's parameters need no new memory in each step.
    """
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    own = set(list(place)[:carried])
    for node in graph.graph.nodes:
        if node.target not in _OVER or set(node.kwargs) - {"value"}:
            continue
        over, operands = _OVER[node.target]
        for at in operands:
            g = node.args[at]
            others = [one for i, one in enumerate(node.args) if i != at]
            if not isinstance(g, torch.fx.Node) or any(_shares(one, g) for one in others):
                continue
            last = g in own and _last_use(g, place) == place[node]
            if (last or _fresh(g)) and _layout(g.meta.get("tensor_meta")) == _layout(
                node.meta.get("tensor_meta")
            ):
                node.target = over
                if over is aten.threshold_backward.grad_input:
                    node.kwargs = {"grad_input": g}
                else:
                    node.args = (g, *others)
                break
    graph.recompile()


def _shares(other: Any, g: torch.fx.Node) -> bool:
    """Whether an operand may share its memory with g."""
    return isinstance(other, torch.fx.Node) and _root(other) is _root(g)


# what writes over an operand instead, and which operands it may be
_OVER: dict[Any, tuple[Any, tuple[int, ...]]] = {
    aten.add.Tensor: (aten.add_.Tensor, (0, 1)),
    aten.addcmul.default: (aten.addcmul_.default, (0,)),
    aten.div.Tensor: (aten.div_.Tensor, (0,)),
    aten.exp.default: (aten.exp_.default, (0,)),
    aten.mul.Tensor: (aten.mul_.Tensor, (0, 1)),
    aten.neg.default: (aten.neg_.default, (0,)),
    aten.relu.default: (aten.relu_.default, (0,)),
    aten.sqrt.default: (aten.sqrt_.default, (0,)),
    aten.sub.Tensor: (aten.sub_.Tensor, (0,)),
    aten.threshold_backward.default: (aten.threshold_backward.grad_input, (0,)),
}


def _fresh(node: torch.fx.Node) -> bool:
    """Whether the node's memory was allocated for it and no other node reads it."""
    while len(node.users) == 1:
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            whole = node.args[0]
            return isinstance(whole, torch.fx.Node) and whole.target in _MAKES_SEVERAL
        if node.target not in _VIEWS:
            return node.target in _MAKES
        node = node.args[0]  # type: ignore[assignment]
    return False


_MAKES = {  # operations whose result is new memory, and one tensor
    *_OVER,
    *(over for over, _ in _OVER.values()),  # of an operand that nothing else reads
    aten.addmm.default,
    aten.bmm.default,
    aten.clone.default,
    aten.convolution.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.mm.default,
    aten.mul.Scalar,
    aten.stack.default,
    aten.sum.dim_IntList,
    torch.ops.mkldnn._linear_pointwise.default,
}
_MAKES_SEVERAL: set[Any] = {  # operations whose results are new memory each
    aten.convolution_backward.default,
    aten.max_pool2d_with_indices.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
}
_VIEWS = {
    aten.transpose.int,
    aten.t.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.detach.default,
    aten.alias.default,
    aten.contiguous.default,
    aten.reshape.default,
    aten.as_strided.default,
}


_OFFSET = {  # views that may begin elsewhere in the memory
    aten.select.int,
    aten.slice.Tensor,
    aten.as_strided.default,
}


def _root(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one may share."""
    while node.target in _VIEWS and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _last_use(p: torch.fx.Node, order: dict[torch.fx.Node, int]) -> int:
    """The position of the last node that reads p or anything that may share its memory."""
    last, todo, seen = 0, [p], set()
    while todo:
        node = todo.pop()
        for user in node.users:
            last = max(last, order[user])
            if user not in seen and user.target in _VIEWS:
                seen.add(user)
                todo.append(user)
    return last


# --- less overhead per operation-------------------------------------------------------------------


def native(graph: Traced) -> None:
    """Call torch's functions instead of its operator objects: same kernels, less overhead."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.target = _NATIVE.get(node.target, node.target)
    graph.recompile()


def _pooled(x: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Max pooling on the CPU: torch's kernel is several times faster if channels come last."""
    if x.device.type != "cpu" or x.dim() != 4:
        return aten.max_pool2d_with_indices.default(x, *how)  # type: ignore[no-any-return]
    last = x.contiguous(memory_format=torch.channels_last)
    out, at = aten.max_pool2d_with_indices.default(last, *how)
    return out.contiguous(), at.contiguous()


_NATIVE: dict[Any, Callable[..., Any]] = {
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
    aten.add.Tensor: torch.add,
    aten.add_.Tensor: Tensor.add_,
    aten.bmm.default: torch.bmm,
    aten.clamp.default: torch.clamp,
    aten.div.Tensor: torch.div,
    aten.div_.Tensor: Tensor.div_,
    aten.embedding.default: torch.embedding,
    aten.expand.default: Tensor.expand,
    aten.exp.default: torch.exp,
    aten.exp_.default: torch.exp_,
    aten.gather.default: torch.gather,
    aten.max_pool2d_with_indices.default: _pooled,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.mul_.Tensor: Tensor.mul_,
    aten.neg.default: torch.neg,
    aten.neg_.default: torch.neg_,
    aten.ones.default: torch.ones,
    aten.relu.default: torch.relu,
    aten.relu_.default: torch.relu_,
    aten.scatter_add.default: torch.scatter_add,
    aten.sqrt.default: torch.sqrt,
    aten.sqrt_.default: torch.sqrt_,
    aten.squeeze.dims: Tensor.squeeze,
    aten.sub.Tensor: torch.sub,
    aten.sub_.Tensor: Tensor.sub_,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: Tensor.t,
    aten.transpose.int: Tensor.transpose,
    aten.unsqueeze.default: Tensor.unsqueeze,
    aten.view.default: Tensor.view,
    aten.where.self: torch.where,
    aten.zeros.default: torch.zeros,
}
