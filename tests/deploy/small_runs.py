"""The config of small runs whose models are exported."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "rounds": 2,
    "seed": 1,
    "data": {"name": "synthetic", "examples": 600, "clients": 3, "seed": 0},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"epochs": 2, "batch": 64, "optimiser": "adam", "lr": 0.01},
    "evaluate": {"every": 2, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "front": {"rays": 20},
    "engine": "loop",
}
