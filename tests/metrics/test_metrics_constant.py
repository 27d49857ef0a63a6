"""The prediction of one class for everyone, from counts that were made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from isonomy.core.examples import Attribute
from isonomy.metrics.constant import constant_metrics, label_counts, most_frequent, only_class
from isonomy.metrics.counts import Counts

# two clients; rows: everyone, female, male; [label][predicted]
CELLS = [
    [[[30, 10], [5, 15]], [[10, 5], [5, 5]], [[20, 5], [0, 10]]],
    [[[4, 0], [1, 5]], [[4, 0], [0, 0]], [[0, 0], [1, 5]]],
]


def counts() -> Counts:
    at = np.array(CELLS)
    return Counts(at, np.zeros(at.shape[:3]), (Attribute("sex", ("female", "male")),))


def test_its_accuracy_is_the_share_of_its_class_and_its_gaps_are_zero():
    assert label_counts(counts()) == [44, 26]
    found = constant_metrics(counts(), most_frequent(label_counts(counts())))
    assert found["accuracy"] == pytest.approx(44 / 70)
    assert found["client.accuracy.mean"] == pytest.approx((40 / 60 + 4 / 10) / 2)
    assert found["group.sex.accuracy.female"] == pytest.approx(19 / 29)
    gaps = [v for name, v in found.items() if name.startswith("group.sex.demographic_parity")]
    assert gaps == [0.0, 0.0]
    assert found["group.sex.equal_opportunity"] == 0.0
    assert not any("loss" in name for name in found)
    assert constant_metrics(counts(), 1)["accuracy"] == pytest.approx(26 / 70)


def test_one_class_for_everyone_is_recognised():
    assert only_class(counts(), ("no", "yes")) is None
    fixed = np.zeros_like(counts().counts)
    fixed[..., 1] = counts().counts.sum(-1)
    alone = Counts(fixed, counts().loss, counts().attributes)
    assert only_class(alone, ("no", "yes")) == "yes"
    assert only_class(alone) == "class 1"
    same = np.array(fixed)
    same[:, :, 0] = 0  # all examples are of the class that is predicted
    assert only_class(Counts(same, counts().loss, counts().attributes)) is None
