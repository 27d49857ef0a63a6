"""How large a preset is run: its scales, and the short ones of FOCUS' presets for real."""

import dataclasses
import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

from isonomy import algorithms
from isonomy.algorithms.clustered.focus import Focus
from isonomy.errors import ConfigError
from isonomy.metrics.names import parse as parse_metric
from isonomy.runs.build import build
from isonomy.studies import reproduce as reproduction
from isonomy.studies.reproduce import FULL, Scale, find, methods_of, presets, reproduce, scaled

SMALL = {
    "rounds": 2,
    "data": {"n": 20, "n_test": 20},
    "excess": {"steps": 2},
    "evaluate": {"every": 2, "bootstrap": 0},
}


@pytest.fixture
def preset():
    """FOCUS' synthetic data, tiny; by default three methods of it."""
    return dataclasses.replace(
        find("focus-synthetic"),
        scales={
            "small": Scale(
                "small", "Three methods.", 2, SMALL, ("FedAvg", "q-FFL q = 1", "FOCUS models found")
            ),
            "quick": Scale("quick", "One round.", 1, {**SMALL, "rounds": 1}),
        },
        scale="small",
    )


def test_the_default_is_the_scale_that_the_preset_names(preset):
    assert scaled(preset).name == "small"
    assert scaled(find("focus-synthetic")).name == FULL


def test_full_is_the_config_as_it_is(preset):
    full = methods_of(preset, FULL)
    assert len(full) == len(preset.methods)
    assert {m.config.rounds for m in full} == {100}
    assert scaled(preset, FULL).seeds == preset.seeds


def test_a_scale_keeps_methods_by_label_or_by_label_and_setting(preset):
    labels = [m.label for m in methods_of(preset)]
    assert labels == ["FedAvg equal weights", "FOCUS models found", "q-FFL q = 1"]
    assert {m.config.data.options["n"] for m in methods_of(preset)} == {20}


def test_an_unknown_scale_is_refused_with_those_there_are(preset):
    with pytest.raises(ConfigError, match="'tiny': use one of full, quick, small"):
        scaled(preset, "tiny")


def test_every_preset_names_scales_and_methods_that_exist():
    for one in presets().values():
        assert scaled(one).name in (FULL, *one.scales)
        labels = {m["label"] for m in one.methods} | {m.label for m in methods_of(one, FULL)}
        for scale in one.scales.values():
            assert scale.text.endswith(".")
            assert set(scale.methods) <= labels
            assert scale.seeds >= 1
        assert one.scales["quick"].seeds == 1


def test_every_preset_names_metrics_that_exist():
    for one in presets().values():
        for metric in (*one.metrics, *(one.pair or ()), *filter(None, [one.curve])):
            if not metric.startswith("verdict."):
                parse_metric(metric)  # raises an error for an unknown name


def test_rows_and_seeds_are_the_scales(preset, tmp_path):
    rows = reproduce(preset, tmp_path)
    assert len(rows) == 3 * 2
    assert {row["seeds"] for row in rows} == {2}
    assert {(row["method"], row["paper"]) for row in rows if row["metric"] == "faa"} == {
        ("FedAvg", 0.958), ("FOCUS", 0.001), ("q-FFL", 0.717),
    }  # fmt: skip


def test_the_folder_carries_a_scale_that_is_not_the_default(preset, tmp_path, monkeypatch):
    from isonomy.cli import app

    monkeypatch.setattr(reproduction, "find", lambda name: preset)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke

    usual = run(app, ["reproduce", "focus-synthetic", "--seeds", "1", "--quiet"])
    assert usual.exit_code == 0, usual.output
    assert "Published numbers and ours, scale small" in usual.output
    assert "Scale small: Three methods." in usual.output
    made = tmp_path / "runs" / "focus-synthetic"
    assert {path.name for path in made.glob("*/seed-*")} == {"seed-0"}
    run(app, ["reproduce", "focus-synthetic", "--seeds", "3,5", "--quiet", "--to", "runs/which"])
    made = tmp_path / "runs" / "which"
    assert {path.name for path in made.glob("*/seed-*")} == {"seed-3", "seed-5"}
    shutil.rmtree(made)
    quick = run(app, ["reproduce", "focus-synthetic", "--scale", "quick", "--quiet"])
    assert "Scale quick: One round." in quick.output
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["focus-synthetic", "focus-synthetic-quick"]


def test_two_scales_at_once_are_refused(preset, tmp_path, monkeypatch):
    from isonomy.cli import app

    monkeypatch.setattr(reproduction, "find", lambda name: preset)
    monkeypatch.chdir(tmp_path)
    got = CliRunner().invoke(app, ["reproduce", "focus-synthetic", "--quick", "--scale", "full"])
    assert got.exit_code == 2
    assert "--quick and --scale full" in got.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["focus-rotated-cifar", "focus-text", "focus-text-encoder"])
def test_focus_presets_run_at_the_quick_scale(name, tmp_path):
    one = find(name)
    rows = reproduce(one, tmp_path, scale="quick")
    assert {row["method"] for row in rows} >= {"FOCUS", "FedAvg"}
    assert all(row["ours"] is not None for row in rows)
    json.dumps(rows)


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("focus-synthetic", 2),
        ("focus-rotated-mnist", 3),
        ("focus-text", 2),
        ("focus-text-encoder", 2),
    ],
)
def test_the_papers_own_start_of_focus_is_a_row(name, models):
    """Models given and drawn independently, with uniform shares, and no client is skipped."""
    made = [m for m in methods_of(find(name), "full") if "paper's start" in m.label]
    (row,) = made
    algorithm = algorithms.make(row.config.algorithm.name, row.config.algorithm.options)
    assert algorithm == Focus(models=models, start="independent", skip=0.0, check=1)
    setting = build(row.config) if name == "focus-synthetic" else None
    if setting is not None:
        server = algorithm.init_server(setting.task, setting.params, 10)
        torch.testing.assert_close(server.log_pi.exp(), torch.full((10, 2), 0.5).double())
        first, second = next(iter(server.models.values()))
        assert not torch.equal(first, second)
