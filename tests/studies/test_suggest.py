"""Suggesting lam: the known answer of point estimation is found again from gradients."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from isonomy import make_config, suggest
from isonomy.errors import ConfigError
from isonomy.studies.suggest import Suggestion


def points(clients: int = 400, seed: int = 0, **options: float) -> object:
    """Point estimation: lam* = sigma^2 / (n tau^2), times h = 2 in the units of its loss."""
    return make_config(
        seed=seed,
        data={"name": "points", "clients": clients, **options},
        model={"name": "linear", "bias": False},
        local={"batch": 0, "lr": 0.25, "epochs": 1},
        rounds=8,
    )


@pytest.mark.parametrize(("tau", "best"), [(0.2, 1.0), (0.15, 0.04 / 0.0225)])
def test_point_estimation(tau: float, best: float) -> None:
    """Mean of six draws of 2,000 clients, within four standard errors; the curvature exactly."""
    every = [suggest(points(2000, seed, tau=tau, n=25, sigma=1.0)) for seed in range(6)]
    within, between = (fmean(getattr(f, name) for f in every) for name in ("within", "between"))
    assert every[0].curvature == pytest.approx(2.0, rel=1e-3)
    assert within == pytest.approx(4 * 0.04, rel=0.06)  # h^2 sigma^2 / n
    assert between == pytest.approx(4 * tau**2, rel=0.25)
    assert within / between == pytest.approx(best, rel=0.25)
    found = every[0]
    assert found.lam == pytest.approx(found.curvature * found.within / found.between)
    assert "Gaussian model" in found.text()


def test_clients_that_are_alike_need_no_models_of_their_own() -> None:
    """tau = 0: what is left between clients is chance, above 0 or, as infinity, below."""
    assert suggest(points(tau=0.0, n=25, sigma=1.0)).lam > 8


def test_text_of_infinity() -> None:
    """Chance explains more than all."""
    said = Suggestion(math.inf, 1.0, 0.0, 2.0, 10, 0.0, 3.0).text()
    assert said.startswith("lam = inf")
    assert "fedavg" in said


def test_malicious_clients_lower_it() -> None:
    honest = suggest(points(tau=0.2))
    wary = suggest(points(tau=0.2), malicious=0.5, spread=20.0)
    assert wary.lam < honest.lam
    assert wary.within == honest.within


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="malicious = 1"):
        suggest(points(tau=0.2), malicious=1.0)
    with pytest.raises(ConfigError, match="spread"):
        suggest(points(tau=0.2), malicious=0.1, spread=0.5)
