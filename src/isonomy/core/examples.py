"""The splits of a client's examples, and protected attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Attribute:
    """One protected attribute and the names of its groups."""

    name: str
    levels: tuple[str, ...]
