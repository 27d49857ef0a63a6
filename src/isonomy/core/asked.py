"""Which phases an algorithm can ask in a round and at the end, read from its own code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType

from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import GivesVerdict
from isonomy.core.phase import declared


def times_asked(algorithm: Algorithm, *, at_end: bool) -> dict[str, int]:
    """The phases that a round can ask, or the end of a run, and how often each at most."""
    kind, out = type(algorithm), {}
    methods = ["finish"] if at_end else ["round"]
    if at_end and isinstance(algorithm, GivesVerdict):
        methods.append("examine")
    found = set[str]().union(*(reached(kind, method) for method in methods))
    for name, phase in declared(kind).items():
        times = phase.times if not at_end or phase.at_end is None else phase.at_end
        most = int(getattr(algorithm, times) if isinstance(times, str) else times)
        if name in found and most:
            out[name] = most
    return out


def reached(kind: type[Algorithm], method: str) -> set[str]:
    """The phases that a method of an algorithm can ask, read from the code that it can reach.

    >>> from isonomy.algorithms.personal.finetune import Finetune
    >>> sorted(reached(Finetune, "round")), sorted(reached(Finetune, "finish"))
    (['local'], ['tune'])
    """
    phases, found, todo = set(declared(kind)), set[str](), [method]
    seen = {"round", "finish", "examine"} - {method}  # none calls another; cohorts have a `round`
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in phases:
            found.add(name)
            continue
        own = inspect.getattr_static(kind, name, None)
        function = own.fget if isinstance(own, property) else getattr(own, "__func__", own)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if isinstance(code, CodeType):
            todo += _names(code)
    return found


def _names(code: CodeType) -> Iterator[str]:
    """All names of attributes that code uses, with that of the functions inside."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
