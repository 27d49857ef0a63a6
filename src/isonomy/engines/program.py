"""Step programs: a `fold` body traced once for a whole cohort and run without overhead.

Inside `vmap` a client's tensors are wrappers of the cohort's. Running each step through the
wrappers costs far more than the arithmetic of a small model, so the runner here takes the
cohort's own tensors out, traces `vmap(body)` once into a graph of plain tensor operations, and
runs that graph for every step. Values that the body closes over become inputs of the graph
("lifted"), so one trace serves every round. Whatever cannot be lifted safely runs untraced.

Clients are sorted by their number of steps, so those that have finished are cut off the end.

This is the only module that uses torch's private vmap interface; torch's version is bounded for
its sake, and a test compares every traced fold with the plain one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
import torch._C._functorch as functorch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_all_functorch_interpreters,
    temporarily_pop_interpreter_stack,
)
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from isonomy.fold import Body, plain
from isonomy.tree import Tree

Rebuild = Callable[[list[Tensor]], Any]


class NotLiftable(Exception):
    """The body closes over something whose tensors cannot be made inputs."""


# --- lifting: find the tensors that a function closes over ----------------------------------------


class Lift:
    """Walks a function's closure; collects its tensors, and a key for everything else."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.alive: list[Any] = []  # what the key names by identity must outlive the key
        self._seen: dict[int, int] = {}
        self._open: set[int] = set()

    def walk(self, value: Any) -> tuple[Any, Rebuild | None]:
        """A hashable key, and how to rebuild the value with other tensors (None: as it is)."""
        if isinstance(value, Tensor):
            at = self._seen.get(id(value))
            if at is None:
                at = self._seen[id(value)] = len(self.tensors)
                self.tensors.append(value)
            return ("tensor", at), lambda new, at=at: new[at]
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return (type(value).__name__, value), None
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            key, parts = self._many((value.__func__, value.__self__))
            if parts is None:
                return ("method", key), None
            return ("method", key), lambda new: types.MethodType(*parts(new))
        if isinstance(value, functools.partial):
            inner = (value.func, value.args, value.keywords)
            key, parts = self._many(inner)
            if parts is None:
                return ("partial", key), None
            return ("partial", key), lambda new: _partial(*parts(new))
        if isinstance(value, dict):
            key, parts = self._many(tuple(value.values()))
            names = tuple(value)
            if parts is None:
                return ("dict", names, key), None
            return ("dict", names, key), lambda new: dict(zip(names, parts(new), strict=True))
        if isinstance(value, tuple | list):
            key, parts = self._many(tuple(value))
            kind = type(value)
            if parts is None:
                return (kind, key), None
            if hasattr(kind, "_fields"):
                return (kind, key), lambda new: kind(*parts(new))
            return (kind, key), lambda new: kind(parts(new))
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | nn.Module):
            self.alive.append(value)
            return ("object", id(value)), None
        if isinstance(value, torch.dtype | torch.device | torch.Size):
            return ("torch", str(value)), None
        if dataclasses.is_dataclass(value):
            return self._dataclass(value)
        if callable(value) and type(value).__module__.startswith(("torch", "builtins", "numpy")):
            self.alive.append(value)
            return ("object", id(value)), None
        raise NotLiftable(type(value).__name__)

    def _many(
        self, values: tuple[Any, ...]
    ) -> tuple[Any, Callable[[list[Tensor]], list[Any]] | None]:
        walked = [self.walk(v) for v in values]
        key = tuple(k for k, _ in walked)
        if all(r is None for _, r in walked):
            return key, None
        pairs = list(zip(values, [r for _, r in walked], strict=True))
        return key, lambda new: [v if r is None else r(new) for v, r in pairs]

    def _function(self, f: types.FunctionType) -> tuple[Any, Rebuild | None]:
        self.alive.append(f.__code__)
        cells = f.__closure__ or ()
        try:
            contents = tuple(cell.cell_contents for cell in cells)
        except ValueError:
            raise NotLiftable("a name that is not bound yet") from None
        if id(f) in self._open:
            raise NotLiftable("a recursive function")
        self._open.add(id(f))
        inner = (contents, f.__defaults__ or (), f.__kwdefaults__ or {})
        key, parts = self._many(inner)
        self._open.discard(id(f))
        key = ("function", id(f.__code__), key)
        if parts is None:
            return key, None

        def rebuild(new: list[Tensor]) -> types.FunctionType:
            filled, defaults, named = parts(new)
            made = tuple(types.CellType(c) for c in filled)
            g = types.FunctionType(f.__code__, f.__globals__, f.__name__, tuple(defaults), made)
            g.__kwdefaults__ = dict(named)
            return g

        return key, rebuild

    def _dataclass(self, value: Any) -> tuple[Any, Rebuild | None]:
        names = [f.name for f in dataclasses.fields(value)]
        key, parts = self._many(tuple(getattr(value, n) for n in names))
        key = ("dataclass", type(value), key)
        if parts is None:
            return key, None

        def rebuild(new: list[Tensor]) -> Any:
            made = object.__new__(type(value))
            for n, v in zip(names, parts(new), strict=True):
                object.__setattr__(made, n, v)
            return made

        return key, rebuild


