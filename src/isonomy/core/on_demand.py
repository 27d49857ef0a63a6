"""A mapping whose values are in modules that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TypeVar

Value = TypeVar("Value")


class OnDemand(Mapping[str, Value]):
    """Names to values; `modules` has the module of each name, and `of` finds the value in it.

    To know which names there are, nothing is imported.

    >>> found = OnDemand({"cos": "math", "dumps": "json"}, lambda name, module: vars(module)[name])
    >>> list(found), "sin" in found, found["cos"](0.0)
    (['cos', 'dumps'], False, 1.0)
    """

    def __init__(self, modules: Mapping[str, str], of: Callable[[str, ModuleType], Value]) -> None:
        self._modules, self._of = dict(sorted(modules.items())), of
        self._found: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._found:
            self._found[name] = self._of(name, importlib.import_module(self._modules[name]))
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
