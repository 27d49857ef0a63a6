"""The card that is stored with a model: what the model is, and what it was trained on."""

from __future__ import annotations

from typing import Any

from isonomy.core.examples import SPLITS
from isonomy.runs.build import Setting


def model_card(setting: Setting) -> dict[str, Any]:
    """The card of a setting's model, the same fields for simulations and participants."""
    federation = setting.federation
    return {
        "algorithm": setting.config.algorithm.model_dump(mode="json"),
        "model": setting.config.plain()["model"],
        "loss": setting.task.loss_name,
        "classes": setting.task.classes,
        "labels": list(federation.labels),
        "features": list(federation.features),
        "inputs": list(federation.x.shape[1:]),
        "attributes": {a.name: list(a.levels) for a in federation.attributes},
        "clients": [federation.name(k) for k in range(len(federation))],
        "data": federation.source,
        "splits": {split: int(federation.sizes(split).sum()) for split in SPLITS},
        "versions": setting.config.versions,
    }
