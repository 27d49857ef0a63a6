"""Sweeps: a grid of values of config keys. Every combination is a method of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from isonomy.config.overrides import merge, parse_override, toml_value
from isonomy.config.schema import Config, parse
from isonomy.errors import ConfigError
from isonomy.studies.compare import Method, check_labels, methods


def fixed_keys(axes: Sequence[str]) -> list[str]:
    """The arguments that give a key one value only: overrides of the config, not axes.

    >>> fixed_keys(["rounds=5", "local.lr=0.1,0.2", "model.hidden=[8,8]"])
    ['rounds=5', 'model.hidden=[8,8]']
    """
    fixed = []
    for axis in axes:
        parse_override(axis)  # raises ConfigError if it is not key=value
        value = axis.partition("=")[2]
        if "," not in value or not isinstance(toml_value(value), str):
            fixed.append(axis)
    return fixed


def grid(config: Config, axes: list[str]) -> list[Method]:
    """One method for each combination of the axes `key=v1,v2,...` and each method of the config."""
    if not axes:
        raise ConfigError(
            "a sweep needs at least one key with several values, e.g. algorithm.mu=0,0.1,1."
        )
    return grid_of(config, [_axis(text) for text in axes])


def grid_of(config: Config, parsed: Sequence[tuple[str, list[Any]]]) -> list[Method]:
    """One method for each combination of the values of keys and each method of the config."""
    if not parsed or not all(values for _, values in parsed):
        raise ConfigError("a sweep needs at least one key, and at least one value of every key.")
    out = []
    many = len(config.compare.methods) > 1
    for method in methods(config):
        for values in itertools.product(*(vs for _, vs in parsed)):
            changed: dict[str, Any] = method.config.plain()
            words = []
            for (key, _), value in zip(parsed, values, strict=True):
                nested: Any = value
                for part in reversed(key.split(".")):
                    nested = {part: nested}
                changed = merge(changed, nested)
                words.append(f"{key.removeprefix('algorithm.')}={value}")
            label = ", ".join(words)
            label = (
                f"{method.label}, {label}" if many else f"{method.config.algorithm.name} {label}"
            )
            changed["series"] = method.label if many else method.config.algorithm.name
            out.append(Method.of(parse(changed, where="sweep"), label))
    check_labels(out)
    return out


def _axis(text: str) -> tuple[str, list[Any]]:
    """`algorithm.mu=0,0.1,1` as a key and its values."""
    (key, _, values) = text.partition("=")
    parse_override(f"{key}=0")
    listed = toml_value(f"[{values}]")
    if isinstance(listed, str):
        listed = [toml_value(v.strip()) for v in values.split(",")]
    if not listed or listed == [""]:
        raise ConfigError(f"'{text}' has no values; write key=v1,v2,..., e.g. local.lr=0.01,0.1.")
    return key.strip(), list(listed)
