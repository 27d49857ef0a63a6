"""Named options with defaults and meanings, checked with a sentence that helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isonomy.errors import ConfigError, did_you_mean

Lists = tuple[str, ...] | tuple[float, ...] | tuple[int, ...]
Value = bool | int | float | str | Lists | Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """One option: what it is when not given, and what it means."""

    default: Value
    meaning: str


def settle(where: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options' values: those given, checked against their kind, and defaults for the rest.

    >>> settle("partition 'iid'", {"minimum": Option(10, "rows")}, {})
    {'minimum': 10}
    """
    out: dict[str, Any] = {name: option.default for name, option in options.items()}
    for name, value in given.items():
        if name not in options:
            known = ", ".join(options) if options else "none"
            raise ConfigError(
                f"{where} has no option '{name}': its options are {known}."
                f"{did_you_mean(name, options)}"
            )
        out[name] = _as(where, name, options[name].default, value)
    return out


def _as(where: str, name: str, default: Value, value: Any) -> Value:
    """`value` in the kind of `default`; an integer will do for a real, one item for a list."""
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        kind = "true or false"
    elif isinstance(default, int):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        kind = "a whole number"
    elif isinstance(default, float):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        kind = "a number"
    elif isinstance(default, str):
        if isinstance(value, str):
            return value
        kind = "a text"
    elif isinstance(default, Mapping):
        if isinstance(value, Mapping):
            return dict(value)
        kind = "a table"
    else:
        numbers = bool(default) and isinstance(default[0], float)
        whole = bool(default) and isinstance(default[0], int)
        items = [value] if isinstance(value, str | int | float) else value
        wanted = (int, float) if numbers else (int,) if whole else (str,)
        if isinstance(items, list | tuple) and all(
            isinstance(v, wanted) and not isinstance(v, bool) for v in items
        ):
            return tuple(float(v) for v in items) if numbers else tuple(items)
        kind = f"a list of {'numbers' if numbers else 'whole numbers' if whole else 'texts'}"
    such = f", such as {default!r}" if default not in ("", (), {}) else ""
    raise ConfigError(f"{where}: option '{name}' is {value!r}; give {kind}{such}.")
