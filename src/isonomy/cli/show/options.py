"""Tables of options, and values as a config would contain them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isonomy.cli.printing import print_columns, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from isonomy.core.options import Option


def print_options(out: Console, title: str, options: Mapping[str, Option]) -> None:
    """Print a table of options, or that there are none."""
    if not options:
        print_line(out, f"{title}: none")
        out.print()
        return
    rows = [
        (name, option.allowed, default_text(option), option.meaning)
        for name, option in options.items()
    ]
    print_columns(out, title, ("name", "type", "default", "meaning"), rows)


def default_text(option: Option) -> str:
    """The default of an option as a config would contain it."""
    from isonomy.core.options import REQUIRED

    return "required" if option.default is REQUIRED else value_text(option.default)


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


def example_of(options: Mapping[str, Option]) -> str:
    """The first option that has a default, as it would follow a name in a TOML table."""
    for name, option in options.items():
        text = default_text(option)
        if text not in ("unset", "required"):
            return f", {name} = {text}"
    return ""


def print_search_space(out: Console, spaces: Mapping[str, str]) -> None:
    """Print where `isonomy tune` searches: one row per key."""
    print_columns(out, "Search space of isonomy tune", ("key", "values"), list(spaces.items()))
