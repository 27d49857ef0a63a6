"""Limits of quantities from noisy counts: a limit identity, and simulations of their coverage."""

from __future__ import annotations

import numpy as np
import pytest

from isonomy.core.examples import Attribute
from isonomy.metrics import Counts
from isonomy.metrics.counts import Noise
from isonomy.metrics.requirements import LEVEL, Cells, read_requirement, read_target
from isonomy.studies.selection import Candidate, Wish, constant_candidate, judge, perfect_candidate

SEX = Attribute("sex", ("f", "m"))
RATES = {"f": (0.3, 0.55, 0.15), "m": (0.5, 0.7, 0.25)}  # share of label 1; positive given 1 and 0


def population(attribute: Attribute) -> np.ndarray:
    """Probabilities [groups, label, prediction] of a client's examples; groups of equal size."""
    out = np.zeros((len(attribute.levels), 2, 2))
    for g, level in enumerate(attribute.levels):
        one, hit, wrong = RATES[level]
        out[g] = [[(1 - one) * (1 - wrong), (1 - one) * wrong], [one * (1 - hit), one * hit]]
    return out / len(attribute.levels)


TRUE = population(SEX)


def truth(name: str) -> float:
    large = np.rint(TRUE * 10**9).astype(np.int64)
    cells = np.concatenate([large.sum(0, keepdims=True), large])[None]
    made = Counts(cells, np.zeros(cells.shape[:3]), (SEX,))
    return read_target(name, ["sex"]).value(Cells.of(made))


def drawn(random: np.random.Generator, size: int, noise: float, clients: int = 1) -> Counts:
    """Noisy counts of a sample, with the sum of the groups as everyone."""
    groups = random.multinomial(size, TRUE.ravel(), clients).reshape(clients, 2, 2, 2)
    noisy = groups + noise * random.standard_normal(groups.shape)
    cells = np.concatenate([noisy.sum(1, keepdims=True), noisy], 1)
    variance = np.full(cells.shape, noise**2)
    variance[:, 0] *= 2
    return Counts(cells, np.zeros(cells.shape[:3]), (SEX,), noise=Noise(variance))


NAMES = [
    "accuracy",
    "balanced_accuracy",
    "demographic_parity",
    "equalised_odds",
    "worst_group_accuracy",
    "accuracy_gap",
]


@pytest.mark.parametrize("name", [*NAMES, "worst_client_accuracy"])
def test_without_noise_they_are_the_exact_limits_at_half_of_alpha(name):
    made = drawn(np.random.default_rng(0), 900, 0.0, clients=3)
    exact = Counts(np.rint(made.counts), made.loss, (SEX,))
    target = read_target(name, ["sex"])
    tiny = Counts(made.counts, made.loss, (SEX,), noise=Noise(np.full(made.counts.shape, 1e-18)))
    found, expected = target.limits(Cells.of(tiny), 0.02), target.limits(Cells.of(exact), 0.01)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert target.value(Cells.of(tiny)) == pytest.approx(target.value(Cells.of(exact)))


@pytest.mark.parametrize("noise", [3.0, 25.0])
@pytest.mark.parametrize("name", NAMES)
def test_intervals_cover_the_true_value(name, noise):
    random, true, target = np.random.default_rng(1), truth(name), read_target(name, ["sex"])
    draws, alpha = 400, 0.05
    ends = np.array([
        target.limits(Cells.of(drawn(random, 800, noise)), alpha) for _ in range(draws)
    ])  # fmt: skip
    for missed in ((ends[:, 0] > true).mean(), (ends[:, 1] < true).mean()):
        assert missed <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / draws)
    if noise < 20:
        assert (ends[:, 1] - ends[:, 0]).mean() < 0.5  # and they say something
    naive = [
        target.limits(Cells.of(_without(drawn(random, 800, noise))), alpha) for _ in range(draws)
    ]
    if noise > 20 and name == "accuracy":  # the noise is what makes them wide: without it they miss
        assert np.mean([high < true or low > true for low, high in naive]) > 0.15


def _without(counts: Counts) -> Counts:
    return Counts(np.rint(np.maximum(counts.counts, 0)), counts.loss, counts.attributes)


def test_met_is_wrong_at_most_at_the_stated_rate():
    """Bounds at the true values: each `met` is wrong, and has a probability of 2.5 % at most."""
    random, draws = np.random.default_rng(2), 600
    texts = [f"demographic_parity <= {truth('demographic_parity') - 1e-9}"]
    texts.append(f"accuracy >= {truth('accuracy') + 1e-9}")
    required = [read_requirement(text, ["sex"]) for text in texts]
    wrong, alpha = 0, (1 - LEVEL) / (2 * len(required))  # as in `answers`
    for _ in range(draws):
        cells = Cells.of(drawn(random, 1500, 8.0))
        parity, accuracy = (one.target.limits(cells, alpha) for one in required)
        wrong += required[0].holds(parity[1]) or required[1].holds(accuracy[0])
    assert wrong / draws <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / draws)


def test_margins_grow_with_the_noise():
    random = np.random.default_rng(3)
    wish = Wish(
        (read_requirement("demographic_parity <= 0.9", ["sex"]),),
        read_target("accuracy", ["sex"]),
        "higher",
    )
    margins, chances = [], []
    for noise in (1.0, 20.0, 60.0):
        one = Candidate("a", {}, "a", drawn(random, 2000, noise))
        found = judge(wish, one, 1.0)
        margins.append(found.margins[0])
        chances.append(found.chance)
    assert margins == sorted(margins)
    assert margins[2] > 2 * margins[0]
    calm = Counts(one.counts.counts, one.counts.loss, (SEX,),
                  noise=Noise(one.counts.noise.variance, later=0.01))  # fmt: skip
    assert judge(wish, Candidate("a", {}, "a", calm), 1.0).margins[0] < margins[2]


def test_constant_and_perfect_predictions_keep_the_noise():
    made = drawn(np.random.default_rng(4), 2000, 5.0)
    for candidate in (constant_candidate(made), perfect_candidate(made)):
        assert candidate.counts.noise is not None
        total = candidate.counts.noise.variance.sum((-1, -2))
        np.testing.assert_allclose(total, made.noise.variance.sum((-1, -2)))
        target = read_target("accuracy", ["sex"])
        low, high = target.limits(Cells.of(candidate.counts), 0.05)
        assert low <= target.value(Cells.of(candidate.counts)) <= high
