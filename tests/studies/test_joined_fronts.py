"""Rows of a preset that are made of several runs, whose points are joined to one front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isonomy import api
from isonomy.errors import DataError
from isonomy.metrics.front import hypervolume
from isonomy.runs.record import Record
from isonomy.studies.joined_fronts import joined, together
from isonomy.studies.reproduce import _read, find, methods_of, reproduce, with_joined
from isonomy.studies.results import origin, rows_of

TEXT = """
[preset]
title = "t"
paper = "p"
text = "x"
seeds = 2
metrics = ["hv.local", "hv.global"]

[config]
rounds = 2
data = { name = "synthetic", clients = 3 }
model = "logistic"
evaluate = { every = 2, bootstrap = 0 }
excess = { clusters = "none" }

[[methods]]
label = "FedAvg"
algorithm = "fedavg"

[[methods]]
label = "EquiFL, swept"
setting = "three"
algorithm = { name = "equifl" }
grid = { penalty = [0.0, 5.0, 50.0] }
joined = true
"""


def one_point(label: str, seed: int, points: list[tuple[int, float, float]], **more: Any) -> Record:
    """A run with a point (client, error, gap) for each client, and a validation front to ignore."""
    rows = [("test", *at) for at in points] + [("validation", at[0], 0.0, 0.0) for at in points]
    names = ("split", "client", "error", "dp.sex")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    columns["count.error"] = [[1, 2]] * len(rows)
    given: dict[str, Any] = {"seconds": 2.0, "front": columns, **more}
    return Record(
        label,
        seed,
        {"evaluate": {"split": "test"}},
        [],
        {},
        {"hv.local": 0.0, "loss": 1.0},
        **given,
    )


def test_the_volume_of_joined_points_by_hand() -> None:
    exact = one_point("a", 0, [(0, 0.2, 0.8), (1, 0.5, 0.5), (-1, 0.3, 0.6)])
    fair = one_point("b", 0, [(0, 0.6, 0.1), (1, 0.6, 0.6), (-1, 0.6, 0.3)])
    made = joined("swept", [exact, fair])
    # client 0: .8 x .2 + .4 x .7 = .44; client 1: .25, its second point is dominated
    assert made.metrics["hv.local"] == pytest.approx((0.44 + 0.25) / 2)
    # all together: .7 x .4 + .4 x .3 = .40
    assert made.metrics["hv.global"] == pytest.approx(0.40)
    assert (made.label, made.seed, made.seconds, made.complete) == ("swept", 0, 4.0, True)
    assert "loss" not in made.metrics  # no run's own metrics are passed off as the row's
    assert together(made) == [[0.3, 0.6], [0.6, 0.3]]
    worse = one_point("c", 0, [(0, 0.2, 0.8), (1, 0.5, 0.5), (-1, 0.7, 0.6)])
    assert together(joined("swept", [exact, fair, worse])) == [[0.3, 0.6], [0.6, 0.3]]


def test_a_row_with_an_unfinished_run_has_no_value() -> None:
    exact = one_point("a", 0, [(0, 0.2, 0.8)])
    made = joined("swept", [exact, one_point("b", 0, [(0, 0.6, 0.1)], complete=False)])
    assert not made.complete
    assert made.metrics == {}
    with pytest.raises(DataError, match="'b', seed 0, has no front to join"):
        joined("swept", [exact, one_point("b", 0, [], front={})])


def test_a_swept_row_is_one_row_of_several_runs(tmp_path: Path) -> None:
    preset = _read("made", TEXT)
    assert preset is not None
    labels = [m.label for m in methods_of(preset)]
    assert labels == [
        "FedAvg",
        "EquiFL, swept three, penalty=0.0",
        "EquiFL, swept three, penalty=5.0",
        "EquiFL, swept three, penalty=50.0",
    ]
    assert [m.label for m in methods_of(preset, only=["EquiFL, swept"], settings=["three"])] == (
        labels[1:]
    )
    printed = reproduce(preset, tmp_path)
    records = api.load(tmp_path)
    assert len(records) == 8
    rows = rows_of(preset, "full", records)
    assert [(r["method"], r["setting"], r["seed"]) for r in rows] == [
        ("FedAvg", "", 0),
        ("FedAvg", "", 1),
        ("EquiFL, swept", "three", 0),
        ("EquiFL, swept", "three", 1),
    ]
    assert [r.get("runs") for r in rows] == [None, None, 3, 3]
    assert origin(rows).startswith("*8 runs, ")
    for seed, row in enumerate(rows[2:]):
        runs = [r for r in records if r.seed == seed and r.label != "FedAvg"]
        assert row["seconds"] == pytest.approx(sum(r.seconds for r in runs), abs=0.1)
        for name, whose in (("hv.global", [-1]), ("hv.local", [0, 1, 2])):
            areas = []
            for client in whose:
                at = [
                    (r.front["error"][i], r.front["dp.z"][i])
                    for r in runs
                    for i, who in enumerate(r.front["client"])
                    if who == client
                ]
                assert len(at) == 3
                areas.append(hypervolume(at))
            assert row["metrics"][name] == pytest.approx(sum(areas) / len(areas), rel=1e-5)
            assert row["metrics"][name] >= max(r.metrics[name] for r in runs) - 1e-6
    swept = {r["metric"]: r for r in printed if r["method"] == "EquiFL, swept"}
    mean = sum(row["metrics"]["hv.global"] for row in rows[2:]) / 2
    assert swept["hv.global"]["ours"] == pytest.approx(mean, rel=1e-5)
    assert swept["hv.global"]["seeds"] == 2
    part = [r for r in records if not (r.seed == 1 and r.label.endswith("penalty=50.0"))]
    assert [r.seed for r in with_joined(preset, part) if r.label == "EquiFL, swept three"] == [0]


def test_the_swept_rows_of_table_1() -> None:
    found = [m.label for m in methods_of(find("hetpfl-table1"), only=["FedFB, swept"])]
    assert len(found) == 4 * 6
    assert found[0] == "FedFB, swept SYNTHETIC, alpha=0.001"
