"""The linear program of local and global fairness: random changes of decisions.

Y. Duan, G. Xu, Y. Shi, M. Lemmon: "The cost of local and global fairness in Federated Learning",
AISTATS 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from isonomy.core.options import option
from isonomy.metrics.counts import Counts, Floats
from isonomy.metrics.scores import Scores
from isonomy.postprocess.method import Method, NotionName
from isonomy.postprocess.program import Candidates, solve
from isonomy.postprocess.rates import Rate, rates_of
from isonomy.postprocess.rule import About, Mixing


@dataclass(frozen=True)
class FairLP(Method):
    """Random changes of decisions with the least loss of accuracy within two budgets.

    In client c and group a the model's decision is kept with probability b0 and replaced by class
    y with probability b_y, where b0 + sum b_y = 1. With T_y the recall of class y before, the
    recall after is x_y = b0 T_y + b_y. The paper's program maximises the accuracy sum S_cay x_cay,
    with S_cay the share of examples, over the points x that such changes reach, such that recalls
    differ between groups by at most the budgets. Here the variables are b and not x, which is the
    same program and is also defined where the recalls sum to 1. The paper's notion is equalised
    odds with two classes and equal recalls with more (`notion = "eo"`); the others are linear in b
    too.
    """

    name: ClassVar[str] = "fair_lp"
    paper: ClassVar[str] = "Duan et al., AISTATS 2025"
    needs: ClassVar = "decisions"
    several_classes: ClassVar[bool] = True
    reveals: ClassVar[str] = "each client's number of examples by group, label and decision, once"

    notion: NotionName = option(
        "equalised_odds",
        "what is equal between groups: dp (rate of each decision), eo (true positive rate; with "
        "more than two classes the recall of each), or equalised_odds (also false positive rate)",
    )
    local_budget: float | None = option(
        None, "largest gap between groups inside each client (unset: any)", ge=0, le=1
    )

    def fit(self, scores: Scores, seed: int = 0) -> Mixing:
        """The rule from the clients' histograms of scores."""
        half = np.arange(scores.bins) >= scores.bins / 2
        each = [(scores.counts * ~half).sum(-1), (scores.counts * half).sum(-1)]
        counts = np.stack(each, -1).astype(np.int64)
        return self.fit_counts(
            Counts(counts, np.zeros(counts.shape[:3]), scores.attributes), seed=seed
        )

    def fit_counts(self, counts: Counts, seed: int = 0) -> Mixing:
        """The rule for any number of classes, from the clients' counts of decisions."""
        about = self.about(counts.attributes, counts.classes, seed)
        group = counts.counts[:, counts.rows(about.attribute)].astype(np.float64)
        new = _solved(about, group.sum(0, keepdims=True), about.budget, None, None)
        own = _solved(about, group, about.budget, about.local_budget, new)
        return Mixing(
            about,
            {
                "keep": torch.from_numpy(np.concatenate([own, new])[..., 0].copy()),
                "give": torch.from_numpy(np.concatenate([own, new])[..., 1:].copy()),
            },
        )


def _solved(
    about: About, group: Floats, budget: float, local: float | None, new: Floats | None
) -> Floats:
    """The probabilities b [clients, levels, 1 + classes] from counts [clients, levels, C, C].

    A cell without examples gets those of `new`, or keeps the model's decisions.
    """
    clients, levels, classes = group.shape[:3]
    rates = rates_of(about.notion, classes)
    used = [(int(k), int(a)) for k, a in zip(*np.nonzero(group.sum((2, 3))), strict=True)]
    cells = {cell: _changes(group[cell], rates) for cell in used}
    solution = solve(cells, clients, levels, budget, local)
    out = np.zeros((clients, levels, 1 + classes))
    out[..., 0] = 1.0
    if new is not None:
        out[:] = new
    for cell, weights in solution.weights.items():
        out[cell] = weights
    return out


def _changes(counts: Floats, rates: tuple[Rate, ...]) -> Candidates:
    """The candidates of a cell: the model's decisions, and each class for everyone."""
    labels, classes = counts.sum(-1), len(counts)
    constant = [labels[:, None] * (np.arange(classes) == c) for c in range(classes)]
    each = np.stack([counts, *constant])  # [1 + C, label, decision]
    utility = np.diagonal(each, axis1=1, axis2=2).sum(-1)
    above = np.stack([rate.above(each) for rate in rates], -1)
    return Candidates(utility, above, np.array([rate.below(labels) for rate in rates]))
