"""Do the part of a traced step that does not depend on the carry for many steps at once.

The rows of a batch, its labels and its weights are known before the first step. Looking them up
takes about half as many operations as the arithmetic of a small model. Only operations whose bits
do not depend on how many steps are done at once are moved: look-ups, views, operations element by
element, and sums along an axis. The bits are compared before the first use.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.engines.batched.graph import _VIEWS, native, optimised, simplify, without_python
from isonomy.engines.batched.trace import LAYOUT, Traced, trace

aten = torch.ops.aten

AHEAD = 4 * 2**20  # bytes of what is computed ahead
MOST = 32  # steps at once


class Ahead:
    """A step in two parts: `before`, for many steps at once, and `after`, for each step."""

    def __init__(self, graph: Traced, inputs: list[Tensor], carried: int, given: int) -> None:
        self._carried, self._given = carried, given
        before, after, self._stepped = _divided(graph, carried, given)
        self.single = without_lane(after, carried)
        self._before = before
        self._made: dict[int, Callable[..., Any]] = {}
        rest = inputs[carried:]
        found = list(before(*rest))
        used = sum(t.numel() * t.element_size() for t in found[: self._stepped])
        self.most = min(MOST, max(1, AHEAD // max(used, 1)))
        self._check(rest, found)
        all_inputs = [*self.opened(inputs[:carried]), *found, *inputs[carried + given :]]
        self.call = without_python(optimised(after, all_inputs, carried), all_inputs, carried)
        expected = graph(*inputs)
        got = self.call(*(t.clone() for t in all_inputs[:carried]), *all_inputs[carried:])
        got = self.closed(got)
        if not all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)):
            raise NotDivided("other bits")

    def _check(self, rest: list[Tensor], found: list[Tensor]) -> None:
        """Raise an error unless two steps at once give the bits of one."""
        twice = [torch.stack([t, t]) for t in rest[: self._given]]
        ahead = self._block(2)(*twice, *rest[self._given :])
        for i, (one, many) in enumerate(zip(found, ahead, strict=True)):
            if not torch.equal(one, many[1] if i < self._stepped else many):
                raise NotDivided("other bits")

    def opened(self, carry: Sequence[Tensor]) -> Sequence[Tensor]:
        """The carry as `call` takes it."""
        return [t[0] for t in carry] if self.single else carry

    def closed(self, carry: Sequence[Tensor]) -> Sequence[Tensor]:
        """The carry, from what `call` returned."""
        return [t.unsqueeze(0) for t in carry] if self.single else carry

    def arguments(self, xs: list[Tensor], lifted: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """What `call` takes after the carry, step by step."""
        steps, first = xs[0].shape[0], 0
        while first < steps:
            size = min(self.most, steps - first)
            size = 1 << (size.bit_length() - 1)
            last = first + size
            made = self._block(size)(*(t[first:last] for t in xs), *lifted)
            fixed = (*made[self._stepped :], *lifted)
            for each in zip(*(t.unbind() for t in made[: self._stepped]), strict=True):
                yield (*each, *fixed)
            first = last

    def _block(self, size: int) -> Callable[..., Any]:
        """The first part for so many steps; traced once for each number."""
        if size in self._made:
            return self._made[size]
        stepped, before = self._stepped, self._before

        def block(*tensors: Tensor) -> tuple[Tensor, ...]:
            xs, lifted = tensors[: self._given], tensors[self._given :]
            axes: list[int | None] = [0 if i < stepped else None for i in range(len(self._outs))]
            made: tuple[Tensor, ...] = vmap(
                lambda *x: before(*x, *lifted),
                out_dims=tuple(axes),  # type: ignore[arg-type]  # None is allowed, for every output
            )(*xs)
            return made

        def first(*tensors: Tensor) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # an operation that vmap would do one by one
                graph = trace(block, tensors)
            simplify(graph)
            native(graph)
            self._made[size] = graph.forward
            return graph(*tensors)

        return first

    @property
    def _outs(self) -> tuple[Any, ...]:
        return tuple(self._before.graph.output_node().args[0])  # type: ignore[arg-type]


def without_lane(graph: Traced, carried: int) -> bool:
    """Let a step of one lane take and return its carry without the axis of lanes, if it can.

    It can if it does nothing with that axis but remove it from its inputs and add it to its
    results. Otherwise the graph stays as it is. Returns whether it was changed.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"][:carried]
    end = graph.graph.output_node()
    results = end.args[0]
    assert isinstance(results, (tuple, list))
    taken = [(p, list(p.users)) for p in inputs]
    lanes = {p.meta[LAYOUT].shape[:1] for p in inputs}
    if lanes != {(1,)} or not all(_removes(u, p) for p, users in taken for u in users):
        return False
    if not all(isinstance(y, torch.fx.Node) and _adds(y) for y in results):
        return False
    for p, users in taken:
        for user in users:
            p.meta = dict(user.meta)
            user.replace_all_uses_with(p)
            graph.graph.erase_node(user)
    end.args = (tuple(y.args[0] for y in results),)  # type: ignore[union-attr]
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return True


