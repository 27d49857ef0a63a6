"""The runner of local loops: traced programs, or plain vmap if this torch cannot trace them.

`program` uses interfaces of torch that are private and may change. So it is imported here only,
and tried on a small loop before its first use. If the import fails, or the loop fails or gives
other numbers, local loops run step by step under plain `vmap`: slower, with the same results.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from isonomy.core.fold import Body, plain
from isonomy.core.tree import Tree
from isonomy.engines.batched.precision import Precision, in_precision

if TYPE_CHECKING:
    from isonomy.engines.batched.program import Programs


class Untraced:
    """Runs every loop step by step; takes the place of `program.Programs`."""

    compile = False
    traced = 0  # no programs are made
    trouble: str | None = None
    plan = None  # batches are planned client by client

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision: Precision = precision

    def products(self, net: nn.Module) -> AbstractContextManager[Any]:
        """A setting that changes nothing."""
        del net
        return nullcontext()

    def __call__(self, body: Body, carry: Tree, xs: Tree, count: Tensor | None) -> Tree:
        """Run a fold."""
        return plain(in_precision(body, self.precision), carry, xs, count)


@cache
def shared(compile: bool, precision: Precision = "float32") -> Programs | Untraced:
    """The process's traced programs: runs of the same model and shapes share them."""
    if problem() is not None:
        return Untraced(precision)
    from isonomy.engines.batched.program import Programs

    return Programs(compile=compile, precision=precision)


@cache
def problem() -> str | None:
    """Why this torch cannot trace local loops, or None if it can; the first call warns."""
    try:
        _try_tracing()
    except Exception as error:  # a private interface can fail in any way
        lines = str(error).strip().splitlines() or [""]
        found = f"{type(error).__name__}: {lines[0]}"
    else:
        return None
    warnings.warn(
        f"torch {torch.__version__} cannot trace local training ({found}). It runs without "
        "tracing, with the same results but more slowly; install the torch version that "
        "pyproject.toml names.",
        RuntimeWarning,
        stacklevel=2,
    )
    return found


def _try_tracing() -> None:
    """Raise an error unless a small traced loop under vmap gives the numbers of the plain one."""
    from isonomy.engines.batched.program import Programs

    programs = Programs()
    starts, xs = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0.5, -1.0])
    counts = torch.tensor([2, 2, 1])

    def descent(run: Programs | Untraced) -> Tensor:
        def client(start: Tensor, count: Tensor) -> Tensor:
            def step(w: Tensor, x: Tensor) -> Tensor:
                slope: Tensor = grad(lambda v: ((v - x) * start).square().sum())(w)
                return w - 0.25 * slope

            ended: Tensor = run(step, start, xs, count)
            return ended

        with torch.no_grad():
            out: Tensor = vmap(client)(starts, counts)
        return out

    got, expected = descent(programs), descent(Untraced())
    if programs.refused or not programs.traced:
        raise RuntimeError("a small loop was not traced")
    if not torch.allclose(got, expected):
        raise RuntimeError("a traced loop gave other numbers")
