"""Noisy counts: sensitivity, noise, and a guard against questions that no ledger holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy import api
from isonomy.config.schema import parse
from isonomy.data.datasets import load
from isonomy.privacy.evaluation import Counting, capped
from isonomy.privacy.guard import NotCounted
from isonomy.privacy.ledger import Ledger
from isonomy.privacy.noise import Key
from isonomy.report.page import render
from isonomy.runs.finished import reopen

LEVELS = (2, 3)
EXAMPLES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)),
    min_size=1,
    max_size=12,
)


def counts(clients: list[list[tuple[int, int, int, int]]]) -> np.ndarray:
    """Counts of examples (first group, second group, label, prediction)."""
    out = np.zeros((len(clients), 1 + sum(LEVELS), 2, 2), np.int64)
    for k, examples in enumerate(clients):
        for a, b, label, predicted in examples:
            for row in (0, 1 + a, 3 + b):
                out[k, row, label, predicted] += 1
    return out


@given(clients=st.lists(EXAMPLES, min_size=1, max_size=4), at=st.integers(0, 11))
@settings(max_examples=60, deadline=None)
def test_one_example_or_client_changes_counts_by_the_stated_amount(clients, at):
    examples = Counting("example", LEVELS, 1.0)
    less = [clients[0][: at % len(clients[0])] + clients[0][at % len(clients[0]) + 1 :]]
    change = examples.released(counts(clients)) - examples.released(counts(less + clients[1:]))
    assert np.linalg.norm(change) <= examples.sensitivity + 1e-9
    whole = Counting("client", LEVELS, 1.0, counted=12)
    change = whole.released(counts(clients)) - whole.released(counts([[], *clients[1:]]))
    assert np.linalg.norm(change) <= whole.sensitivity + 1e-9


@pytest.mark.parametrize("level", ["client", "example"])
def test_noise_has_the_stated_variance_in_every_row(level):
    counting = Counting(level, LEVELS, 2.0, counted=10)
    exact = counts([[(0, 1, 1, 1)] * 5] * 2)
    drawn = np.stack([
        counting.noised(exact, Key.of_seed(0), "test", i).counts[0] for i in range(1500)
    ])  # fmt: skip
    found = counting.noised(exact, Key.of_seed(0), "test", 0)
    np.testing.assert_allclose(drawn.var(0), found.variance[0], rtol=0.2)
    alone = 2.0 * math.sqrt(2) * (10 if level == "client" else 1)
    assert found.variance[0, 1, 0, 0] == pytest.approx(alone**2)
    assert found.variance[0, 0, 0, 0] == pytest.approx(5 / 4 * alone**2)
    true = exact.sum(0) if level == "client" else exact[0]
    error = 4 * np.sqrt(found.variance[0] / 1500)
    assert (np.abs(drawn.mean(0) - true) <= error + 1e-9).all()


def test_few_examples_of_each_client_are_used():
    data = load("synthetic", clients=5)
    few = capped(data, 20, 0)
    assert int(few.sizes("test").max()) == 20
    assert few.sizes("train").tolist() == data.sizes("train").tolist()
    k = int(data.sizes("test").argmax())
    old, new = data.x[data.rows(k, "test")], few.x[few.rows(k, "test")]
    assert all(bool((old == row).all(1).any()) for row in new)
    assert not torch.equal(old[:20], new)  # drawn at random, not the first ones
    assert torch.equal(data.x[data.rows(k)], few.x[few.rows(k)])


BASE: dict[str, Any] = {
    "data": {"name": "synthetic", "clients": 8},
    "model": {"name": "logistic"},
    "rounds": 4,
    "local": {"steps": 3, "batch": 32},
    "evaluate": {"every": 2},
    "checkpoint": {"every": 2},
    "privacy": {"level": "client", "epsilon": 8.0, "clip": 0.5, "evaluate": "every", "seed": 1},
}
EXAMPLE = {"level": "example", "clip": 1.0, "batches": "passes"}


def config(**privacy: Any) -> Any:
    return parse({**BASE, "privacy": BASE["privacy"] | privacy})


def test_metrics_of_clients_are_left_out_at_level_client():
    record = api.run(config())
    ledger = record.facts["privacy"]
    assert [e["round"] for e in ledger["releases"] if e["phase"] == "evaluation:test"] == [2, 4]
    assert ledger["epsilon"] <= 8.0
    assert "accuracy" in record.metrics
    assert not any(name.startswith("client.") or "loss" in name for name in record.metrics)
    assert not record.clients
    assert any("metrics of single clients" in text for text in ledger["left_out"])
    assert "evaluation:test" in render([record])


def test_metrics_of_clients_have_noise_at_level_example():
    made = {**BASE["privacy"], **EXAMPLE}
    record = api.run(config(**made))
    exact = api.run(config(**{**made, "allow": ["evaluation"]}))
    noisy = np.array(record.clients["accuracy"], float)
    true = np.array(exact.clients["accuracy"], float)
    assert len(noisy) == len(true) == 8 * 2
    assert np.abs(noisy - true).max() > 0
    sizes = np.array(exact.clients["size"], float)
    assert np.abs(noisy - true)[sizes >= 50].max() < 0.2
    assert np.isnan(np.array(record.clients["loss"], float)).all()
    assert record.facts["privacy"]["by_split"]["test"] <= 8.0


def test_metrics_may_be_left_out():
    record = api.run(config(evaluate="never"))
    assert record.metrics == {} or "accuracy" not in record.metrics
    assert any("all metrics" in text for text in record.facts["privacy"]["left_out"])


@pytest.mark.parametrize("level", [{}, EXAMPLE])
def test_an_evaluation_that_is_not_counted_is_caught(monkeypatch, level):
    from isonomy.privacy.example_ledger import ExampleLedger

    for kind in (Ledger, ExampleLedger):
        monkeypatch.setattr(kind, "charge_everyone", lambda *_: None)
    with pytest.raises(NotCounted, match="measure:test"):
        api.run(config(**level))


def test_a_phase_that_is_not_counted_is_caught(monkeypatch):
    monkeypatch.setattr(Ledger, "charge", lambda *_, **__: None)
    with pytest.raises(NotCounted, match="phase 'local'"):
        api.run(config(evaluate="never"))


def test_clients_of_a_finished_private_run_are_not_asked_again(tmp_path):
    api.run(config(evaluate="never"), tmp_path / "run")
    with pytest.raises(NotCounted, match="finished private run"):
        reopen(tmp_path / "run").counts("test")