def _removes(node: torch.fx.Node, p: torch.fx.Node) -> bool:
    return node.target is aten.select.int and bool(node.args == (p, 0, 0))


def _adds(node: torch.fx.Node) -> bool:
    return node.target is aten.unsqueeze.default and bool(node.args[1] == 0)


class NotDivided(Exception):
    """A step of which no part can be done ahead."""


def _divided(graph: Traced, carried: int, given: int) -> tuple[Traced, Traced, int]:
    """The two parts, and how many results of the first belong to a step; the others to all."""
    nodes = list(graph.graph.nodes)
    if any(_writes(node.target) for node in nodes):
        raise NotDivided("an operation writes to its input")
    inputs = [node for node in nodes if node.op == "placeholder"]
    xs = inputs[carried : carried + given]
    early, of_step = set(inputs[carried:]), set(xs)
    for node in nodes:
        if node.op != "call_function" or not early.issuperset(node.all_input_nodes):
            continue
        if node.target is operator.getitem or _may_move(node):
            early.add(node)
            if not of_step.isdisjoint(node.all_input_nodes):
                of_step.add(node)
    if not any(node.op == "call_function" and node in of_step for node in nodes):
        raise NotDivided("nothing to do ahead")
    border = [n for n in nodes if n in early and not early.issuperset(n.users)]
    lifted = inputs[carried + given :]
    stepped = [n for n in border if n in of_step]
    if not stepped:
        raise NotDivided("nothing of a step is used")
    fixed = [n for n in border if n not in of_step and n not in lifted]

    before = torch.fx.Graph()
    at: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        if node in early:
            at[node] = before.node_copy(node, at.__getitem__)
            at[node].meta = dict(node.meta)
    before.output(tuple(at[n] for n in (*stepped, *fixed)))
    before.eliminate_dead_code()

    after = torch.fx.Graph()
    to: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in (*inputs[:carried], *stepped, *fixed, *lifted):
        to[node] = after.placeholder(f"in_{len(to)}")
        to[node].meta = dict(node.meta)
    for node in nodes:
        if node not in to and node not in early and node.op != "placeholder":
            to[node] = after.node_copy(node, to.__getitem__)
            to[node].meta = dict(node.meta)
    return Traced(before, graph.constants), Traced(after, graph.constants), len(stepped)


def _may_move(node: torch.fx.Node) -> bool:
    if node.target is aten.sum.default:  # along the only axis
        return len(node.args[0].meta["tensor_meta"].shape) == 1  # type: ignore[union-attr]
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target in _MOVED


def _writes(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


_MOVED = (_VIEWS - {aten.as_strided.default}) | {
    aten.constant_pad_nd.default,
    aten.embedding.default,
    aten.gather.default,
    aten.index.Tensor,
    aten.index_select.default,
    aten.ones.default,
    aten.scalar_tensor.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.sum.dim_IntList,
    aten.zeros.default,
    aten.full.default,
    aten.arange.default,
}
