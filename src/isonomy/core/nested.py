"""Nested tables, such as a config, by full keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The values of nested tables by their full keys.

    >>> flat({"rounds": 5, "local": {"lr": 0.1}})
    {'rounds': 5, 'local.lr': 0.1}
    """
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{before}{key}.")
        else:
            out[f"{before}{key}"] = value
    return out