def _partial(func: Any, args: Any, keywords: Any) -> functools.partial:
    return functools.partial(func, *args, **keywords)


# --- vmap's wrappers, off and on ------------------------------------------------------------------


def _unwrap(t: Tensor, levels: list[int]) -> tuple[Tensor, list[int | None]]:
    """The tensor under all wrappers, its lanes first, and for each level whether it has lanes."""
    present: list[int | None] = [None] * len(levels)
    for i in reversed(range(len(levels))):
        if functorch.is_batchedtensor(t) and functorch.maybe_get_level(t) == levels[i]:
            at = functorch.maybe_get_bdim(t)
            t = functorch.get_unwrapped(t).movedim(at, 0)
            present[i] = 0
    return t, present


def _spread(t: Tensor, present: list[int | None], sizes: list[int]) -> Tensor:
    """Give a tensor lanes at every level."""
    for i, size in enumerate(sizes):
        if present[i] is None:
            lead = t.shape[:i]
            t = t.unsqueeze(i).expand(*lead, size, *t.shape[i:])
    return t.clone(memory_format=torch.contiguous_format)  # the runner writes to what it carries


def _wrap(t: Tensor, levels: list[int]) -> Tensor:
    for level in levels:
        t = functorch._add_batch_dim(t, 0, level)
    return t


# --- the runner ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Program:
    """A traced step: the tensors of carry, x and lifted in, those of the new carry out."""

    call: Callable[..., Any]
    alive: list[Any]


