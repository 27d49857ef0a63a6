"""FAA where nobody knows the clusters: those that the method found, as of its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import isonomy
from isonomy.errors import ConfigError
from isonomy.runs import surrogate
from isonomy.runs.build import build

LINEAR: dict[str, Any] = {
    "rounds": 24,
    "data": {"name": "linear", "n": 300, "n_test": 300},
    "model": {"name": "linear"},
    "local": {"steps": 10, "batch": 0, "lr": 0.1},
    "evaluate": {"every": 12, "bootstrap": 0},
}


def config(algorithm: Any, clusters: str, **changes: Any) -> Any:
    excess = {"clusters": clusters, "steps": 100, "batch": 0}
    return isonomy.make_config(**{**LINEAR, **changes}, algorithm=algorithm, excess=excess)


def test_found_clusters_that_are_right_give_the_same_faa(tmp_path: Any) -> None:
    true = isonomy.run(config("focus", "true"))
    found = isonomy.run(config("focus", "found"), tmp_path / "run")
    assert found.metrics["faa"] == true.metrics["faa"] <= 0.001
    assert found.clients["cluster"][-10:] == [0] * 9 + [1]
    (which,) = [note for note in found.notes if note.startswith("Clusters of clients")]
    assert which.startswith("Clusters of clients that the method found: 2, of size 9, 1. Members: ")
    assert which.endswith("; 1: outlier 9.")
    assert found.metrics["clusters"] == 2
    (said,) = [note for note in found.notes if note.startswith("FAA: ")]
    assert "2 clusters that the method itself found" in said
    assert "2 true clusters" in " ".join(true.notes)
    assert [("faa" in (r.get("metrics") or {})) for r in found.rounds] == [False] * 23 + [True]
    table = pq.read_table(tmp_path / "run" / "clients.parquet").to_pydict()
    assert np.isnan(table["excess_loss"][:10]).all()
    assert np.ptp(table["excess_loss"][10:]) == pytest.approx(found.metrics["faa"])


def test_the_surrogate_is_that_of_the_clusters_found() -> None:
    """FOCUS with one model finds one cluster, so its surrogate is that of all clients together."""
    one = {"name": "focus", "models": 1}
    found, pooled = (isonomy.run(config(one, rule)) for rule in ("found", "one"))
    assert found.metrics["faa"] == pooled.metrics["faa"]
    apart = isonomy.run(config(one, "true"))
    assert apart.metrics["faa"] == pytest.approx(0.8, abs=0.15)
    assert found.metrics["faa"] < 0.05


def test_a_method_without_clusters_has_no_faa_and_says_so() -> None:
    record = isonomy.run(config("fedavg", "found", rounds=2))
    assert "faa" not in record.metrics
    assert "excess_loss" not in record.clients
    assert "cluster" not in record.clients
    assert "No FAA: 'fedavg' finds no clusters of clients." in record.notes


def test_other_rules_do_not_ask_the_method() -> None:
    setting = build(config("focus", "own"))
    assert surrogate.clusters(setting) == tuple(range(10))
    assert surrogate.clusters(build(config("focus", "none"))) is None
    assert surrogate.clusters(build(config("focus", "found"))) is None  # not before the end
    with pytest.raises(ConfigError, match="'found'"):
        config("focus", "guessed")


def test_resumed_runs_find_the_same(tmp_path: Any) -> None:
    """Stopped before the split and after it, the run ends in the same bytes."""
    from isonomy.runs.training import Stopped, resume

    class Stop(isonomy.Listener):
        def __init__(self, at: int) -> None:
            self.at = at

        def round(self, done: int, rounds: int, metrics: Any) -> None:
            if done == self.at:
                raise Stopped("enough", 2)

    how = config("focus", "found", checkpoint={"every": 1})
    straight = isonomy.run(how, tmp_path / "straight")
    for at in (1, 4):
        folder = tmp_path / f"stopped-{at}"
        with pytest.raises(Stopped):
            isonomy.run(
                config("focus", "found", checkpoint={"every": 1}), folder, listeners=[Stop(at)]
            )
        again = resume(folder)
        assert again.metrics == straight.metrics
        kept = (folder / "model" / "model.safetensors").read_bytes()
        assert kept == (tmp_path / "straight" / "model" / "model.safetensors").read_bytes()
