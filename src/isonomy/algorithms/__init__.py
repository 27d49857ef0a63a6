"""Every algorithm, found by looking: a file in a family's folder is enough to add one."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from isonomy.algorithm import Algorithm
from isonomy.errors import ConfigError, unknown
from isonomy.importing import from_path

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
    kind = find(name)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in (options or {}).items():
        if key not in fields:
            if not fields:
                raise ConfigError(f"algorithm.{key}: '{name}' has no options; remove it.")
            what = f"option of '{name}'"
            raise ConfigError(f"algorithm.{key}: {unknown(what, key, fields)}")
        values[key] = _checked(f"algorithm.{key}", value, hints[key])
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"algorithm '{name}': {error}") from None


def _checked(where: str, value: Any, hint: Any) -> Any:
    """The value as the field's type, or a sentence that says what is allowed."""
    origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
        allowed = ", ".join(repr(a) for a in get_args(hint))
        raise ConfigError(f"{where} = {value!r}: use one of {allowed}.")
    if origin is not None and type(None) in get_args(hint):
        inner = [a for a in get_args(hint) if a is not type(None)]
        return None if value is None else _checked(where, value, inner[0])
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r}: give a list.")
        item = get_args(hint)[0] if get_args(hint) else Any
        return (tuple if origin is tuple else list)(_checked(where, v, item) for v in value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is Any or (isinstance(value, hint) and not (hint is int and isinstance(value, bool))):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} = {value!r}: give {_article(name)} {name}.")


def _article(word: str) -> str:
    return "an" if re.match("[aeiou]", word) else "a"
