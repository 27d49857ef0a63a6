"""FedFACT, its post-processing form, reconstructed.

L. Zhang, Z. Han, X. Feng, J. Zhang, Y. Li, C. Chen: "FedFACT: A Provable Framework for Controllable
Group-Fairness Calibration in Federated Learning", NeurIPS 2025.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch

from isonomy.core.examples import Attribute
from isonomy.core.options import option
from isonomy.metrics.counts import Floats
from isonomy.metrics.scores import Scores
from isonomy.postprocess.calibration import centres
from isonomy.postprocess.method import Method
from isonomy.postprocess.rates import rates_of
from isonomy.postprocess.rule import About, Gains

FIRST = 20.0  # sharpness that the search begins with; it is multiplied by 5 up to the option's
STEPS = 60  # of the search, for each sharpness


@dataclass(frozen=True, eq=False)
class Answers:
    """What clients answer to a rule of gains.

    `value` [clients] sums log-sum-exp(sharpness * gains) / sharpness over a client's examples of
    known group, and `counts[k, a, y, c]` the model's probability of label y times the chance of
    decision c.
    """

    value: Floats
    counts: Floats


Ask = Callable[[Floats, float], Answers]
"""Ask the clients about gains [clients, levels, classes, classes] and a sharpness."""


@dataclass(frozen=True)
class FedFACT(Method):
    """The class of largest expected gain, with gains that the budgets shift (reconstructed).

    Known from the abstract: the optimal rule under local and global constraints on several
    classes, found by a bi-level search after training. Reconstructed here: with eta the model's
    probabilities, the rule of client c and group a is

        argmax_k sum_y eta_y M_yk,    M = I - (global multipliers + multipliers of client c)

    where a multiplier of a rate shifts the gain of its class by itself over the number of examples
    that the rate is taken over, and the multipliers minimise the dual

        sum_i max_k sum_y eta_iy M_yk / n + budget |lambda|_1 + local budget sum_c |mu_c|_1

    The maximum is replaced by log-sum-exp with a `sharpness`, and the class is drawn from the
    softmax, which is random near the boundary only; this rule meets the budgets in expectation
    where the smoothed dual has its minimum. With two classes and no calibration it agrees with
    LoGoFair. Rates given a label use the model's probability of the label.
    """

    name: ClassVar[str] = "fedfact"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2025 (reconstructed)"
    needs: ClassVar = "answers"
    several_classes: ClassVar[bool] = True
    reveals: ClassVar[str] = (
        "with two classes each client's number of examples by group, label and score (1000 bins), "
        "once; with more, sums of its predicted probabilities by group and class, in each of up "
        "to some hundred exchanges after training"
    )

    local_budget: float | None = option(
        None, "largest gap between groups inside each client (unset: any)", ge=0, le=1
    )
    sharpness: float = option(
        500.0, "decisions within about 1 / sharpness of the boundary are drawn at random", ge=1
    )

    def fit(self, scores: Scores, seed: int = 0) -> Gains:
        """The rule from the clients' histograms of scores."""
        rows = scores.rows(self.about(scores.attributes, 2, seed).attribute)
        group = scores.counts[:, rows].sum(2).astype(np.float64)  # [clients, levels, bins]
        score = centres(scores.bins)
        eta = np.stack([1 - score, score])  # [label, bin]

        def ask(gain: Floats, sharpness: float) -> Answers:
            each = np.einsum("yb,kayc->kacb", eta, gain) * sharpness
            top = np.logaddexp(each[:, :, 0], each[:, :, 1])
            chance = np.exp(each - top[:, :, None])
            return Answers(
                value=(group * top).sum((1, 2)) / sharpness,
                counts=np.einsum("kab,yb,kacb->kayc", group, eta, chance),
            )

        return self.fit_answers(ask, len(scores), scores.attributes, 2, seed)

    def fit_answers(
        self,
        ask: Ask,
        clients: int,
        attributes: tuple[Attribute, ...],
        classes: int,
        seed: int = 0,
    ) -> Gains:
        """The rule for any number of classes, from the clients' answers."""
        about = self.about(attributes, classes, seed)
        search = _Search(about, ask, clients)
        sharpness = min(FIRST, self.sharpness)
        at = np.zeros(search.size)
        while search.size:
            at = search.minimised(at, sharpness)
            if sharpness >= self.sharpness:
                break
            sharpness = min(5 * sharpness, self.sharpness)
        gain = np.concatenate([search.gains(at), search.gains(at, local=False)[:1]])
        return Gains(
            about,
            {
                "gain": torch.from_numpy(gain),
                "sharpness": torch.full((len(gain),), self.sharpness, dtype=torch.float64),
            },
        )


