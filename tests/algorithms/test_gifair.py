"""GIFAIR-FL: weights by hand, for groups of examples and for clients."""

from __future__ import annotations

import numpy as np
import pytest

from algorithms.group_by_hand import (
    ENGINES,
    SIZES,
    START,
    by_size,
    losses,
    parts,
    play,
    step,
    sums,
    weight_of,
)
from isonomy.algorithms import make
from isonomy.algorithms.group_fair.gifair import GIFAIR
from isonomy.contract.checks import silent
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)


@both
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_by_hand(kind: type[Engine], groups: int) -> None:
    """lambda is 0.8 min share / (groups - 1); an example of z has weight 1 + lambda r_z n / m_z."""
    w = START
    for _ in range(2):
        count, loss, _ = sums(w, groups)
        m, mean = count.sum(0), loss.sum(0) / count.sum(0)
        lam = 0.8 * (m / m.sum()).min() / (groups - 1)
        r = np.array([np.sign(mean[z] - mean).sum() for z in range(groups)])
        v = 1 + lam * r * m.sum() / m
        assert v.min() > 0
        w = by_size([step(w, k, v[parts(groups)[k]]) for k in range(3)])
    server, _ = play(GIFAIR(strength=0.8), kind, rounds=2, groups=groups)
    assert weight_of(server) == pytest.approx(w, abs=1e-6)


@both
def test_clients_by_hand(kind: type[Engine]) -> None:
    """Client k has weight n_k / n + lambda r_k, with lambda half of (smallest share) / 2."""
    mean = np.array([losses(START, k).mean() for k in range(3)])
    p = SIZES / SIZES.sum()
    r = np.array([np.sign(m - mean).sum() for m in mean])
    say = p + 0.5 * p.min() / 2 * r
    assert say.sum() == pytest.approx(1)
    server, _ = play(GIFAIR(groups="clients"), kind)
    assert weight_of(server) == pytest.approx(
        float(say @ [step(START, k) for k in range(3)]), abs=1e-6
    )


def test_the_weights_follow_the_gradient_of_the_penalty() -> None:
    """The step is that on L + lambda |L_0 - L_1|, by finite differences."""
    lam = 0.5 * 0.3  # three of ten examples are of group 1

    def objective(w: float) -> float:
        count, loss, _ = sums(w)
        mean = loss.sum(0) / count.sum(0)
        return float(loss.sum() / count.sum() + lam * abs(mean[0] - mean[1]))

    slope = (objective(START + 1e-5) - objective(START - 1e-5)) / 2e-5
    server, _ = play(GIFAIR(strength=0.5), Loop)
    assert (START - weight_of(server)) / 0.1 == pytest.approx(slope, abs=1e-5)


def test_no_weight_is_negative_at_full_strength() -> None:
    import torch

    loss, count = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 5.0, 4.0])
    factor = GIFAIR(strength=1.0).factors(loss.double(), count.double())
    assert factor.min() >= 0
    share = count.double() / 10
    assert float((factor * share).sum()) == pytest.approx(1.0)  # the signs of pairs cancel
    gone = GIFAIR(strength=1.0).factors(loss.double(), torch.tensor([0.0, 5.0, 4.0]).double())
    assert gone[0] == 1.0  # a group without examples


def test_silent_and_single() -> None:
    quiet = play(GIFAIR(), Loop, wrap=(silent({0: {0}}),))[0]
    assert weight_of(quiet) == weight_of(play(GIFAIR(), Loop, ids=(1, 2))[0])
    for groups in ("attribute", "clients"):
        one, _ = play(GIFAIR(groups=groups, strength=1.0), Loop, ids=(2,))  # type: ignore[arg-type]
        assert weight_of(one) == pytest.approx(step(START, 2), abs=1e-6)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="strength"):
        make("gifair", {"strength": 1.5})
    with pytest.raises(ConfigError, match="least"):
        make("gifair", {"least": -1})
