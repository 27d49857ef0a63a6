"""`fold`: a client's local loop, in a form that an engine can run in its own way.

An algorithm defines what one step does and which data each step uses. By default, `fold` is a
Python loop. The batched engine installs a runner that traces the step once for a whole cohort and
runs the trace without the overhead of Python and autograd; clients that have finished are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from isonomy.core.tree import Tree, leaves, take, tmap

Body = Callable[[Tree, Tree], Tree]
Runner = Callable[[Body, Tree, Tree, "Tensor | None"], Tree]

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
