"""APFL and MAPPER: mixtures of a client's own model and the common one, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from algorithms.by_hand import ENGINES, rounds
from isonomy.algorithms import make
from isonomy.algorithms.personal.apfl import APFL
from isonomy.algorithms.personal.mapper import Mapper
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

RATE = 0.1
GRADIENTS = (lambda w: 5 * w - 6, lambda w: 2 * (w + 1))  # of `by_hand`


def own(engine: Engine, name: str = "params") -> list[float]:
    state = engine.states.stacked[name]
    return (state["weight"] if name == "params" else state).flatten().tolist()


@pytest.mark.parametrize("kind", ENGINES)
def test_apfl_by_hand(kind: type[Engine]) -> None:
    """alpha = 0.25, two steps from w = v = 1, client 1 (gradient 2 (m + 1)).

    Step 1: m = 1, w = 0.6, v = 1 - 0.1 * 0.25 * 4 = 0.9. Step 2: m = 0.225 + 0.45 = 0.675,
    gradient 3.35, v = 0.9 - 0.08375 = 0.81625; w = 0.28. Client 0 (5 m - 6): w = 1.1, v = 1.025;
    m = 0.25625 + 0.825 = 1.08125, gradient -0.59375, v = 1.03984375; w = 1.15.
    """
    server, engine = rounds(APFL(alpha=0.25), kind, steps=2)
    assert own(engine) == pytest.approx([1.03984375, 0.81625])
    assert server.params["weight"].item() == pytest.approx(0.715)


def test_apfl_takes_the_gradient_at_the_mixture_times_alpha() -> None:
    """Neither the gradient at v, nor without the factor alpha: both would end elsewhere."""
    _, engine = rounds(APFL(alpha=0.25), Loop, steps=2)
    for wrong in (
        lambda v, w, g: v - RATE * 0.25 * g(v),  # at v
        lambda v, w, g: v - RATE * g(0.25 * v + 0.75 * w),  # without alpha
    ):
        for k, g in enumerate(GRADIENTS):
            v = w = 1.0
            for _ in range(2):
                v, w = wrong(v, w, g), w - RATE * g(w)
            assert own(engine)[k] != pytest.approx(v, abs=1e-4)


def test_apfl_learns_alpha() -> None:
    """Round 2, client 1 alone: v = 0.9, w = 0.6 after one step each with alpha = 0.25.

    m = 0.675, gradient 3.35, alpha - 0.1 * (0.9 - 0.6) * 3.35 = 0.1495. In round 1 v = w, so
    alpha stays.
    """
    _, engine = rounds(APFL(alpha=0.25, adaptive=True), Loop, steps=1, ids=(1,))
    assert own(engine, "alpha") == pytest.approx([0.25, 0.25])
    _, engine = rounds(APFL(alpha=0.25, adaptive=True), Loop, steps=1, rounds=2, ids=(1,))
    assert own(engine, "alpha") == pytest.approx([0.25, 0.1495])


def test_apfl_solved_to_the_end_is_local_training() -> None:
    """The mixture's end is each client's own minimiser, 6/5 and -1, for any alpha above 0."""
    for alpha in (0.6, 0.8):
        server, engine = rounds(APFL(alpha=alpha), Loop, steps=1, rounds=150)
        w = server.params["weight"].item()
        served = [alpha * v + (1 - alpha) * w for v in own(engine)]
        # w moves by one more step after v has seen it, but is at rest by then
        assert served == pytest.approx([1.2, -1.0], abs=1e-3)


@pytest.mark.parametrize("kind", ENGINES)
def test_mapper_by_hand(kind: type[Engine]) -> None:
    """Shares 0.25 and 1, one step each from v = w = 1.

    Client 1 (loss (m + 1)^2): v = 1 - 0.1 * 0.25 * 4 = 0.9, m = 0.975; with share 1 v = m = 0.6,
    a smaller loss, so share 1; then w does not move: gradient (1 - 1) * ... = 0. Client 0 likewise
    takes 1.1. The server stays at 1.
    """
    server, engine = rounds(Mapper(shares=(0.25, 1.0)), kind, steps=1)
    assert own(engine) == pytest.approx([1.1, 0.6])
    assert own(engine, "share") == pytest.approx([1.0, 1.0])
    assert server.params["weight"].item() == pytest.approx(1.0)


def test_mapper_counts_every_client() -> None:
    """One share of 0.5: v = 1.05 and 0.8; then w by half the gradient at the mixture.

    Client 0: m = 1.025, gradient -0.875, w = 1.04375. Client 1: m = 0.9, gradient 3.8, w = 0.81.
    The server takes both, not the last only: 0.926875.
    """
    server, engine = rounds(Mapper(shares=(0.5,)), Loop, steps=1)
    assert own(engine) == pytest.approx([1.05, 0.8])
    assert server.params["weight"].item() == pytest.approx(0.926875)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("apfl", {"alpha": 1.5}),
        ("apfl", {"alpha": -0.1}),
        ("mapper", {"shares": []}),
        ("mapper", {"shares": [0.5, 2.0]}),
    ],
)
def test_bad_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} = "):
        make(name, options)
