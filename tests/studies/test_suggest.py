"""Suggesting lam: the known answer of point estimation is found again from gradients."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from isonomy import FedAvg, make_config, suggest
from isonomy.cli import app
from isonomy.config.schema import parse
from isonomy.core.task import Task
from isonomy.data.federation import build
from isonomy.errors import ConfigError
from isonomy.runs.build import Setting
from isonomy.studies.suggest_lam import LamSuggestion, suggest_lam


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
    every = [suggest(points(2000, seed, tau=tau, n=25, sigma=1.0), "lam") for seed in range(6)]
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
    assert suggest(points(tau=0.0, n=25, sigma=1.0), "lam").lam > 8


def test_text_of_infinity() -> None:
    """Chance explains more than all."""
    said = LamSuggestion(math.inf, 1.0, 0.0, 2.0, 10).text()
    assert said.startswith("lam = inf")
    assert "fedavg" in said


def test_clients_count_by_their_examples() -> None:
    """Sizes from 3 to 300: the best lam for all examples, against a search on the true points.

    The error of client k is (lam^2 tau^2 + s_k) / (1 + lam)^2, and each counts n_k times. Counting
    clients equally, the small ones, whose s_k is large, would ask for a lam that is too large.
    """
    n, tau = torch.tensor([3, 3, 3, 3, 300, 300]).repeat(100), 0.3
    generator = torch.Generator().manual_seed(0)
    at = torch.randn(len(n), generator=generator) * tau
    y = torch.repeat_interleave(at, n) + torch.randn(int(n.sum()), generator=generator)
    ends = n.cumsum(0).tolist()
    made = build(
        torch.ones(len(y), 1),
        y,
        torch.zeros(len(y), 0, dtype=torch.int64),
        {"train": [torch.arange(b - a, b) for a, b in zip(n.tolist(), ends, strict=True)]},
        classes=0,
    )
    task = Task(lambda: nn.Linear(1, 1, bias=False), loss_name="squared", classes=0)
    params = {"weight": torch.zeros(1, 1)}
    config = parse({"local": {"batch": 0, "lr": 0.25, "epochs": 1}, "rounds": 8})
    setting = Setting(config, made, task, FedAvg(weight="equal"), params, made)
    found = suggest_lam(setting)
    grid = np.geomspace(0.01, 10, 400)
    s = 1 / n.numpy()
    errors = [(n.numpy() * (g**2 * tau**2 + s) / (1 + g) ** 2).sum() for g in grid]
    best = grid[int(np.argmin(errors))]
    assert found.lam / found.curvature == pytest.approx(best, rel=0.15)
    assert found.curvature == pytest.approx(2.0, rel=1e-3)


def test_an_attack_is_refused() -> None:
    """On Vehicle, the suggested lam under model replacement lost .24 accuracy to the best one."""
    made = make_config(
        data={"name": "points", "clients": 20}, algorithm="fmtl", attack={"name": "replacement"}
    )
    with pytest.raises(ConfigError, match=r"under an attack; set algorithm.lams, so that"):
        suggest(made)


def test_the_command_refuses_the_removed_options() -> None:
    for words in (["--malicious", "0.2"], ["--spread", "5"]):
        result = CliRunner().invoke(app, ["suggest", "quickstart", *words])
        assert result.exit_code != 0
        assert "set algorithm.lams" in " ".join(result.output.split())
