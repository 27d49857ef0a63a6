"""Pure functions that are called often, as traced programs.

A draw of batches is a hundred small operations. Inside `vmap`, most of their time is overhead. A
function that was called often with the same constants and shapes is traced once for all lanes, and
run by TorchScript's interpreter. It calls the same kernels, and the results are compared before the
first use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from isonomy.engines.batched.graph import native, simplify, without_python
from isonomy.engines.batched.lanes import Levels, unwrap, wrap
from isonomy.engines.batched.trace import trace

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
        constants: tuple[Hashable, ...],
        tensors: tuple[Tensor, ...],
    ) -> Any:
        """`function(*constants, *tensors)`."""
        running = Levels.now()
        if running is None or any(t.device.type != "cpu" for t in tensors):
            return function(*constants, *tensors)
        raw, dims = zip(*(unwrap(t, running.numbers) for t in tensors), strict=True)
        layouts = tuple((t.shape, t.stride(), t.dtype) for t in raw)
        at = tuple(tuple(present) for present in dims)
        use = self._use((function, constants, layouts, at, tuple(running.sizes)))
        use.calls += 1
        if use.calls == CALLS:
            with running.left():
                self._trace(use, lambda *t: function(*constants, *t), list(raw), at)
        if use.traced is None:
            return function(*constants, *tensors)
        with running.left():
            made = use.traced(*raw)
        return pytree.tree_unflatten([wrap(t, running.numbers) for t in made], use.spec)

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
    def _trace(
        use: _Use,
        function: Callable[..., Any],
        raw: list[Tensor],
        dims: tuple[tuple[int | None, ...], ...],
    ) -> None:
        """Trace the function, unless that fails or gives other results."""
        for level in reversed(range(len(dims[0]))):
            function = vmap(function, in_dims=tuple(d[level] for d in dims))
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