class Programs:
    """The fold runner of the batched engine, with its cache of traced steps."""

    def __init__(self, *, compile: bool = False, keep: int = 256) -> None:
        self.compile = compile
        self.keep = keep
        # below so many clients a step costs the same, so fewer programs are worth more
        self.floor = 64 if compile else 8
        self.trouble: str | None = None  # why compiling was given up
        self.traced = 0  # for tests and reports: how many programs were made
        self._cache: OrderedDict[Any, Program] = OrderedDict()
        self._refused: dict[Any, list[Any]] = {}  # with what their keys name by identity

    def __call__(self, body: Body, carry: Tree, xs: Tree, count: Tensor | None) -> Tree:
        """Run a fold; falls back to the plain loop where tracing would not be safe."""
        stack = retrieve_all_functorch_interpreters()
        if any(level.key() != functorch.TransformType.Vmap for level in stack):
            return plain(body, carry, xs, count)  # inside grad or jvp
        lift = Lift()
        try:
            key, rebuild = lift.walk(body)
        except NotLiftable:
            return plain(body, carry, xs, count)
        if key in self._refused:
            return plain(body, carry, xs, count)
        levels = [level.level() for level in stack]
        sizes = [cast(VmapInterpreter, level).batch_size() for level in stack]
        lifted, lifted_dims = _unzip([_unwrap(t, levels) for t in lift.tensors])
        flat_xs, xs_spec = pytree.tree_flatten(xs)
        x_raw, x_dims = _unzip([_unwrap(t, levels) for t in flat_xs])
        flat_carry, carry_spec = pytree.tree_flatten(carry)
        start = [_spread(*_unwrap(t, levels), sizes) for t in flat_carry]
        counts = self._counts(count, levels, x_raw, x_dims, sizes)
        if counts is None:
            return plain(body, carry, xs, count)
        # steps first, then lanes: so that one step's data is one contiguous piece
        by_step = [
            t.movedim(sum(d is not None for d in dims), 0).contiguous()
            for t, dims in zip(x_raw, x_dims, strict=True)
        ]

        def step(carry_in: list[Tensor], x: list[Tensor], free: list[Tensor]) -> list[Tensor]:
            f = body if rebuild is None else rebuild(free)
            out = f(pytree.tree_unflatten(carry_in, carry_spec), pytree.tree_unflatten(x, xs_spec))
            return list(pytree.tree_leaves(out))

        signature = (key, tuple(sizes[1:]), _dims(x_dims), _dims(lifted_dims), carry_spec, xs_spec)
        with contextlib.ExitStack() as out_of_vmap:
            for _ in levels:
                out_of_vmap.enter_context(temporarily_pop_interpreter_stack())
            try:
                ends = self._run(
                    step, signature, lift.alive, start, by_step, x_dims, lifted, lifted_dims, counts
                )
            except _Refused:
                self._refused[key] = lift.alive
                ends = None
        if ends is None:
            return plain(body, carry, xs, count)
        return pytree.tree_unflatten([_wrap(t, levels) for t in ends], carry_spec)

    def _counts(
        self,
        count: Tensor | None,
        levels: list[int],
        x_raw: list[Tensor],
        x_dims: list[list[int | None]],
        sizes: list[int],
    ) -> list[int] | None:
        """Live steps of each outermost lane, longest first; None if they are not so sorted."""
        lanes = sizes[0] if sizes else 1
        length = x_raw[0].shape[sum(d is not None for d in x_dims[0])]
        if count is None:
            return [length] * lanes
        raw, present = _unwrap(count, levels)
        if any(d is not None for d in present[1:]):
            return None
        each = raw.tolist() if present and present[0] is not None else [int(raw)] * lanes
        each = [min(int(c), length) for c in each]
        return each if all(a >= b for a, b in itertools.pairwise(each)) else None

    def _run(
        self,
        step: Callable[..., list[Tensor]],
        signature: Any,
        alive: list[Any],
        carry: list[Tensor],
        by_step: list[Tensor],
        x_dims: list[list[int | None]],
        lifted: list[Tensor],
        lifted_dims: list[list[int | None]],
        counts: list[int],
    ) -> list[Tensor]:
        """Run all steps; when lanes finish, keep their carry and go on with fewer lanes."""
        laned = len(x_dims[0]) > 0
        lanes = len(counts)
        uneven = counts[-1] < counts[0]
        ends = [t.clone() for t in carry] if uneven else []
        i = 0
        while i < counts[0]:
            active = sum(c > i for c in counts)
            until = counts[active - 1]  # the step at which the next lane finishes
            wanted = min(lanes, ladder(active, floor=self.floor)) if laned else lanes
            if wanted < lanes:
                lanes = wanted
                carry = [t[:lanes] for t in carry]
                lifted = [_cut(t, d, lanes) for t, d in zip(lifted, lifted_dims, strict=True)]
            program: Program | None = None
            for s in range(i, until):
                x = [_cut(t[s], d, lanes) for t, d in zip(by_step, x_dims, strict=True)]
                if program is None:
                    program = self._program(
                        step, signature, alive, carry, x, x_dims, lifted, lifted_dims
                    )
                carry = program.call(*carry, *x, *lifted)
            i = until
            still = sum(c > i for c in counts)
            for end, t in zip(ends, carry, strict=False):
                end[still:active].copy_(t[still:active])
        return ends or list(carry)

    def _program(
        self,
        step: Callable[..., list[Tensor]],
        signature: Any,
        alive: list[Any],
        carry: list[Tensor],
        x: list[Tensor],
        x_dims: list[list[int | None]],
        lifted: list[Tensor],
        lifted_dims: list[list[int | None]],
    ) -> Program:
        metas = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (*carry, *x, *lifted))
        full = (signature, metas)
        found = self._cache.get(full)
        if found is not None:
            self._cache.move_to_end(full)
            return found
        batched = step
        for i in reversed(range(len(x_dims[0]))):
            dims = ([0] * len(carry), [d[i] for d in x_dims], [d[i] for d in lifted_dims])
            batched = vmap(batched, in_dims=dims)
        self.traced += 1
        program = Program(self._trace(batched, carry, x, lifted), alive)
        self._cache[full] = program
        while len(self._cache) > self.keep:
            self._cache.popitem(last=False)
        return program

    def _trace(
        self,
        batched: Callable[..., list[Tensor]],
        carry: list[Tensor],
        x: list[Tensor],
        lifted: list[Tensor],
    ) -> Callable[..., Any]:
        ends = (len(carry), len(carry) + len(x))

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            out = batched(
                list(tensors[: ends[0]]), list(tensors[ends[0] : ends[1]]), list(tensors[ends[1] :])
            )
            return _apart(out, list(tensors[ends[0] :]))

        inputs = [*carry, *x, *lifted]
        try:
            graph = make_fx(flat)(*inputs)
        except Exception as error:  # run plainly, a body that is wrong says so itself
            raise _Refused(str(error)) from None
        for node in graph.graph.nodes:
            if node.op == "get_attr" and not all(u.target in _FRESH for u in node.users):
                raise _Refused(node.target)  # a tensor the walk did not see: it would go stale
        _simplify(graph)
        if self.compile:
            try:
                return _compiled(graph, inputs)
            except Exception as error:  # whatever a compiler may do, the graph itself still runs
                self.compile = False
                self.trouble = str(error).strip().splitlines()[0]
        _update_in_place(graph, len(carry))
        return graph.forward


