"""`postprocess`, and the pages of its methods."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import isonomy
from isonomy.cli import app
from isonomy.postprocess import METHODS


def invoke(*arguments: str):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_listed_and_shown(name: str) -> None:
    listed, shown = invoke("ls", "postprocessing"), invoke("show", name)
    assert listed.exit_code == shown.exit_code == 0
    assert name in listed.output
    assert f'postprocess = {{ name = "{name}"' in shown.output
    assert "Revealed to the server: " in shown.output


def test_a_finished_run_gets_a_rule(tmp_path: Path) -> None:
    config = isonomy.make_config(
        rounds=1,
        data={"name": "synthetic", "examples": 600, "clients": 2, "seed": 0},
        model={"name": "mlp", "hidden": [4]},
        engine="loop",
        evaluate={"bootstrap": 0},
        excess={"clusters": "none"},
    )
    isonomy.run(config, tmp_path / "plain")
    to = tmp_path / "fair"
    done = invoke(
        "postprocess", tmp_path / "plain", "thresholds", "budget=0.01", "--to", to, "--no-report"
    )
    assert done.exit_code == 0, done.output
    record = isonomy.load(to)[0]
    assert record.config["postprocess"] == {"name": "thresholds", "budget": 0.01}
    assert record.rounds[-1]["postprocess"]["expected"]["gap"] <= 0.01 + 1e-6
    again = invoke("postprocess", tmp_path / "plain", "fair_lp", "--to", to, "--no-report")
    assert again.exit_code != 0
