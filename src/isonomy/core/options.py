"""Options checked against the fields of a dataclass: for algorithms, attacks and defences."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from isonomy.errors import ConfigError, unknown

T = TypeVar("T")


def option(default: Any, meaning: str) -> Any:
    """A field of a dataclass that is an option: its default, and what it means."""
    return dataclasses.field(default=default, metadata={"meaning": meaning})


def made(what: str, name: str, kind: type[T], options: dict[str, Any] | None = None) -> T:
    """An object of `kind` with these options, or a sentence on what is wrong with one.

    `what` is the config's table, such as 'algorithm'.
    """
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in (options or {}).items():
        if key not in fields:
            if not fields:
                raise ConfigError(f"{what}.{key}: '{name}' has no options; remove it.")
            said = f"option of '{name}'"
            raise ConfigError(f"{what}.{key}: {unknown(said, key, fields)}")
        values[key] = _checked(f"{what}.{key}", value, hints[key])
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{what} '{name}': {error}") from None


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
