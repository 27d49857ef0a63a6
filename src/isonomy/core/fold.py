"""`fold`: a client's local loop, in a form that an engine can run in its own way.

An algorithm defines what one step does and which data each step uses. By default, `fold` is a
Python loop. The batched engine installs a runner that traces the step once for a whole cohort and
runs the trace without the overhead of Python and autograd; clients that have finished are left out.
`pure` does the same for a computation without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from isonomy.core.tree import Tree, leaves, take, tmap

Body = Callable[[Tree, Tree], Tree]
Runner = Callable[[Body, Tree, Tree, "Tensor | None"], Tree]

Together = Callable[..., Any]
"""A pure function of many clients: `together(run, constants, *stacked)`, where `run(constants,
*stacked)` is the function of one client for each of some clients."""

_runner: ContextVar[Runner | None] = ContextVar("runner", default=None)


def fold(body: Body, carry: Tree, xs: Tree, count: Tensor | None = None) -> Tree:
    """Carry = body(carry, xs[i]) for i = 0, 1, ..., over the leading axis of `xs`.

    With `count`, only the first `count` steps change the carry; the others are padding.

    >>> import torch
    >>> float(fold(lambda total, x: total + x, torch.zeros(()), torch.tensor([1.0, 2.0, 3.0])))
    6.0
    """
    runner = _runner.get()
    if runner is not None:
        return runner(body, carry, xs, count)
    return plain(body, carry, xs, count)


def pure(
    function: Callable[..., Any],
    constants: tuple[Hashable, ...],
    *tensors: Tensor,
    together: Together | None = None,
) -> Any:
    """`function(*constants, *tensors)`, where the function is pure and has tensors as its results.

    An engine may trace it if it is called often with the same constants and shapes. It may also
    use `together`, which computes the results of many clients from stacked tensors.

    >>> pure(lambda n, x: (n * x,), (3,), torch.tensor([1.0, 2.0]))[0].tolist()
    [3.0, 6.0]
    """
    run = getattr(_runner.get(), "pure", None)
    if run is None:
        return function(*constants, *tensors)
    return run(function, constants, tensors, together)


def plain(body: Body, carry: Tree, xs: Tree, count: Tensor | None = None) -> Tree:
    """The loop, step by step."""
    for i in range(leaves(xs)[0].shape[0]):
        new = body(carry, take(xs, i))
        carry = new if count is None else _freeze(i < count, new, carry)
    return carry


def _freeze(live: Tensor, new: Tree, old: Tree) -> Tree:
    return tmap(lambda a, b: torch.where(live, a, b), new, old)


@contextmanager
def using(runner: Runner | None) -> Iterator[Any]:
    """Run folds with `runner` inside the `with` block."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)
