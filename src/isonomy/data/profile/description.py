"""The description of a federation's data, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isonomy.core.examples import SPLITS, Split
from isonomy.data.profile.statistics import Integers

Weight = Literal[1, 2, 3]


@dataclass(frozen=True)
class Caution:
    """A warning. `weight` 3: numbers may mislead; 2: it affects a choice; 1: for information.

    `kind` is the name of the rule (docs/data-profile.md).
    """

    kind: str
    weight: Weight
    text: str


@dataclass(frozen=True)
class Measure:
    """One number that shows how clients differ.

    `about` is what differs, `where` the client or feature at which it was found, `chance` the
    expected value by chance, `p` the p-value of no difference; None if not available.
    """

    about: str
    name: str
    value: float
    where: str = ""
    chance: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Groups:
    """A protected attribute: its levels, and counts of rows [K, splits, labels, levels]."""

    name: str
    levels: tuple[str, ...]
    counts: Integers


@dataclass(frozen=True)
class Description:
    """The data of every client, how clients differ, and warnings.

    `counts` [K, splits, labels]; `labels` is empty for regression. `clients` contains measures of
    each client, in the order of `names`. `evaluated` is the split on which models are evaluated.
    `looked_at` is the number of features that were analysed.
    """

    source: str
    names: tuple[str, ...]
    labels: tuple[str, ...]
    counts: Integers
    groups: tuple[Groups, ...]
    features: int
    looked_at: int
    evaluated: Split
    measures: tuple[Measure, ...] = ()
    clients: Mapping[str, Sequence[float]] = field(default_factory=dict)
    warnings: tuple[Caution, ...] = ()

    def sizes(self, split: Split = "train") -> Integers:
        """Return the number of rows of each client in a split [K]."""
        out: Integers = self.counts[:, SPLITS.index(split)].sum(-1)
        return out

    def facts(self) -> dict[str, Any]:
        """Return plain values for JSON, as saved with a run and shown in a report."""
        out: dict[str, Any] = {
            "source": self.source,
            "names": list(self.names),
            "sizes": self.sizes().tolist(),
            "split_sizes": {split: int(self.sizes(split).sum()) for split in SPLITS},
            "features": self.features,
            "looked_at": self.looked_at,
            "evaluated": self.evaluated,
            "evaluated_sizes": self.sizes(self.evaluated).tolist(),
        }
        if self.labels:
            out["labels"] = list(self.labels)
            out["label_shares"] = shares(self.counts[:, 0])
        out["groups"] = {
            at.name: {
                "levels": list(at.levels),
                "shares": shares(at.counts[:, 0].sum(1)),
                "evaluated": at.counts[:, SPLITS.index(self.evaluated)].sum((0, 1)).tolist(),
            }
            for at in self.groups
        }
        out["measures"] = [
            {
                "about": at.about,
                "name": at.name,
                "value": _number(at.value),
                "where": at.where,
                "chance": _number(at.chance),
                "p": _number(at.p),
            }
            for at in self.measures
        ]
        out["clients"] = {key: [_number(v) for v in at] for key, at in self.clients.items()}
        out["warnings"] = [
            {"kind": at.kind, "weight": at.weight, "text": at.text} for at in self.warnings
        ]
        return out


def shares(counts: Integers) -> list[list[float]]:
    """Return each row of counts as shares, to six decimals; zeros if there are none."""
    at = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    out: list[list[float]] = at.round(6).tolist()
    return out


def _number(at: float | None) -> float | None:
    """Round to six digits, so that values are the same on every machine."""
    return None if at is None or not np.isfinite(at) else float(f"{at:.6g}")
