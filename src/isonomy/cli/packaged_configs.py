"""The TOML files that come with the package: plain configs, and papers' experiments (presets)."""

from __future__ import annotations

import tomllib
from typing import Any


def packaged_configs() -> dict[str, dict[str, Any]]:
    """The values of every packaged TOML file, by name."""
    from isonomy import api

    return {
        name: tomllib.loads(path.read_text(encoding="utf-8"))
        for name, path in api.packaged_configs().items()
    }


def text_of(name: str) -> str:
    """The text of a packaged file."""
    from isonomy import api

    return api.packaged_configs()[name].read_text(encoding="utf-8")


def opening_comment(name: str) -> str:
    """The comment at the top of a packaged file, on one line."""
    lines = []
    for line in text_of(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)
