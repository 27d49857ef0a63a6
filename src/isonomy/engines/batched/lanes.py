"""The lanes of a cohort: torch's wrappers of `vmap`, off and on.

This is the only module that uses torch's private vmap interface. It is imported by way of `runner`,
which checks that it works with the installed torch and otherwise runs loops untraced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
import torch._C._functorch as functorch
from torch import Tensor
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_all_functorch_interpreters,
    temporarily_pop_interpreter_stack,
)


class Levels(NamedTuple):
    """The running `vmap`s, the outermost first: their numbers, and how many lanes each has."""

    numbers: list[int]
    sizes: list[int]

    @classmethod
    def now(cls) -> Levels | None:
        """Those that are running; None inside of `grad` or `jvp`."""
        stack = retrieve_all_functorch_interpreters()
        if any(level.key() != functorch.TransformType.Vmap for level in stack):
            return None
        sizes = [cast(VmapInterpreter, level).batch_size() for level in stack]
        return cls([level.level() for level in stack], sizes)

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Compute with plain tensors for a while."""
        with contextlib.ExitStack() as out_of_vmap:
            for _ in self.numbers:
                out_of_vmap.enter_context(temporarily_pop_interpreter_stack())
            yield


def unwrap(t: Tensor, levels: list[int]) -> tuple[Tensor, list[int | None]]:
    """The tensor under all wrappers, its lanes first, and for each level whether it has lanes."""
    present: list[int | None] = [None] * len(levels)
    for i in reversed(range(len(levels))):
        if functorch.is_batchedtensor(t) and functorch.maybe_get_level(t) == levels[i]:
            at = functorch.maybe_get_bdim(t)
            t = functorch.get_unwrapped(t).movedim(at, 0)
            present[i] = 0
    return t, present


def spread(t: Tensor, present: list[int | None], sizes: list[int]) -> Tensor:
    """Give a tensor lanes at every level."""
    for i, size in enumerate(sizes):
        if present[i] is None:
            lead = t.shape[:i]
            t = t.unsqueeze(i).expand(*lead, size, *t.shape[i:])
    return t.clone(memory_format=torch.contiguous_format)  # the runner writes to what it carries


def wrap(t: Tensor, levels: list[int]) -> Tensor:
    """The tensor with its wrappers; it has lanes at every level."""
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
