"""Every algorithm, found by looking: a file in a family's folder is enough to add one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from isonomy.core.algorithm import Algorithm
from isonomy.core.importing import from_path
from isonomy.core.options import build
from isonomy.errors import ConfigError, unknown

__all__ = ["find", "make", "registry"]


@cache
def registry() -> dict[str, type[Algorithm]]:
    """Name to class, of all algorithms in this package."""
    found: dict[str, type[Algorithm]] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm:
                found[value.name] = value
    return dict(sorted(found.items()))


def find(name: str) -> type[Algorithm]:
    """The algorithm of that name, or, by 'package.module:Class', a user's own."""
    if ":" in name:
        value = from_path("algorithm", name)
        if not (isinstance(value, type) and issubclass(value, Algorithm)):
            raise ConfigError(
                f"algorithm '{name}' is not a subclass of isonomy.Algorithm; name a class that is."
            )
        return value
    if name not in registry():
        raise ConfigError(unknown("algorithm", name, registry()))
    return registry()[name]


def make(name: str, options: dict[str, Any] | None = None) -> Algorithm:
    """An algorithm with its hyper-parameters checked against the dataclass's fields."""
    return build("algorithm", name, find(name), options)
