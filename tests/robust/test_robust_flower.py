"""Flower's own implementations as oracles, on random inputs; skipped where flwr is absent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isonomy.robust.combiners import Bulyan, Krum, Median, MultiKrum, TrimmedMean

aggregate = pytest.importorskip("flwr.server.strategy.aggregate")

CASES = [(seed, n, f) for seed, (n, f) in enumerate([(5, 1), (10, 2), (11, 2), (15, 3), (30, 5)])]


def draws(seed: int, n: int):
    """Models of two layers as Flower has them, the same as rows, and sizes."""
    rng = np.random.default_rng(seed)
    layers = [[rng.normal(size=(4, 3)), rng.normal(size=3)] for _ in range(n)]
    for wild in range(n // 5):
        layers[wild] = [10 * layer + 1 for layer in layers[wild]]
    rows = torch.tensor(np.stack([np.concatenate([a.ravel(), b]) for a, b in layers]))
    sizes = rng.integers(1, 50, size=n)
    return list(zip(layers, sizes.tolist(), strict=True)), rows, torch.tensor(sizes).double()


def flat(layers) -> list[float]:
    return np.concatenate([np.asarray(layer).ravel() for layer in layers]).tolist()


@pytest.mark.parametrize(("seed", "n", "f"), CASES)
def test_equal_to_flowers(seed, n, f):
    results, rows, sizes = draws(seed, n)
    close = {"rel": 1e-9, "abs": 1e-9}

    def same(rule, theirs):
        assert rule.combine(rows, sizes).tolist() == pytest.approx(flat(theirs), **close)

    same(Median(), aggregate.aggregate_median(results))
    same(TrimmedMean(expected=f / n + 1e-6), aggregate.aggregate_trimmed_avg(results, f / n + 1e-6))
    same(Krum(expected=f), aggregate.aggregate_krum(results, f, 0))
    for keep in (1, 3, n - f):
        theirs = aggregate.aggregate_krum(results, f, keep)
        same(MultiKrum(expected=f, keep=keep), theirs)
    if n >= 4 * f + 3:
        theirs = aggregate.aggregate_bulyan(list(results), f, aggregate.aggregate_krum, to_keep=0)
        same(Bulyan(expected=f), theirs)


def test_some_cases_reach_bulyan():
    assert sum(n >= 4 * f + 3 for _, n, f in CASES) >= 3
