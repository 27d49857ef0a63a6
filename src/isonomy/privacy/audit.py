"""An empirical lower bound of epsilon from guesses about canaries in one training run.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023. Each of m
canaries is in the training with probability 1/2, independently. After training, someone who sees
what was released guesses for some of them whether they were. If the training is (epsilon, delta)-
differentially private, the number of right guesses among r is at most (in the sense of
probabilities) binomial with success e^epsilon / (1 + e^epsilon), up to a term in delta. More right
guesses than that contradict the claim (theorem 5.2 there).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The probability of so many right guesses or more under (epsilon, delta)-DP, at most."""
    if right <= 0:
        return 1.0
    success = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, success))
    below = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, success))
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, beta + 2 * canaries * delta * alpha)


def lower_bound(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that the guesses contradict with this confidence; 0 if none.

    >>> round(lower_bound(1000, 1000, 1000, 0.0), 2)
    5.81
    >>> lower_bound(100, 100, 50, 0.0)
    0.0
    """

    def contradicted(epsilon: float) -> bool:
        return p_value(canaries, guesses, right, epsilon, delta) < 1 - confidence

    if not contradicted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while contradicted(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if contradicted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Guessed:
    """The best bound over a few numbers of guesses, corrected for choosing among them."""

    canaries: int
    guesses: int
    right: int
    bound: float
    most: float  # the bound if all guesses were right: what this audit could find at most


SHARES = (0.1, 0.25, 0.5, 1.0)  # of the canaries, those with the most extreme scores


def guess(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    delta: float,
    confidence: float = 0.95,
) -> Guessed:
    """Guess "included" for the largest scores and "not" for the smallest, as many of each.

    The confidence holds for the best of the bounds (Bonferroni's correction).
    """
    count, found = len(scores), []
    each = 1 - (1 - confidence) / len(SHARES)
    order = np.argsort(scores, kind="stable")
    for share in SHARES:
        half = max(1, int(share * count / 2))
        right = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
        bound = lower_bound(count, 2 * half, right, delta, each)
        most = lower_bound(count, 2 * half, 2 * half, delta, each)
        found.append(Guessed(count, 2 * half, right, bound, most))
    best = max(found, key=lambda g: g.bound)
    return Guessed(count, best.guesses, best.right, best.bound, max(g.most for g in found))
