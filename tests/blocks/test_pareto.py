"""Hypervolumes and contributions inside a phase, against a library and by hand; Tchebycheff."""

from __future__ import annotations

import moocore
import numpy as np
import pytest
import torch
from torch.func import vmap

from isonomy.blocks.pareto import contributions, hypervolume2, hypervolume_drawn, tchebycheff

RNG = np.random.default_rng(5)


def by_library(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """HV(all) - HV(all but one), by moocore."""
    whole = moocore.hypervolume(points, ref=reference)
    rest = [np.delete(points, i, 0) for i in range(len(points))]
    return np.array([whole - moocore.hypervolume(r, ref=reference) for r in rest])


def test_contributions_by_hand() -> None:
    """Points (1, 3), (2, 2), (4, 1), reference (5, 5); the fourth, (3, 4), is dominated.

    By strips from left to right: 1 x 2 + 2 x 3 + 1 x 4 = 12. Without (1, 3) the strip [1, 2] is
    lost: 2. Without (2, 2) it is 1 x 2 + 2 x 2 + 1 x 4 = 10: 2. Without (4, 1) the last strip is
    3 high: 1.
    """
    points = torch.tensor([[1.0, 3.0], [2.0, 2.0], [4.0, 1.0], [3.0, 4.0]])
    reference = torch.tensor([5.0, 5.0])
    assert float(hypervolume2(points, reference)) == 12
    assert contributions(points, reference).tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize("m", [2, 3, 4])
def test_contributions_agree_with_a_library(m: int) -> None:
    for n in (1, 2, 5, 8):
        points = RNG.uniform(0, 1.2, (n, m))  # some beyond the reference
        reference = np.ones(m)
        got = contributions(torch.tensor(points), torch.tensor(reference))
        inside = np.where((points < 1).all(1)[:, None], points, 1.0)
        assert got.numpy() == pytest.approx(by_library(inside, reference), abs=1e-12)


def test_volume_agrees_with_a_library_also_stacked() -> None:
    stacked = RNG.uniform(0, 1.3, (6, 40, 2))
    expected = [moocore.hypervolume(at, ref=[1, 1]) for at in stacked]
    got = hypervolume2(torch.tensor(stacked), torch.ones(2, dtype=torch.float64))
    assert got.numpy() == pytest.approx(expected, abs=1e-12)
    lanes = vmap(lambda p: contributions(p, torch.ones(2)))(torch.tensor(stacked).float())
    assert lanes[3].tolist() == pytest.approx(by_library(stacked[3], np.ones(2)), abs=1e-5)


def test_equal_points_add_nothing_and_the_worst_nothing() -> None:
    points = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.2, 1.0], [0.1, 2.0]])
    assert contributions(points, torch.ones(2)).tolist() == [0, 0, 0, 0]


def test_too_many_points_of_three_objectives() -> None:
    with pytest.raises(ValueError, match="at most 12"):
        contributions(torch.rand(13, 3), torch.ones(3))


def test_drawn_volume() -> None:
    draws = torch.tensor(RNG.uniform(size=(20_000, 3)), dtype=torch.float32)
    points = torch.tensor(RNG.uniform(size=(6, 3)), dtype=torch.float32)
    expected = moocore.hypervolume(points.numpy().astype(float), ref=[1, 1, 1])
    assert float(hypervolume_drawn(points, draws)) == pytest.approx(expected, abs=0.015)


def test_tchebycheff_by_hand() -> None:
    """Losses (.3, .1), preference (.75, .25): ratios .4 and .4. With (.5, .5): .6 and .2."""
    losses = torch.tensor([0.3, 0.1])
    assert float(tchebycheff(losses, torch.tensor([0.75, 0.25]), "max")) == pytest.approx(0.4)
    even = torch.tensor([0.5, 0.5])
    assert float(tchebycheff(losses, even, "max")) == pytest.approx(0.6)
    smooth = float(tchebycheff(losses, even))
    assert smooth == pytest.approx(np.log(np.exp(0.6) + np.exp(0.2)))
    assert 0.6 <= smooth <= 0.6 + np.log(2)
    assert torch.isfinite(tchebycheff(losses, torch.tensor([0.0, 1.0])))


@pytest.mark.parametrize("share", [0.1, 0.35, 0.5, 0.8])
def test_loss_vector_lies_along_the_preference(share: float) -> None:
    """Lemma 1 on losses t^2 and (1 - t)^2, whose front is sqrt(l1) + sqrt(l2) = 1.

    The minimum of max(l1 / lam, l2 / (1 - lam)) is where both are equal: t / (1 - t) =
    sqrt(lam / (1 - lam)).
    """
    t = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    losses = torch.stack([t.square(), (1 - t).square()], -1)
    lam = torch.tensor([share, 1 - share], dtype=torch.float64)
    best = losses[tchebycheff(losses, lam, "max").argmin()]
    assert best[0] / best[1] == pytest.approx(share / (1 - share), rel=1e-3)
    root = np.sqrt(share / (1 - share))
    assert float(best[0].sqrt()) == pytest.approx(root / (1 + root), abs=1e-4)
    # another loss, the one in which a large preference asks for a small loss, does not align
    other = losses[(losses * lam).amax(-1).argmin()]
    assert abs(share - 0.5) < 0.01 or abs(other[0] / other[1] - share / (1 - share)) > 0.3
