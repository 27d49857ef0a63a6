"""Pure functions that are called often, as traced programs.

A draw of batches is a hundred small operations. Inside `vmap`, most of their time is overhead. A
function that was called often with the same constants and shapes is traced once for all lanes, and
run by TorchScript's interpreter. It calls the same kernels, and the results are compared before the
first use.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from isonomy.core.fold import Together
from isonomy.engines.batched.graph import native, simplify, without_python
from isonomy.engines.batched.lanes import Levels, unwrap, wrap
from isonomy.engines.batched.trace import trace

Constants = tuple[Hashable, ...]
Dims = tuple[tuple[int | None, ...], ...]

CALLS = 50  # after which a function is worth the tenth of a second to trace it
KEEP = 256  # functions with their constants and shapes that are counted


class _Use:
    """How often a function was called, and what it was traced to."""

    def __init__(self) -> None:
        self.calls = 0
        self.traced: Callable[..., Any] | None = None
        self.spec: Any = None


class Repeated:
    """Runs pure functions; traces those that are called often."""

    def __init__(self) -> None:
        self._uses: OrderedDict[Hashable, _Use] = OrderedDict()

    @property
    def traced(self) -> int:
        """How many functions were traced, for tests."""
        return sum(use.traced is not None for use in self._uses.values())

    def __call__(
        self,
        function: Callable[..., Any],
        constants: Constants,
        tensors: tuple[Tensor, ...],
        together: Together | None = None,
    ) -> Any:
        """`function(*constants, *tensors)`."""
        running = Levels.now()
        if running is None or any(t.device.type != "cpu" for t in tensors):
            return function(*constants, *tensors)
        raw, dims = zip(*(unwrap(t, running.numbers) for t in tensors), strict=True)
        at = tuple(tuple(present) for present in dims)
        with running.left():
            if together is not None and all(present == (0,) for present in at):
                made = together(functools.partial(self._run, function, at), constants, *raw)
            else:
                made = self._run(function, at, constants, *raw)
        leaves, spec = pytree.tree_flatten(made)
        return pytree.tree_unflatten([wrap(t, running.numbers) for t in leaves], spec)

    def _run(
        self, function: Callable[..., Any], at: Dims, constants: Constants, *raw: Tensor
    ) -> Any:
        """The function of plain tensors, whose lanes are first."""
        layouts = tuple((t.shape, t.stride(), t.dtype) for t in raw)
        use = self._use((function, constants, layouts, at))
        use.calls += 1
        if use.traced is None:
            whole = _batched(lambda *t: function(*constants, *t), at)
            if use.calls == CALLS:
                self._trace(use, whole, list(raw))
            return whole(*raw)
        return pytree.tree_unflatten(list(use.traced(*raw)), use.spec)

    def _use(self, key: Hashable) -> _Use:
        found = self._uses.get(key)
        if found is None:
            found = self._uses[key] = _Use()
            if len(self._uses) > KEEP:
                self._uses.popitem(last=False)
        else:
            self._uses.move_to_end(key)
        return found

    @staticmethod
    def _trace(use: _Use, function: Callable[..., Any], raw: list[Tensor]) -> None:
        """Trace the function, unless that fails or gives other results."""
        specs: list[Any] = []

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            leaves, spec = pytree.tree_flatten(function(*tensors))
            specs.append(spec)
            return tuple(leaves)

        try:
            expected = flat(*raw)
            graph = trace(flat, raw)
            simplify(graph)
            native(graph)
            made = without_python(graph.forward, raw, 0)
            got = made(*raw)
        except Exception:  # it is an optimisation only
            return
        if all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)):
            use.traced, use.spec = made, specs[0]


def _batched(function: Callable[..., Any], dims: Dims) -> Callable[..., Any]:
    """The function for all lanes at once."""
    for level in reversed(range(len(dims[0]))):
        function = vmap(function, in_dims=tuple(present[level] for present in dims))
    return function
