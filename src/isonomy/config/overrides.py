"""Overrides of a config's values: `key=value` texts, and tables merged into tables."""

from __future__ import annotations

import tomllib
from typing import Any

from isonomy.errors import ConfigError


def parse_override(text: str) -> dict[str, Any]:
    """The nested values of an override such as `local.lr=0.1`; an unquoted word is a string.

    >>> parse_override("local.lr=0.1")
    {'local': {'lr': 0.1}}
    """
    key, found, value = text.partition("=")
    key = key.strip()
    if not found or not all(part for part in key.split(".")):
        raise ConfigError(f"'{text}' is not an override; write key=value, e.g. local.lr=0.1.")
    nested: Any = toml_value(value.strip())
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def toml_value(text: str) -> Any:
    """The value of a TOML expression; a text that is not valid TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merge(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`other` over `base`, table by table; a new name drops the options of the old one.

    >>> merge({"algorithm": {"name": "fedprox", "mu": 1.0}}, {"algorithm": "fedavg"})
    {'algorithm': {'name': 'fedavg'}}
    """
    out = dict(base)
    for key, value in other.items():
        old, new = _table(key, out.get(key)), _table(key, value)
        if not isinstance(old, dict) or not isinstance(new, dict):
            out[key] = new
        elif key in _KEPT and new.get("name", old.get("name")) != old.get("name"):
            out[key] = {k: v for k, v in old.items() if k in _KEPT[key]} | new
        else:
            out[key] = merge(old, new)
    return out


_KEPT: dict[str, set[str]] = {  # keys that stay when the table names something else
    "algorithm": set(),
    "model": {"convert"},
    "data": {"clients", "seed", "fallback"},
    "partition": set(),
    "attack": {"fraction", "clients", "labels", "seed"},
    "defence": set(),
    "postprocess": {"attribute", "notion", "budget", "split"},
}


def _table(key: str, value: Any) -> Any:
    """The table that a name alone stands for."""
    if not isinstance(value, str):
        return value
    if key == "excess":
        return {"clusters": value}
    return {"name": value} if key in _KEPT or key == "engine" else value
