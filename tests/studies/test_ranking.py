"""Ranks of methods over data sets, against the worked example of Demšar (2006)."""

from __future__ import annotations

import pytest

from isonomy.studies.ranking import rank

# Demšar (2006), Table 6: AUC of C4.5 with different pruning on 14 data sets.
COLUMNS = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
TABLE = (
    (0.763, 0.768, 0.771, 0.798),
    (0.599, 0.591, 0.590, 0.569),
    (0.954, 0.971, 0.968, 0.967),
    (0.628, 0.661, 0.654, 0.657),
    (0.882, 0.888, 0.886, 0.898),
    (0.936, 0.931, 0.916, 0.931),
    (0.661, 0.668, 0.609, 0.685),
    (0.583, 0.583, 0.563, 0.625),
    (0.775, 0.838, 0.866, 0.875),
    (1.000, 1.000, 1.000, 1.000),
    (0.940, 0.962, 0.965, 0.962),
    (0.619, 0.666, 0.614, 0.669),
    (0.972, 0.981, 0.9751, 0.975),
    (0.957, 0.978, 0.946, 0.970),
)


def values():
    return {name: {str(i): row[j] for i, row in enumerate(TABLE)} for j, name in enumerate(COLUMNS)}


def test_the_worked_example():
    found = rank(values(), higher=True)
    assert found is not None
    assert found.ranks["C4.5"] == pytest.approx(3.143, abs=1e-3)
    assert found.ranks["C4.5+m"] == pytest.approx(2.000, abs=1e-3)
    assert found.ranks["C4.5+cf"] == pytest.approx(2.893, abs=1e-3)
    assert found.ranks["C4.5+m+cf"] == pytest.approx(1.964, abs=1e-3)
    assert found.critical == pytest.approx(1.25, abs=5e-3)  # 2.569 sqrt(4 * 5 / (6 * 14))
    assert 0.01 < found.p < 0.05
    assert next(iter(found.ranks)) == "C4.5+m+cf"
    assert len(found.near("C4.5+m+cf")) == 4


def test_the_direction_and_missing_values():
    lower = rank(values(), higher=False)
    assert lower is not None
    assert lower.ranks["C4.5"] == pytest.approx(5 - 3.143, abs=1e-3)
    some = values()
    del some["C4.5"]["3"]
    found = rank(some, higher=True)
    assert found is not None
    assert "C4.5" not in found.ranks
    assert rank({"a": {"x": 1.0}}, higher=True) is None
    assert rank({}, higher=True) is None