def _compiled(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """The graph by torch's compiler; straight to its back end, as there is nothing to guard."""
    from torch._inductor.compile_fx import compile_fx

    return cast(Callable[..., Any], compile_fx(graph, inputs))


def _apart(out: list[Tensor], read: list[Tensor]) -> tuple[Tensor, ...]:
    """Results that share memory with nothing: the next step may write over each of them."""
    taken = {t.untyped_storage().data_ptr() for t in read}
    made = []
    for t in out:
        t = t.contiguous()
        if t.untyped_storage().data_ptr() in taken:
            t = t.clone()
        taken.add(t.untyped_storage().data_ptr())
        made.append(t)
    return tuple(made)


_FRESH = {torch.ops.aten.lift_fresh_copy.default}  # of a constant that the body itself makes


class _Refused(Exception):
    """A body that cannot be traced, or not safely."""


def ladder(active: int, *, floor: int) -> int:
    """The lane counts for which programs are made: few, and never far above what is active.

    >>> [ladder(n, floor=8) for n in (1, 8, 9, 13, 17, 100)]
    [8, 8, 12, 16, 24, 128]
    """
    top = floor
    while top < active:
        top = top * 3 // 2 if top & (top - 1) == 0 and top > 1 else -(-top * 4 // 3)
    return top


def _cut(t: Tensor, dims: list[int | None], lanes: int) -> Tensor:
    return t[:lanes] if dims and dims[0] is not None and t.shape[0] > lanes else t


def _dims(dims: list[list[int | None]]) -> tuple[tuple[int | None, ...], ...]:
    return tuple(tuple(d) for d in dims)


def _unzip(
    pairs: list[tuple[Tensor, list[int | None]]],
) -> tuple[list[Tensor], list[list[int | None]]]:
    return [t for t, _ in pairs], [d for _, d in pairs]


_SAME = {
    torch.ops.aten.expand.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.contiguous.default,
}


def _simplify(graph: torch.fx.GraphModule) -> None:
    """Drop operations that change nothing: vmap leaves about a third of them."""
    for node in list(graph.graph.nodes):
        if (
            node.op != "call_function"
            or not node.args
            or not isinstance(node.args[0], torch.fx.Node)
        ):
            continue
        source = node.args[0]
        before, after = source.meta.get("tensor_meta"), node.meta.get("tensor_meta")
        times_one = node.target is torch.ops.aten.mul.Scalar and node.args[1] == 1
        if (node.target in _SAME or times_one) and _layout(before) == _layout(after) is not None:
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _layout(meta: Any) -> Any:
    return None if meta is None else (meta.shape, meta.stride, meta.dtype)


def _update_in_place(graph: torch.fx.GraphModule, carried: int) -> None:
    """Turn `p - step` into an update of p itself, where p is carried and not used after.

    The runner owns what it carries, and the bits stay the same. It saves the cohort's parameters
    a trip through fresh memory.
    """
    aten = torch.ops.aten
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    for p in list(place)[:carried]:
        for sub in list(p.users):
            if sub.target is not aten.sub.Tensor or sub.args[0] is not p or sub.kwargs:
                continue
            step = sub.args[1]
            own = p.meta["tensor_meta"]
            if (
                isinstance(step, torch.fx.Node)
                and _root(step) is not p
                and _layout(sub.meta["tensor_meta"]) == _layout(own)
                and _last_use(p, place) == place[sub]
            ):
                sub.target = aten.sub_.Tensor
                _scale_in_place(step)
    graph.recompile()


def _scale_in_place(product: torch.fx.Node) -> None:
    """Turn `rate * g` into a scaling of g itself, where g is fresh and used for nothing else."""
    aten = torch.ops.aten
    if product.target is not aten.mul.Tensor or len(product.users) > 1:
        return
    for g, rate in (product.args, product.args[::-1]):
        if (
            isinstance(g, torch.fx.Node)
            and g is not rate
            and _fresh(g)
            and _layout(g.meta["tensor_meta"]) == _layout(product.meta["tensor_meta"])
        ):
            product.target, product.args = aten.mul_.Tensor, (g, rate)
            return


def _fresh(node: torch.fx.Node) -> bool:
    """Whether the node's memory was made for it and is read by nobody else."""
    while len(node.users) == 1:
        if node.op != "call_function":
            return False
        if node.target not in _VIEWS:
            return node.target in _MAKES
        node = node.args[0]  # type: ignore[assignment]
    return False


_MAKES = {  # operations whose result is new memory, and one tensor
    torch.ops.aten.add.Tensor,
    torch.ops.aten.bmm.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.sum.dim_IntList,
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.div.Tensor,
}
_VIEWS = {
    torch.ops.aten.transpose.int,
    torch.ops.aten.t.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze.dims,
    torch.ops.aten.permute.default,
    torch.ops.aten.select.int,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.contiguous.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.as_strided.default,
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
