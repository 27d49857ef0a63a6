"""Thresholds by group, the same for all clients.

M. Hardt, E. Price, N. Srebro: "Equality of Opportunity in Supervised Learning", NeurIPS 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from isonomy.metrics.scores import Scores
from isonomy.postprocess import candidates as made
from isonomy.postprocess.calibration import centres
from isonomy.postprocess.method import Method
from isonomy.postprocess.program import solve
from isonomy.postprocess.rates import rates_of
from isonomy.postprocess.rule import Thresholds


@dataclass(frozen=True)
class GroupThresholds(Method):
    """A threshold for each group, the same for all clients, within a global budget.

    The thresholds, or mixtures of two thresholds, with the most correct decisions on all clients'
    examples together among those whose gap is at most the budget. Only the sum of the clients'
    histograms is used. The paper has a budget of 0; here it is free.
    """

    name: ClassVar[str] = "thresholds"
    paper: ClassVar[str] = "Hardt et al., NeurIPS 2016"
    needs: ClassVar = "scores"
    reveals: ClassVar[str] = (
        "each client's number of examples by group, label and score (1000 bins), once"
    )

    def fit(self, scores: Scores, seed: int = 0) -> Thresholds:
        """The rule from the clients' histograms of scores."""
        about = self.about(scores.attributes, 2, seed)
        group = scores.counts[:, scores.rows(about.attribute)].sum(0, keepdims=True)
        group = group.astype(np.float64)
        rates = rates_of(self.notion, 2)
        used = [(0, int(a)) for a in np.flatnonzero(group.sum((0, 2, 3)))]
        gain = group[:, :, 1] - group[:, :, 0]
        solution = solve(
            {cell: made.candidates(group[cell], gain[cell], rates) for cell in used},
            1,
            group.shape[1],
            self.budget,
        )
        gaps = {cell: made.Gaps.of(group[cell]) for cell in used}
        chance = np.broadcast_to(centres(group.shape[-1]), (1, group.shape[1], group.shape[-1]))
        return made.thresholds(about, gaps, chance, solution, rates, None)
