"""Step programs: a `fold` body traced once for a whole cohort and run without overhead.

Inside `vmap` a client's tensors are wrappers of the cohort's. Running each step through the
wrappers costs far more than the arithmetic of a small model. So the runner here unwraps the
cohort's tensors, traces `vmap(body)` once into a graph of plain tensor operations, and runs that
graph for every step. Values that the body closes over become inputs of the graph ("lifted"), so
one trace serves every round. A body that cannot be lifted safely runs untraced.

Clients are sorted by their number of steps, so those that have finished are cut off at the end.

This is the only module that uses torch's private vmap interface. Import it through `runner`, which
checks that it works with the installed torch and otherwise runs loops untraced.
"""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
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
from torch.utils import _pytree as pytree

from isonomy.core.batches import Plan, plans
from isonomy.core.fold import Body, plain
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.batched.ahead import Ahead
from isonomy.engines.batched.columns import by_columns
from isonomy.engines.batched.first_order import FirstOrder
from isonomy.engines.batched.graph import optimised, simplify, without_python
from isonomy.engines.batched.large import for_large_matrices, large_products, suspended
from isonomy.engines.batched.lift import Lift, NotLiftable
from isonomy.engines.batched.precision import Precision, in_precision
from isonomy.engines.batched.trace import Traced, trace

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


def outermost(result: Tensor) -> bool:
    """Whether this is the result of a function whose derivative is not inside that of another."""
    levels = [
        level.level()
        for level in retrieve_all_functorch_interpreters()
        if level.key() != functorch.TransformType.Vmap
    ]
    return levels == [functorch.maybe_get_level(result)]


# --- the runner ----------------------------------------------------------------------------------


class Program:
    """A traced step: the tensors of carry, x and lifted in, those of the new carry out.

    `graph` is what `call` was made of. A step that is used often is worth the time to make it
    faster: see `arguments`.
    """

    def __init__(self, call: Callable[..., Any], graph: Traced | None, alive: list[Any]) -> None:
        self.call = call
        self.alive = alive
        self._graph = graph
        self._steps = 0
        self.ahead: Ahead | None = None

    def arguments(
        self, carry: list[Tensor], xs: list[Tensor], lifted: list[Tensor]
    ) -> Iterator[tuple[Tensor, ...]]:
        """What `call` takes after the carry in each of the next steps; call it only then."""
        self._steps += xs[0].shape[0]
        if self._graph is not None and self._steps >= OFTEN:
            graph, self._graph = self._graph, None
            inputs = [*(t.clone() for t in carry), *(t[0] for t in xs), *lifted]
            try:
                self.ahead = Ahead(graph, inputs, len(carry), len(xs))
                self.call = self.ahead.call
            except Exception:  # it is an optimisation only
                self.call = without_python(self.call, inputs, len(carry))
        if self.ahead is not None:
            return self.ahead.arguments(xs, lifted)
        each = zip(*(t.unbind() for t in xs), strict=True)
        return ((*x, *lifted) for x in each)

    def opened(self, carry: Sequence[Tensor]) -> Sequence[Tensor]:
        """The carry as `call` takes it in the steps of the last `arguments`."""
        return carry if self.ahead is None else self.ahead.opened(carry)

    def closed(self, carry: Sequence[Tensor]) -> Sequence[Tensor]:
        """The carry, from what `call` returned."""
        return carry if self.ahead is None else self.ahead.closed(carry)