class _Search:
    """The smoothed dual as a function of its multipliers.

    There is one multiplier for every rate and pair of groups, of all clients (first) and, with a
    local budget, of each client. A rate without examples in one of the groups has none.
    """

    def __init__(self, about: About, ask: Ask, clients: int) -> None:
        self.ask, self.classes, self.levels = ask, about.classes, len(about.levels)
        self.rates = rates_of(about.notion, about.classes)
        self.clients = clients
        first = ask(np.broadcast_to(np.eye(self.classes), self._shape), 1.0).counts
        labels = first.sum(-1)  # [clients, levels, label]
        self.total = max(float(labels.sum()), 1.0)
        each = np.stack([rate.below(labels) for rate in self.rates], -1)
        self.below = np.concatenate([each.sum(0, keepdims=True), each])  # [1 + clients, levels, r]
        self.places: list[tuple[int, int, int, int]] = []  # row of `below`, rate, two groups
        self.width: list[float] = []
        for row, width in [
            (0, about.budget),
            *((k + 1, about.local_budget) for k in range(clients)),
        ]:
            if width is None or width >= 1:
                continue
            for r in range(len(self.rates)):
                for a, b in combinations(range(self.levels), 2):
                    if self.below[row, a, r] > 0 and self.below[row, b, r] > 0:
                        self.places.append((row, r, a, b))
                        self.width.append(width)
        self.size = len(self.places)

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return (self.clients, self.levels, self.classes, self.classes)

    def gains(self, multipliers: Floats, *, local: bool = True) -> Floats:
        """The gains M [clients, levels, classes, classes]; those without local multipliers."""
        gain = np.broadcast_to(np.eye(self.classes), self._shape).copy()
        for (row, r, a, b), value in zip(self.places, multipliers, strict=True):
            if row and not local:
                continue
            who = slice(None) if row == 0 else slice(row - 1, row)
            rate = self.rates[r]
            for level, sign in ((a, 1.0), (b, -1.0)):
                shift = sign * value * self.total / self.below[row, level, r]
                gain[who, level, :, rate.positive] -= shift * rate.labels(self.classes)
        return gain

    def value(self, both: Floats, sharpness: float) -> tuple[float, Floats]:
        """The dual at multipliers p - q for both = (p, q) >= 0, and its gradient."""
        multipliers = both[: self.size] - both[self.size :]
        found = self.ask(self.gains(multipliers), sharpness)
        above = np.stack([rate.above(found.counts) for rate in self.rates], -1)
        above = np.concatenate([above.sum(0, keepdims=True), above])
        width = np.array(self.width)
        gap = np.array(
            [
                above[row, a, r] / self.below[row, a, r] - above[row, b, r] / self.below[row, b, r]
                for row, r, a, b in self.places
            ]
        )
        value = float(found.value.sum()) / self.total + float(
            width @ (both[: self.size] + both[self.size :])
        )
        return value, np.concatenate([width - gap, width + gap])

    def minimised(self, start: Floats, sharpness: float) -> Floats:
        """The multipliers of the least dual, from a start."""
        from scipy.optimize import minimize  # slow to import

        both = np.concatenate([np.maximum(start, 0), np.maximum(-start, 0)])
        found = minimize(
            self.value,
            both,
            args=(sharpness,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * len(both),
            options={"maxiter": STEPS, "ftol": 1e-12, "gtol": 1e-5},
        )
        return np.asarray(found.x[: self.size] - found.x[self.size :], dtype=np.float64)
