"""Runs that count decisions with another threshold than .5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isonomy
from isonomy.errors import ConfigError, RunError
from isonomy.federation import organiser
from isonomy.runs.folder import RunFolder

BASE: dict[str, Any] = {
    "rounds": 2,
    "seed": 1,
    "data": {"name": "synthetic", "examples": 600, "clients": 3, "seed": 0},
    "model": {"name": "mlp", "hidden": [4]},
    "excess": {"clusters": "none"},
    "engine": "loop",
}


def config(**evaluate: Any) -> Any:
    return isonomy.make_config(**BASE, evaluate={"every": 1, "bootstrap": 0, **evaluate})


def test_a_number_decides_what_is_counted() -> None:
    plain = isonomy.run(config())
    half, low, high = (isonomy.run(config(threshold=at)) for at in (0.5, 0.0, 1.0))
    different = {k for k, v in plain.metrics.items() if v != half.metrics[k] and v == v}
    assert not different
    rates = [f"group.z.positive_rate.{level}" for level in ("0", "1")]
    assert [low.metrics[name] for name in rates] == [1, 1]
    assert [high.metrics[name] for name in rates] == [0, 0]
    assert low.metrics["auc"] == plain.metrics["auc"]  # of the model, whatever is decided
    assert low.metrics["loss"] == plain.metrics["loss"]
    assert any("another threshold than .5" in text for text in low.notes)
    assert not any("threshold" in text for text in plain.notes)


def test_a_fitted_threshold_is_recorded_and_used(tmp_path: Path) -> None:
    made = isonomy.run(config(threshold="balanced", threshold_by="z"), tmp_path / "run")
    lines = RunFolder(tmp_path / "run").lines("rounds.jsonl")
    assert [line["thresholds"]["rule"] for line in lines] == ["balanced"] * 2
    found = lines[-1]["thresholds"]
    assert found["by"] == "z"
    assert set(found["groups"]) == {"0", "1"}
    # the best on validation examples is at least as good there as .5, for everyone
    scores = [
        isonomy.run(config(split="validation", **given)).metrics["balanced_accuracy"]
        for given in ({"threshold": "balanced"}, {})
    ]
    assert scores[0] >= scores[1] - 1e-12
    text = next(text for text in made.notes if "another threshold" in text)
    assert "z = 0: " in text
    for use in (
        lambda: isonomy.export(tmp_path / "run", tmp_path / "model"),
        lambda: isonomy.predictor(tmp_path / "run"),
    ):
        with pytest.raises(RunError, match="predictions and exported models do not apply"):
            use()
    assert not (tmp_path / "model").exists()


def test_engines_agree() -> None:
    given = {"threshold": "f1", "threshold_by": "z"}
    found = [
        isonomy.run(config(**given).model_copy(update={"engine": other.engine}))
        for other in (config(), isonomy.make_config(engine="batched"))
    ]
    names = ("accuracy", "f1", "auc", "brier", "group.z.auc_gap", "group.z.demographic_parity")
    for name in names:
        values = [one.metrics[name] for one in found]
        assert np.diff(values) == pytest.approx(0, abs=2e-3), name
    torch.testing.assert_close(
        found[0].rounds[-1]["thresholds"]["everyone"],
        found[1].rounds[-1]["thresholds"]["everyone"],
        atol=2e-3,
        rtol=0,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluate": {"threshold_by": "z"}}, "say what is fitted"),
        ({"evaluate": {"threshold_by": "z", "threshold": 0.3}}, "say what is fitted"),
        ({"evaluate": {"threshold": "f1", "threshold_by": "age"}}, "unknown protected attribute"),
        ({"evaluate": {"threshold": 0.3}, "algorithm": "praffl"}, "by decisions at .5"),
        ({"evaluate": {"threshold": 0.3}, "algorithm": "pffl"}, "by decisions at .5"),
        (
            {"evaluate": {"threshold": 0.3}, "model": {"name": "mlp", "loss": "hinge"}},
            "needs probabilities of two classes",
        ),
    ],
)
def test_what_has_no_such_threshold_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        isonomy.run(isonomy.make_config(**{**BASE, **change}))


def test_a_value_that_is_no_threshold_is_refused() -> None:
    for value in (1.5, "best"):
        with pytest.raises(ConfigError, match=r"evaluate\.threshold"):
            config(threshold=value)


def test_a_real_federation_refuses_thresholds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for simulations"):
        organiser.begin(config(threshold=0.3), tmp_path / "served", ["a", "b"])