class Programs:
    """The fold runner of the batched engine, with its cache of traced steps.

    `blind` is for tensors without numbers (`isonomy.engines.fake_device`): every lane takes all
    steps, and optimised programs are not compared with their originals.
    """

    def __init__(
        self,
        *,
        compile: bool = False,
        keep: int = 256,
        blind: bool = False,
        precision: Precision = "float32",
    ) -> None:
        self.compile = compile
        self.precision: Precision = precision
        self.blind = blind
        self.keep = keep
        self.trouble: str | None = None  # why compiling failed
        self.traced = 0  # for tests and reports: how many programs were made
        self._cache: OrderedDict[Any, Program] = OrderedDict()
        self.refused: dict[Any, list[Any]] = {}  # with the objects that their keys identify

    @property
    def faster(self) -> int:
        """How many programs were made faster, for tests."""
        return sum(program.ahead is not None for program in self._cache.values())

    def __call__(self, body: Body, carry: Tree, xs: Tree, count: Tensor | None) -> Tree:
        """Run a fold; falls back to the plain loop where tracing would not be safe."""
        body = in_precision(body, self.precision)
        stack = retrieve_all_functorch_interpreters()
        if any(level.key() != functorch.TransformType.Vmap for level in stack):
            return plain(body, carry, xs, count)  # inside grad or jvp
        lift = Lift()
        try:
            key, rebuild = lift.walk(body)
        except NotLiftable:
            return plain(body, carry, xs, count)
        if key in self.refused:
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

        parts = (key, tuple(sizes[1:]), _dims(x_dims), _dims(lifted_dims), carry_spec, xs_spec)
        signature = _Signature(parts)
        with contextlib.ExitStack() as out_of_vmap:
            for _ in levels:
                out_of_vmap.enter_context(temporarily_pop_interpreter_stack())
            out_of_vmap.enter_context(suspended())
            try:
                ends = self._run(
                    step, signature, lift.alive, start, by_step, x_dims, lifted, lifted_dims, counts
                )
            except _Refused:
                self.refused[key] = lift.alive
                ends = None
        if ends is None:
            return plain(body, carry, xs, count)
        return pytree.tree_unflatten([_wrap(t, levels) for t in ends], carry_spec)

    def products(self, net: nn.Module) -> AbstractContextManager[Any]:
        """A setting in which a phase's products are faster outside of folds too."""
        return contextlib.nullcontext() if self.blind else large_products(net)

    def plan(
        self, work: Work, keys: Tensor, size: Tensor, width: int, steps: int, passes: int
    ) -> Plan | None:
        """The batches of a cohort's clients, without the overhead of vmap; None if not under it."""
        stack = retrieve_all_functorch_interpreters()
        if len(stack) != 1 or stack[0].key() != functorch.TransformType.Vmap:
            return None
        levels = [stack[0].level()]
        (all_keys, of_keys), (sizes, of_sizes) = _unwrap(keys, levels), _unwrap(size, levels)
        if None in (*of_keys, *of_sizes):
            return None
        with temporarily_pop_interpreter_stack():
            made = plans(work, all_keys, sizes, width, steps, passes)
        return Plan(*(_wrap(t, levels) for t in made))

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
        if count is None or self.blind:
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
        signature: _Signature,
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
        falling = [-c for c in counts]
        ends = [torch.empty_like(t) for t in carry] if counts[-1] < counts[0] else []
        idle = bisect_left(falling, 0)  # the first lane without any step
        for end, t in zip(ends, carry, strict=False):
            end[idle:].copy_(t[idle:])
        i = 0
        while i < counts[0]:
            lanes = min(lanes, rung(falling, i)) if laned else lanes
            carry = [t[:lanes] if laned else t for t in carry]
            lifted = [_cut(t, d, 0, lanes) for t, d in zip(lifted, lifted_dims, strict=True)]
            until = self._until(falling, i, lanes) if laned else counts[0]
            xs = [_cut(t[i:until], d, 1, lanes) for t, d in zip(by_step, x_dims, strict=True)]
            x = [t[0] for t in xs]
            program = self._program(step, signature, alive, carry, x, x_dims, lifted, lifted_dims)
            active = bisect_left(falling, -i)
            steps = program.arguments(carry, xs, lifted)
            now = program.opened(carry)
            for more in steps:
                now = program.call(*now, *more)
                i += 1
                if ends and i == -falling[active - 1]:  # some lanes have finished
                    still = bisect_left(falling, -i)
                    for end, t in zip(ends, program.closed(now), strict=True):
                        end[still:active].copy_(t[still:active])
                    active = still
            carry = list(program.closed(now))
        return ends or list(carry)

    def _until(self, falling: list[int], first: int, lanes: int) -> int:
        """The step from which fewer lanes do, or the last one."""
        at = first
        while at < -falling[0]:
            at = -falling[bisect_left(falling, -at) - 1]  # the next lane finishes
            if at < -falling[0] and rung(falling, at) < lanes:
                break
        return at

    def _program(
        self,
        step: Callable[..., list[Tensor]],
        signature: _Signature,
        alive: list[Any],
        carry: list[Tensor],
        x: list[Tensor],
        x_dims: list[list[int | None]],
        lifted: list[Tensor],
        lifted_dims: list[list[int | None]],
    ) -> Program:
        metas = tuple((t.shape, t.stride(), t.dtype) for t in (*carry, *x, *lifted))
        full = (signature, metas)
        found = self._cache.get(full)
        if found is not None:
            self._cache.move_to_end(full)
            return found
        batched = step
        for i in reversed(range(len(x_dims[0]))):
            every: list[int | None] = [0] * len(carry)
            dims = (every, [d[i] for d in x_dims], [d[i] for d in lifted_dims])
            alone = i == 0 and carry[0].shape[0] == 1
            batched = _alone(batched, dims) if alone else vmap(batched, in_dims=dims)
        self.traced += 1
        program = Program(*self._trace(batched, carry, x, lifted), alive)
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
    ) -> tuple[Callable[..., Any], Traced | None]:
        """The step as a function, and its graph if it can be made faster later."""
        ends = (len(carry), len(carry) + len(x))

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            carry, x, free = tensors[: ends[0]], tensors[ends[0] : ends[1]], tensors[ends[1] :]
            with FirstOrder(outermost):
                out = batched(list(carry), list(x), list(free))
            return _apart(out, [*x, *free])

        inputs = [*carry, *x, *lifted]
        try:
            module = _make_fx(flat, inputs) if self.compile else None
            graph = trace(flat, inputs) if module is None else Traced.of(module)
        except Exception as error:  # the plain run raises the error of a faulty body
            raise _Refused(str(error)) from None
        for node in graph.graph.nodes:
            if node.op == "get_attr" and not all(u.target in _FRESH for u in node.users):
                raise _Refused(
                    node.target
                )  # a tensor that was not lifted: its value would go stale
        device = carry[0].device
        simplify(graph, None if device.type == "cpu" else device)
        if module is not None:
            module.recompile()  # its graph was simplified
            try:
                return _compiled(module, inputs), None
            except Exception as error:  # any failure of the compiler: the graph itself still runs
                self.compile = False
                self.trouble = str(error).strip().splitlines()[0]
        if device.type == "cpu" and not self.blind:
            graph = by_columns(graph, inputs)
            graph = for_large_matrices(graph)
        made = optimised(graph, inputs, len(carry), compare=not self.blind)
        numbers = sum(t.numel() for t in carry)
        light = device.type == "cpu" and not self.blind and numbers < LIGHT
        return made, graph if light else None


