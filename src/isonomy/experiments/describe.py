"""Who holds what: sizes and shares of labels and groups, for each client."""

from __future__ import annotations

from typing import Any

import torch

from isonomy.data.federation import SPLITS, Federation


def describe_data(federation: Federation) -> dict[str, Any]:
    """Plain values about every client's training examples; what a report shows."""
    clients = len(federation)
    names = [federation.name(k) for k in range(clients)]
    out: dict[str, Any] = {
        "source": federation.source,
        "names": names,
        "sizes": federation.sizes().tolist(),
        "split_sizes": {s: int(federation.sizes(s).sum()) for s in SPLITS},
        "features": int(federation.x[0].numel()),
    }
    rows = [federation.rows(k) for k in range(clients)]
    if federation.classes:
        shares = [_shares(federation.y[at], federation.classes) for at in rows]
        out["labels"] = list(federation.labels or map(str, range(federation.classes)))
        out["label_shares"] = shares
    out["groups"] = {
        attribute.name: {
            "levels": list(attribute.levels),
            "shares": [_shares(federation.groups[at, a], len(attribute.levels)) for at in rows],
        }
        for a, attribute in enumerate(federation.attributes)
    }
    return out


def _shares(values: torch.Tensor, levels: int) -> list[float]:
    counts = torch.bincount(values, minlength=levels).double()
    return [round(float(v), 6) for v in counts / counts.sum()]
