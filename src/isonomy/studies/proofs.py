"""What can be proved about requirements before anything is trained, on the training examples.

Two kinds of proof: no predictions at all meet the requirements, whatever the model
(`isonomy.metrics.possible`), and no linear model meets the requirements on losses
(`isonomy.studies.loss_proof`). For other requirements and other models there is no proof: rates are
not convex in the weights of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.data.federation import Federation
from isonomy.metrics import Counts
from isonomy.metrics.possible import Conflict, conflict
from isonomy.metrics.requirements import Requirement
from isonomy.runs.build import Setting
from isonomy.studies.loss_proof import LossProof, loss_proofs


@dataclass(frozen=True)
class Proofs:
    """What was proved; empty if nothing was."""

    conflict: Conflict | None
    losses: tuple[LossProof, ...]

    @property
    def impossible(self) -> str:
        """Which models cannot meet all requirements on the training examples: of "any kind".

        Or of "this kind", linear ones, shared or one per client; empty if neither is proved.
        """
        if self.conflict is not None:
            return "any kind"
        nothing = bool(self.losses) and all(one.infeasible for one in self.losses)
        return "this kind" if nothing else ""

    @property
    def texts(self) -> list[str]:
        """What is impossible, as sentences."""
        found = [self.conflict.text] if self.conflict is not None else []
        return found + [one.text for one in self.losses if one.infeasible]

    @property
    def others(self) -> list[str]:
        """What else was found out."""
        return [one.text for one in self.losses if not one.infeasible]


def prove(setting: Setting, requirements: Sequence[Requirement]) -> Proofs:
    """Try both proofs."""
    found = conflict(requirements, label_counts(setting.federation))
    return Proofs(found, loss_proofs(setting, requirements))


def label_counts(federation: Federation) -> Counts:
    """The counts of correct predictions of all training examples."""
    rows = 1 + sum(len(attribute.levels) for attribute in federation.attributes)
    classes = federation.classes
    out = np.zeros((len(federation), rows, classes, classes), np.int64)
    for k in range(len(federation)):
        at = federation.rows(k, "train")
        label = federation.y[at].long()
        start = 1
        out[k, 0] = _diagonal(label, classes)
        for column, attribute in enumerate(federation.attributes):
            for level in range(len(attribute.levels)):
                inside = federation.groups[at, column] == level
                out[k, start + level] = _diagonal(label[inside], classes)
            start += len(attribute.levels)
    return Counts(out, np.zeros(out.shape[:3]), federation.attributes)


def _diagonal(label: Tensor, classes: int) -> NDArray[np.int64]:
    """How many labels there are of each class, on the diagonal."""
    return np.diag(torch.bincount(label, minlength=classes).numpy())