class _Signature:
    """What decides a program, apart from shapes; hashed once for all programs of a fold."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Signature) and self._parts == other._parts


def _alone(
    step: Callable[..., list[Tensor]], dims: tuple[list[int | None], ...]
) -> Callable[..., list[Tensor]]:
    """A step of a single lane: as `vmap`, but with operations for one client, which are faster."""

    def alone(*parts: list[Tensor]) -> list[Tensor]:
        own = [
            [t if d is None else t[0] for t, d in zip(part, at, strict=True)]
            for part, at in zip(parts, dims, strict=True)
        ]
        return [t.unsqueeze(0) for t in step(*own)]

    return alone


def _make_fx(f: Callable[..., Any], inputs: list[Tensor]) -> torch.fx.GraphModule:
    """The graph with what a compiler needs to know of every value."""
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import

    return make_fx(f)(*inputs)


def _compiled(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """The graph by torch's compiler; straight to its back end, as there is nothing to guard.

    On the CPU, what calls the kernels is C++ too: in Python it takes longer than a small step. For
    the same reason the code is called there without the functions that the compiler puts around it,
    which are for gradients and changed inputs, if it takes the same inputs and gives the same
    results without them. It may take others, such as a constant of the graph before them; C++ does
    not check this, and would read memory that is not a tensor.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    inner: list[tuple[Any, list[Any]]] = []

    def remembered(made: Any, examples: list[Any], **options: Any) -> Any:
        inner.append((compile_fx_inner(made, examples, **options), _kinds(examples)))
        return inner[-1][0]

    for node in graph.graph.nodes:
        node.meta.pop("val", None)  # of a mode of its own in each node, which the compiler refuses
    on_cpu = all(t.device.type == "cpu" for t in inputs)
    with config.patch(cpp_wrapper=on_cpu):
        whole = cast(Callable[..., Any], compile_fx(graph, inputs, inner_compile=remembered))
    if not on_cpu or len(inner) != 1 or inner[0][1] != _kinds(inputs):
        return whole
    code = getattr(inner[0][0], "current_callable", None)
    if code is None:
        return whole
    expected, got = whole(*inputs), code(list(inputs))
    if len(got) != len(expected) or not all(map(torch.equal, got, expected)):
        return whole
    return lambda *tensors: code(list(tensors))


