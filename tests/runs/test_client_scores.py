"""Histograms of scores as clients report them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import isonomy
from isonomy.metrics.scores import BINS
from isonomy.runs.build import build, engine_of
from isonomy.runs.client_counts import count_answering, scores_answering

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
