"""Data: federations, partitions of rows among clients, and named data sets.

Names are imported on first use, so that finding a file does not have to import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isonomy.core.examples import SPLITS, Attribute, Split
    from isonomy.data.datasets import DATASETS, load
    from isonomy.data.federation import Federation, build
    from isonomy.data.partition import PARTITIONS

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SPLITS",
    "Attribute",
    "Federation",
    "Split",
    "build",
    "load",
]

_HOMES = {
    "DATASETS": "isonomy.data.datasets",
    "PARTITIONS": "isonomy.data.partition",
    "load": "isonomy.data.datasets",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'isonomy.data' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES.get(name, "isonomy.data.federation")), name)


def __dir__() -> list[str]:
    return __all__
