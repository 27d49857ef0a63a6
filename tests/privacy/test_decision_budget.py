"""The budget of a decision: dp-accounting as the oracle, parallel composition, and its end."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from isonomy.config.privacy import PrivacyConfig
from isonomy.privacy.accounting import Event
from isonomy.privacy.decision import DecisionBudget
from isonomy.privacy.ledger import BudgetSpent


def budget(level: str, **changes: Any) -> DecisionBudget:
    options = PrivacyConfig(level=level, epsilon=3.0, clip=1.0)
    return DecisionBudget(options, prepared=(9.0, 9.0), reserved=1e-6, measurements=4, **changes)


def trained(z: float) -> list[Counter[Event]]:
    """Two clients: the second one's examples are in more batches."""
    return [Counter({Event(z, 0.1): 20}), Counter({Event(z, 0.3): 20})]


def oracle(*events: tuple[Any, int]) -> float:
    found = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event, count in events:
        found.compose(event, count)
    return float(found.get_epsilon(0.9e-5))


def measured(z: float) -> dict[str, Any]:
    return {"phase": "counts", "multiplier": z, "round": ""}


def test_at_level_example_splits_do_not_add_up():
    made = budget("example")
    z = made.noise([(trained, 2), (trained, 1)])
    for name in ("a", "b", "c"):
        made.charge_training(name, trained(z), z)
    made.charge_training("c", trained(z), z)  # the same trial again
    for _ in range(4):
        made.charge("validation", measured(made.validation))
    made.charge("test", measured(made.test))
    gauss = dp_accounting.GaussianDpEvent
    sampled = dp_accounting.PoissonSampledDpEvent(0.3, gauss(z))
    found = made.by_split()
    assert found["train"] == pytest.approx(oracle((sampled, 60), (gauss(9.0), 2)), rel=5e-3)
    assert found["validation"] == pytest.approx(oracle((gauss(made.validation), 4)), rel=5e-3)
    assert found["test"] == pytest.approx(oracle((gauss(made.test), 1)), rel=5e-3)
    assert 2.95 < made.epsilon() == max(found.values()) <= 3.0
    with pytest.raises(BudgetSpent, match="no further release"):
        made.charge("test", measured(made.test))
    with pytest.raises(BudgetSpent):
        made.charge_training("d", trained(z), z)
    assert made.epsilon() <= 3.0


def test_at_level_client_everything_adds_up():
    made = budget("client")

    def training(z: float) -> list[Counter[Event]]:
        return [Counter({Event(z / math.sqrt(5)): 1})]

    z = made.noise([(training, 3)])
    for name in ("a", "b", "c"):
        made.charge_training(name, training(z), z)
    for _ in range(4):
        made.charge("validation", measured(made.validation))
    made.charge("test", measured(made.test))
    gauss = dp_accounting.GaussianDpEvent
    every = [(gauss(z), 15), (gauss(9.0), 2), (gauss(made.validation), 4), (gauss(made.test), 1)]
    assert made.epsilon() == pytest.approx(oracle(*every), rel=5e-3)
    assert 2.95 < made.epsilon() <= 3.0
    with pytest.raises(BudgetSpent):
        made.charge("validation", measured(made.validation))


def test_a_training_that_was_not_planned_is_refused():
    made = budget("example")
    z = made.noise([(trained, 1)])
    with pytest.raises(BudgetSpent):
        made.charge_training("a", trained(z / 2), z / 2)
    assert not made.trained