def _kinds(inputs: list[Any]) -> list[Any]:
    """What code that was compiled for these inputs relies on."""
    return [(t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else None for t in inputs]


def _apart(out: list[Tensor], read: list[Tensor]) -> tuple[Tensor, ...]:
    """Results that share no memory, so that the next step may overwrite each of them."""
    taken = {t.untyped_storage()._cdata for t in read}
    made = []
    for t in out:
        t = t.contiguous()
        if t.untyped_storage()._cdata in taken:
            t = t.clone()
        taken.add(t.untyped_storage()._cdata)
        made.append(t)
    return tuple(made)


_FRESH = {torch.ops.aten.lift_fresh_copy.default}  # makes a constant of the body


class _Refused(Exception):
    """A body that cannot be traced, or not safely."""


RUNGS = (1, 2, 4, 8)  # numbers of lanes that programs are made for, up to the last; then `ladder`
WORTH = 32  # steps in one fold for which a program of its own is worth its tracing
OFTEN = 400  # steps after which a program is worth the tenth of a second to make it faster
LIGHT = 2_000_000  # numbers in the carry below which the overhead of operations matters


def ladder(active: int, rungs: tuple[int, ...]) -> int:
    """The number of lanes that a program is made for: one of few, at least `active`.

    >>> [ladder(n, RUNGS) for n in (1, 3, 8, 9, 13, 17, 100)]
    [1, 4, 8, 12, 16, 24, 128]
    """
    for rung in rungs:
        if active <= rung:
            return rung
    top = rungs[-1]
    while top < active:
        top = top * 3 // 2 if top & (top - 1) == 0 and top > 1 else -(-top * 4 // 3)
    return top


def rung(falling: list[int], done: int) -> int:
    """The number of lanes for the next steps; `falling` is minus each lane's steps, sorted.

    A rung of few lanes is used only if enough steps follow before the next one would do.

    >>> rung([-90, -50, -48, -7], 7), rung([-90, -50, -48, -7], 48)
    (4, 8)
    """
    active = bisect_left(falling, -done)
    for one in RUNGS[:-1]:
        if active <= one and _steps_at(one, falling, done) >= WORTH:
            return one
    return ladder(active, RUNGS[-1:])


def _steps_at(lanes: int, falling: list[int], done: int) -> int:
    """The steps until so many lanes are more than needed, because those of the rung below do."""
    below = max(one for one in (0, *RUNGS) if one < lanes)
    return -falling[below] - done if below < len(falling) else 0


def _cut(t: Tensor, dims: list[int | None], axis: int, lanes: int) -> Tensor:
    """The first lanes of a tensor whose lanes are along an axis."""
    has = dims and dims[0] is not None and t.shape[axis] > lanes
    return t.narrow(axis, 0, lanes) if has else t


def _dims(dims: list[list[int | None]]) -> tuple[tuple[int | None, ...], ...]:
    return tuple(tuple(d) for d in dims)


def _unzip(
    pairs: list[tuple[Tensor, list[int | None]]],
) -> tuple[list[Tensor], list[list[int | None]]]:
    return [t for t, _ in pairs], [d for _, d in pairs]
