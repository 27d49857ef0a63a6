"""Presets whose methods are crossed with settings, and what is made of their rows."""

from __future__ import annotations

from typing import Any

import pytest

from isonomy.data.partition import plan
from isonomy.data.partition.registry import IMAGE_PARTITIONS, PARTITIONS
from isonomy.report.robustness_grid import grid, plane
from isonomy.studies.reproduce import _read, find, methods_of, presets, reproduce, scaled

PAIR = ("accuracy", "client.accuracy.std")
TEXT = """
[preset]
title = "t"
paper = "p"
text = "x"
seeds = 1
metrics = ["accuracy", "client.accuracy.std"]
pair = ["accuracy", "client.accuracy.std"]

[config]
rounds = 2
data = { name = "synthetic", clients = 3 }
model = "logistic"
excess = { clusters = "none" }

[scale.quick]
text = "One round."
rounds = 1
settings = ["slow"]

[[settings]]
name = "slow"
local = { lr = 0.01 }

[[settings]]
name = "fast"
local = { lr = 0.2 }

[[methods]]
label = "avg"
algorithm = "fedavg"

[[methods]]
label = "own"
algorithm = "local"

[[methods]]
label = "once"
setting = "slow"
algorithm = "local"

[[expected]]
method = "avg"
values = { slow = [0.8, 0.1], fast = [0.7, 0.2] }
"""


def test_every_method_under_every_setting() -> None:
    preset = _read("made", TEXT)
    assert preset is not None
    got = [(m.label, m.config.local.lr) for m in methods_of(preset)]
    assert got == [
        ("avg slow", 0.01),
        ("own slow", 0.01),
        ("avg fast", 0.2),
        ("own fast", 0.2),
        ("once slow", 0.1),
    ]
    quick = methods_of(preset, scale="quick")
    assert [m.label for m in quick] == ["avg slow", "own slow", "once slow"]
    assert all(m.config.rounds == 1 for m in quick)


def test_rows_have_the_papers_numbers(tmp_path: Any) -> None:
    preset = _read("made", TEXT)
    assert preset is not None
    rows = reproduce(preset, tmp_path, scale="quick")
    assert len(rows) == 2 * len(methods_of(preset, "quick"))
    paper = {(r["method"], r["setting"], r["metric"]): r["paper"] for r in rows}
    assert paper["avg", "slow", "accuracy"] == 0.8
    assert paper["avg", "slow", "client.accuracy.std"] == 0.1
    assert paper["own", "slow", "accuracy"] is None
    assert all(0 <= r["ours"] <= 1 for r in rows)


def made(method: str, setting: str, mean: float, std: float) -> list[dict[str, Any]]:
    return [
        {"method": method, "setting": setting, "metric": m, "ours": v, "paper": None}
        for m, v in zip(PAIR, (mean, std), strict=True)
    ]


def test_the_best_has_the_largest_mean_minus_deviation() -> None:
    """0.90 - 0.20 = 0.70 is less than 0.85 - 0.05 = 0.80."""
    rows = [*made("a", "clean", 0.9, 0.2), *made("b", "clean", 0.85, 0.05)]
    table = grid(rows, PAIR)
    assert [row[1].value for row in table.rows] == ["0.900 (.200)", "0.850 (.050)"]
    assert [row[1].best for row in table.rows] == [False, True]
    assert "benign" in table.text()
    assert not grid(rows, PAIR, "paper").rows


def test_the_plane_has_a_view_a_setting() -> None:
    rows = [*made("a", "clean", 0.9, 0.2), *made("a", "A1", 0.5, 0.3), *made("b", "A1", 0.8, 0.1)]
    views = plane(rows, PAIR)
    marks = [mark for view in views for mark in view.chart.marks]
    assert [(mark.x[0], mark.y[0]) for mark in marks] == [(0.9, 0.2), (0.5, 0.3), (0.8, 0.1)]
    assert [view.title for view in views] == ["clean", "A1"]
    assert plane([], PAIR) == []


@pytest.mark.parametrize("name", ["fmtl-vehicle", "fmtl-fashion", "fmtl-celeba"])
def test_fmtl_presets(name: str) -> None:
    """Every method under every attack, with and without defence."""
    preset = find(name)
    labels = {table["label"] for table in preset.methods}
    settings = {table["setting"] for table in preset.methods}
    assert {s.split()[0] for s in settings} == {"clean", "A1", "A2", "A3"}
    assert len(preset.methods) == len(labels) * len(settings)
    assert set(scaled(preset, "quick").settings) < settings
    for e in preset.expected:
        assert e["method"] in labels
        assert e["setting"] in settings


@pytest.mark.parametrize("name", sorted(presets()))
def test_partitions_of_presets_are_allowed(name: str) -> None:
    """Each method's at full size; whether rows can be divided so is known when they are read."""
    preset, known = find(name), PARTITIONS | IMAGE_PARTITIONS
    for method in methods_of(preset, "full"):
        spec = method.config.data.partition
        if spec is not None and (spec if isinstance(spec, str) else spec["name"]) in known:
            plan(spec, known)


def test_afl_is_the_same_two_rows_in_every_preset() -> None:
    """Trained locally, and with one gradient per round as in its own paper; both by their names."""
    found = {}
    for name, preset in presets().items():
        if name == "fedmdfg-fashion":  # a published table with two values of gamma
            continue
        algorithms = []
        for m in preset.methods:
            if isinstance(m["algorithm"], dict) and m["algorithm"]["name"] == "afl":
                words = f"{m['label']} {m.get('setting', '')}"
                row = (dict(m["algorithm"]), "one gradient" in words)
                if row not in algorithms:  # a preset may have a method in several settings
                    algorithms.append(row)
        if algorithms:
            found[name] = algorithms
    assert len(found) == 8
    own, trained = {"name": "afl", "gamma": 0.01}, {"update": "model"}
    for name, rows in found.items():
        assert rows == [(own | trained, False), (own, True)], name


def test_fusion_stands_beside_the_even_mean_and_the_best_client() -> None:
    """FusionNet alone cannot be judged: a single client may do as well."""
    wanted = {"mean", "net", "tuned", "best"}
    rows = find("hetpfl-table4").methods
    for setting in ("SYNTHETIC", "COMPAS", "BANK", "ADULT"):
        methods = [m["algorithm"] for m in rows if m["setting"] == setting]
        learnt = {m["fusion"] for m in methods if "kappa" not in m}  # those with PSA
        assert learnt == wanted, setting
