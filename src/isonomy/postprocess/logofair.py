"""LoGoFair: thresholds for each client and group, with a global and a local budget.

L. Zhang, C. Chen, Z. Han, Q. Zhong, X. Zheng: "LoGoFair: Post-Processing for Local and Global
Fairness in Federated Learning", AAAI 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from isonomy.core.options import option
from isonomy.metrics.counts import Floats
from isonomy.metrics.scores import Scores
from isonomy.postprocess.calibration import calibrated, centres
from isonomy.postprocess.candidates import Gaps, candidates, thresholds
from isonomy.postprocess.method import Method
from isonomy.postprocess.program import solve
from isonomy.postprocess.rates import rates_of
from isonomy.postprocess.rule import About, Thresholds


@dataclass(frozen=True)
class LoGoFair(Method):
    """A threshold for each client and group, within a global and a local budget.

    The paper's rule under demographic parity, with eta the probability of class 1, s = +1 and -1
    for the two groups, p_a = P(a) and pi_ac = P(a, c):

        predict 1 iff eta >= 1/2 + s_a (lambda / (2 p_a) + mu_c / (2 pi_ac))

    where lambda and mu_c minimise the dual of "most accuracy such that the gap over all clients is
    at most the budget, and the gap inside each client at most the local budget". Here that linear
    program is solved exactly (`isonomy.postprocess.program`) on histograms of scores, for any
    number of groups, in place of mirror descent over rounds; lambda and mu_c are its multipliers.
    Under equal opportunity and equalised odds the rates are those of the labels that clients
    counted, where the paper has the rates that the scores predict.
    """

    name: ClassVar[str] = "logofair"
    paper: ClassVar[str] = "Zhang et al., AAAI 2025"
    needs: ClassVar = "scores"
    reveals: ClassVar[str] = (
        "each client's number of examples by group, label and score (1000 bins), once"
    )

    local_budget: float | None = option(
        None, "largest gap between groups inside each client (unset: any)", ge=0, le=1
    )
    calibrate: Literal["beta", "none"] = option(
        "beta", "probabilities from scores: beta calibration for each client and group, or as is"
    )

    def fit(self, scores: Scores, seed: int = 0) -> Thresholds:
        """The rule from the clients' histograms of scores."""
        about = self.about(scores.attributes, 2, seed)
        group = scores.counts[:, scores.rows(about.attribute)].astype(np.float64)
        together = replace(about, local_budget=None)
        new = self._solved(together, group.sum(0, keepdims=True), None)
        return self._solved(about, group, new)

    def _solved(self, about: About, group: Floats, new: Thresholds | None) -> Thresholds:
        """The rule for histograms [clients, levels, label, bin]; `new` is that of a new client."""
        rates = rates_of(about.notion, 2)
        plain = np.broadcast_to(centres(group.shape[-1]), (*group.shape[:2], group.shape[-1]))
        chance = calibrated(group) if self.calibrate == "beta" else plain
        gain = group.sum(2) * (2 * chance - 1)
        used = [(int(k), int(a)) for k, a in zip(*np.nonzero(group.sum((2, 3))), strict=True)]
        solution = solve(
            {cell: candidates(group[cell], gain[cell], rates) for cell in used},
            group.shape[0],
            group.shape[1],
            about.budget,
            about.local_budget,
        )
        gaps = {cell: Gaps.of(group[cell]) for cell in used}
        return thresholds(about, gaps, chance, solution, rates, new)
