"""Proofs that no predictions meet some requirements: by hand and by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from isonomy.core.examples import Attribute
from isonomy.metrics import Counts
from isonomy.metrics.possible import conflict, rates_of
from isonomy.metrics.quantities import QUANTITIES, Cells
from isonomy.metrics.requirements import read_requirement, read_target

SEX = Attribute("sex", ("f", "m"))
RACE = Attribute("race", ("a", "b", "c"))


def counts_of(y, groups, client, predicted, attributes, clients, classes=2) -> Counts:
    rows = 1 + sum(len(a.levels) for a in attributes)
    out = np.zeros((clients, rows, classes, classes), np.int64)
    np.add.at(out, (client, 0, y, predicted), 1)
    start = 1
    for column, attribute in enumerate(attributes):
        np.add.at(out, (client, start + groups[:, column], y, predicted), 1)
        start += len(attribute.levels)
    return Counts(out, np.zeros(out.shape[:3]), tuple(attributes))


def drawn(seed: int, size: int, classes: int = 2) -> Counts:
    rng = np.random.default_rng(seed)
    sex, race, client = (rng.integers(n, size=size) for n in (2, 3, 3))
    y = (rng.random(size) * classes * (0.6 + 0.4 * sex)).astype(int)
    predicted = rng.integers(classes, size=size)
    groups = np.stack([sex, race], 1)
    return counts_of(y, groups, client, predicted, (SEX, RACE), 3, classes)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", sorted(n for n, q in QUANTITIES.items() if not q.is_loss))
def test_rates_are_those_of_the_quantities(name: str, classes: int) -> None:
    """The linear functions, at the shares of real predictions, are what `families` counts."""
    counts = drawn(3, 60, classes)
    target = read_target(f"{name}(race)" if QUANTITIES[name].needs_attribute else name, ["race"])
    labels = counts.counts.sum(-1)
    expected = target.families(Cells.of(counts))
    found = rates_of(target, counts)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        values = [
            sum(
                w * counts.counts[at] / labels[at[:3]]
                for at, w in zip(rate.at, rate.weight, strict=True)
            )
            for rate in mine
        ]
        known = theirs.size > 0
        assert values == pytest.approx(list(theirs.hits[known] / theirs.size[known]))


def test_parity_costs_accuracy_by_hand() -> None:
    """Half of the examples in each group, of which 20 % and 60 % have label 1.

    With a gap of at most .1, rates have to move by .3 in all, each example of half the weight: an
    error of .15 at least.
    """
    cells = np.zeros((1, 3, 2, 2), np.int64)
    cells[0, 1, :, 0], cells[0, 2, :, 0] = (80, 20), (40, 60)
    cells[0, 0] = cells[0, 1:].sum(0)
    counts = Counts(cells, np.zeros((1, 3, 2)), (SEX,))
    asked = ["demographic_parity(sex) <= 0.1", "accuracy >= 0.86"]
    found = conflict([read_requirement(text, ["sex"]) for text in asked], counts)
    assert found is not None
    assert found.best == pytest.approx((0.12, 0.85))  # 2 (1 - .86) = .28 of the gap of .4
    assert "demographic_parity(sex) is at least 0.12" in found.text
    asked[1] = "accuracy >= 0.85"
    assert conflict([read_requirement(text, ["sex"]) for text in asked], counts) is None


def test_the_smallest_conflict_is_named() -> None:
    counts = drawn(5, 400)
    asked = [
        "equal_opportunity(race) <= 0.2",
        "demographic_parity(sex) <= 0.01",
        "accuracy >= 0.999",
    ]
    found = conflict([read_requirement(text, ["sex", "race"]) for text in asked], counts)
    assert found is not None
    assert [one.text for one in found.requirements] == asked[1:]


@pytest.mark.parametrize("seed", range(4))
def test_a_conflict_is_one_by_brute_force(seed: int) -> None:
    """All 2 ** 10 predictions of ten examples: the best value is never beaten."""
    rng = np.random.default_rng(seed)
    size = 10
    sex, client = rng.integers(2, size=size), rng.integers(2, size=size)
    sex[:2], client[:4] = (0, 1), (0, 0, 1, 1)
    y = (rng.random(size) < 0.25 + 0.5 * sex).astype(int)
    pairs = [
        ("demographic_parity(sex) <= 0.1", "accuracy >= 0.99"),
        ("worst_client_demographic_parity(sex) <= 0.1", "worst_client_accuracy >= 0.99"),
        ("demographic_parity(sex) <= 0.3", "worst_group_accuracy(sex) >= 0.9"),
    ]
    for asked in pairs:
        wanted = [read_requirement(text, ["sex"]) for text in asked]
        best = -math.inf
        for guess in itertools.product((0, 1), repeat=size):
            cells = Cells.of(counts_of(y, sex[:, None], client, np.array(guess), (SEX,), 2))
            if wanted[0].holds(wanted[0].target.value(cells)):
                best = max(best, wanted[1].target.value(cells))
        any_counts = counts_of(y, sex[:, None], client, y, (SEX,), 2)
        found = conflict(wanted, any_counts)
        if found is not None:
            assert best <= found.best[1] + 1e-9  # shares may be fractions of an example
            assert best < wanted[1].bound


def test_what_predictions_meet_is_no_conflict() -> None:
    """Whatever real predictions have is possible."""
    counts = drawn(9, 300)
    cells, asked = Cells.of(counts), []
    for name, quantity in QUANTITIES.items():
        if quantity.is_loss:
            continue
        target = read_target(f"{name}(race)" if quantity.needs_attribute else name, ["race"])
        sign = "<=" if quantity.better == "lower" else ">="
        asked.append(read_requirement(f"{target.text} {sign} {target.value(cells)!r}", ["race"]))
    assert conflict(asked[:4], counts) is None
    assert conflict(asked[4:7], counts) is None
