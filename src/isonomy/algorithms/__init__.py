"""Every algorithm: a file in a family's folder, with the algorithm's name, is enough to add one."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, cast

from isonomy.core.algorithm import Algorithm
from isonomy.core.importing import from_path
from isonomy.core.on_demand import OnDemand
from isonomy.core.options import build
from isonomy.errors import ConfigError, unknown

__all__ = ["find", "make", "registry"]


@cache
def registry() -> Mapping[str, type[Algorithm]]:
    """Name to class, of all algorithms in this package; each is imported when it is first used."""
    found = pkgutil.walk_packages(__path__, f"{__name__}.")
    modules = {module.name.rpartition(".")[2]: module.name for module in found if not module.ispkg}
    return OnDemand(modules, _defined)


def _defined(name: str, module: ModuleType) -> type[Algorithm]:
    for value in vars(module).values():
        own = isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm
        if own and value.name == name:
            return cast(type[Algorithm], value)
    raise TypeError(f"{module.__name__} has no algorithm whose name is '{name}'.")


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
