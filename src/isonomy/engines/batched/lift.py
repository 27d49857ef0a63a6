"""Lifting: find the tensors that a function closes over, and make them its inputs.

A trace of a function is correct for other values of a tensor only if that tensor is an input.
`Lift` walks a function's closure through functions, bound methods, partials, containers and
dataclasses, collects the tensors, and makes a key of everything else. It raises NotLiftable for
other objects.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
from torch import Tensor, nn

Rebuild = Callable[[list[Tensor]], Any]


class NotLiftable(Exception):
    """The function closes over something whose tensors cannot be made inputs."""


class Lift:
    """Walks a function's closure; collects its tensors, and a key for everything else."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.alive: list[Any] = []  # objects in the key by identity must outlive it
        self._seen: dict[int, int] = {}
        self._open: set[int] = set()
        self._walked: dict[int, tuple[Any, Rebuild | None]] = {}  # dataclasses, often met again

    def walk(self, value: Any) -> tuple[Any, Rebuild | None]:
        """A hashable key, and how to rebuild the value with other tensors (None: as it is)."""
        if isinstance(value, Tensor):
            at = self._seen.get(id(value))
            if at is None:
                at = self._seen[id(value)] = len(self.tensors)
                self.tensors.append(value)
            return ("tensor", at), lambda new, at=at: new[at]
        if type(value) in _PLAIN or isinstance(value, bool | int | float | str | bytes):
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
            if id(value) not in self._walked:
                self._walked[id(value)] = self._dataclass(value)
            return self._walked[id(value)]
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
        names = _fields(cast(Hashable, type(value)))
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


_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})  # tried first, for speed


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def _partial(func: Any, args: Any, keywords: Any) -> functools.partial:
    return functools.partial(func, *args, **keywords)
