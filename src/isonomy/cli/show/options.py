"""Options in words: the fields of a dataclass, and values as a config would contain them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, get_args, get_origin

from isonomy.cli.printing import print_columns, print_line

if TYPE_CHECKING:
    from rich.console import Console

_TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text"}


class Option(NamedTuple):
    """One option: its name, its type and default in words, and its meaning."""

    name: str
    type: str
    default: str
    meaning: str


def fields_of(kind: type) -> list[Option]:
    """The options of an algorithm, an attack or a defence: the fields of its dataclass."""
    from typing import get_type_hints

    hints = get_type_hints(kind)
    return [
        Option(
            field.name,
            type_in_words(hints[field.name]),
            "required" if field.default is dataclasses.MISSING else value_text(field.default),
            field.metadata.get("meaning", ""),
        )
        for field in dataclasses.fields(kind)
    ]


def print_options(out: Console, title: str, options: Sequence[Option]) -> None:
    """Print a table of options, or that there are none."""
    if options:
        print_columns(out, title, ("name", "type", "default", "meaning"), options)
    else:
        print_line(out, f"{title}: none")
        out.print()


def type_in_words(hint: Any) -> str:
    """A type annotation in words.

    >>> type_in_words(float | None), type_in_words(Literal["size", "equal"])
    ('number or unset', '"size" or "equal"')
    >>> type_in_words(int | float | str), type_in_words(tuple[float, ...])
    ('number or text', 'list of numbers')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(value_text(value) for value in inner)
    if origin in (Union, types.UnionType):
        words = dict.fromkeys(type_in_words(one) for one in inner if one is not types.NoneType)
        if "number" in words:
            words.pop("whole number", None)
        return " or ".join([*words, *(["unset"] if types.NoneType in inner else [])])
    if origin in (tuple, list):
        item = _TYPES.get(inner[0], "") if inner else ""
        return f"list of {item}s" if item and inner[0] is not bool else "list"
    if origin in (dict, Mapping):
        return "table"
    return _TYPES.get(hint, getattr(hint, "__name__", str(hint)))


def type_of_default(default: Any) -> str:
    """The type of an option that is known by its default only, in words."""
    if isinstance(default, tuple | list):
        return "list"
    return "table" if isinstance(default, Mapping) else _TYPES.get(type(default), "")


def value_text(value: Any) -> str:
    """A value as a config would contain it.

    >>> value_text(None), value_text(True), value_text(("a", 1))
    ('unset', 'true', '["a", 1]')
    """
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {value_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(v) for v in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def example_of(options: Sequence[Option]) -> str:
    """The first option that has a default, as it would follow a name in a TOML table."""
    for option in options:
        if option.default not in ("unset", "required"):
            return f", {option.name} = {option.default}"
    return ""
