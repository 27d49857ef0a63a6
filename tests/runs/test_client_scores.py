"""Histograms of scores as clients report them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isonomy
from isonomy.metrics.scores import BINS
from isonomy.runs.build import build, engine_of
from isonomy.runs.client_counts import count_answering, scores_answering
from isonomy.runs.evaluate import measurable
from isonomy.runs.folder import RunFolder

BASE: dict[str, Any] = {
    "seed": 1,
    "data": {"name": "synthetic", "examples": 600, "clients": 3, "seed": 0},
    "model": {"name": "mlp", "hidden": [4]},
}


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
def test_engines_agree_and_the_histogram_has_the_counted_decisions(loss: str) -> None:
    found = {}
    for engine_name in ("batched", "loop"):
        config = isonomy.make_config(
            **{**BASE, "model": {**BASE["model"], "loss": loss}}, engine=engine_name
        )
        setting = build(config)
        method, engine = setting.algorithm, engine_of(setting)
        engine.reset(method.init_client(setting.task, setting.params))
        server = method.init_server(setting.task, setting.params, 3)
        scores, ids = scores_answering(method, server, engine, "test")
        counts, same = count_answering(method, server, engine, "test")
        assert ids == same == [0, 1, 2]
        assert scores.attributes == counts.attributes
        assert scores.counts.shape == (3, counts.counts.shape[1], 2, BINS)
        # no score is exactly .5, so what is above it is what the task decides to be positive
        at_half = np.stack(
            [scores.counts[..., : BINS // 2].sum(-1), scores.counts[..., BINS // 2 :].sum(-1)], -1
        )
        assert np.array_equal(at_half, counts.counts)
        found[engine_name] = scores.counts
    # a score may be rounded into the next bin
    apart = np.abs(np.cumsum(found["batched"] - found["loop"], -1)).max()
    assert apart <= 1
    assert found["loop"].sum() > 0


def test_when_values_are_measured(tmp_path: Path) -> None:
    shown = {}
    for when in ("last", "always", "never"):
        place = tmp_path / when
        evaluate = {"every": 1, "bootstrap": 20, "scores": when}
        made = isonomy.run(
            isonomy.make_config(**BASE, rounds=2, evaluate=evaluate, excess={"clusters": "none"}),
            place,
        )
        shown[when] = ["auc" in line["metrics"] for line in made.rounds]
        column = RunFolder(place).clients()
        assert column is not None
        table = column.listed()
        if when == "never":
            assert "auc" not in table
            assert "auc" not in made.metrics
            continue
        known = np.isfinite(table["brier"]).reshape(2, 3).all(1)
        assert known.tolist() == shown[when]
        assert made.metrics["auc:low"] <= made.metrics["auc:high"]
        assert made.metrics["client.auc.mean"] == pytest.approx(np.nanmean(table["auc"][3:]))
        gaps = [name for name in table if name.endswith("_gap")]
        assert "group.z.auc_gap" in gaps
    assert shown == {"last": [False, True], "always": [True, True], "never": [False, False]}


def test_a_method_with_a_model_per_client_and_one_with_a_mixture_have_values() -> None:
    for name in ("local", "focus"):
        made = isonomy.run(
            isonomy.make_config(
                **BASE,
                rounds=1,
                algorithm=name,
                evaluate={"bootstrap": 0},
                excess={"clusters": "none"},
            )
        )
        assert 0 < made.metrics["brier"] < 1
        assert made.metrics["auc_resolution"] < 0.05


def test_what_can_be_measured_is_known_before_a_run() -> None:
    config = isonomy.make_config(
        **BASE, rounds=1, evaluate={"bootstrap": 5}, excess={"clusters": "none"}
    )
    found = set(isonomy.run(config).metrics)
    known = measurable(build(config))
    assert {name for name in found if not name.endswith("left_out")} <= known
    assert "group.z.calibration_error_gap:low" in known


def test_regression_has_errors_and_no_scores() -> None:
    made = isonomy.run(
        isonomy.make_config(
            rounds=3,
            data={"name": "linear"},
            model="linear",
            evaluate={"every": 1, "bootstrap": 10},
            excess={"clusters": "none"},
        )
    )
    last = made.metrics
    assert last["rmse"] == pytest.approx(last["loss"] ** 0.5, rel=1e-6)
    assert 0 < last["mae"] <= last["rmse"]
    assert last["r2"] <= 1
    assert last["r2:low"] <= last["r2:high"]
    assert not any("auc" in name or "brier" in name for name in last)
    assert "mae" in made.clients
