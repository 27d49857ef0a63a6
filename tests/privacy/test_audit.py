"""Audits: the bound of Steinke et al., and planted faults that it finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from typer.testing import CliRunner

from isonomy.cli import app
from isonomy.errors import ConfigError
from isonomy.privacy import noise
from isonomy.privacy.audit import guess, lower_bound, p_value
from isonomy.studies.audit import audit
from privacy.test_private_runs import config


def test_bound_without_delta_is_a_binomial_tail():
    """With delta = 0: the epsilon at which as many right guesses have probability 5 %."""
    found = lower_bound(200, 100, 90, 0.0)
    success = 1 / (1 + math.exp(-found))
    assert binom.sf(89, 100, success) == pytest.approx(0.05, rel=1e-6)


def test_delta_lowers_the_bound():
    bounds = [lower_bound(200, 100, 90, delta) for delta in (0.0, 1e-5, 1e-3)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]
    assert p_value(10, 10, 0, 1.0, 1e-5) == 1


def test_bound_holds_for_randomised_response():
    """Each canary's bit is kept with probability e^eps / (1 + e^eps): exactly eps-DP."""
    true, draws, count = 1.5, np.random.default_rng(0), 100
    wrong = 0
    for _ in range(60):
        included = draws.random(count) < 0.5
        kept = draws.random(count) < 1 / (1 + math.exp(-true))
        scores = np.where(kept, included, ~included) + 1e-6 * draws.random(count)
        wrong += guess(scores, included, 0.0).bound > true
    assert wrong <= 8  # at most 5 %, within chance


SETTINGS = ("rounds=2", "privacy.clip=0.5", "model={name='mlp', hidden=[200]}", "local.steps=1")


def test_an_honest_claim_passes():
    found = audit(config(*SETTINGS), canaries=120)
    assert found.passed
    assert found.claimed is not None
    assert found.found.bound <= found.claimed
    assert found.found.right / found.found.guesses > 0.5


def test_noise_that_is_off_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(noise.Key, "normal", lambda self, shape, *name: torch.zeros(shape))
    strong = (*SETTINGS, "privacy.noise=4.0")  # claims an epsilon of about 2
    found = audit(config(*strong), canaries=120)
    assert not found.passed
    assert found.found.right > 0.95 * found.found.guesses
    file = tmp_path / "run.toml"
    file.write_text(config(*strong).toml())
    done = CliRunner().invoke(app, ["audit", str(file), "--canaries", "120"])
    assert done.exit_code == 3, done.output
    assert "FAILED" in done.output


def test_a_clip_that_is_off_is_found(monkeypatch):
    from isonomy.privacy import clipping, release

    def longer(rows: torch.Tensor, clip: float) -> clipping.Clipped:
        return clipping.clip_rows(rows, 20 * clip)

    monkeypatch.setattr(release, "clip_rows", longer)
    assert not audit(config(*SETTINGS, "privacy.noise=4.0"), canaries=120).passed


def test_only_client_level_is_audited():
    with pytest.raises(ConfigError, match="tests client-level privacy"):
        audit(config("privacy.level=example", "privacy.clip=1.0"))
