"""A run's verdict: written, shown, withheld with its model, and the same after a stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isonomy import api
from isonomy.cli import app
from isonomy.errors import RunError
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import resume

CONFIG: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "clients": 3, "examples": 400},
    "model": "logistic",
    "algorithm": {"name": "pffl", "zeta": 0.0, "B": 50.0},
    "local": {"steps": 3, "batch": 0, "lr": 1.0},
    "evaluate": {"bootstrap": 0},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 1},
}


@pytest.fixture(scope="module")
def null_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose bound no model can keep."""
    folder = tmp_path_factory.mktemp("runs") / "null"
    record = api.run(api.make_config(**CONFIG), folder)
    assert record.verdict is not None
    assert record.verdict["status"] == "null"
    return folder


def test_null_gives_no_model_and_says_so(null_run: Path) -> None:
    place = RunFolder(null_run)
    assert place.complete
    assert place.withheld
    assert not (null_run / "model").exists()
    assert json.loads((null_run / "verdict.json").read_text())["status"] == "null"
    with pytest.raises(RunError, match="verdict is null"):
        api.predictor(null_run, 0)
    page = api.write_report(api.load(null_run), null_run / "page.html").read_text()
    assert "Verdicts" in page
    assert "not certified" in page


def test_the_model_can_be_had_afterwards(null_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(null_run, tmp_path / "again")
    before = (folder / "verdict.json").read_bytes()
    resume(folder)
    assert RunFolder(folder).withheld  # nothing to do, and nothing given
    record = resume(folder, keep=True)
    assert (folder / "model" / "model.json").exists()
    assert (folder / "verdict.json").read_bytes() == before
    assert record.verdict is not None
    assert record.verdict["status"] == "null"
    kept = api.run(api.make_config(**CONFIG), tmp_path / "kept", keep=True)
    assert kept.metrics == record.metrics
    same = [(f / "model" / "model.safetensors").read_bytes() for f in (folder, tmp_path / "kept")]
    assert same[0] == same[1]


def test_a_run_killed_at_its_end_has_the_same_verdict(null_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(null_run, tmp_path / "killed")
    before = json.loads((folder / "verdict.json").read_text())
    for name in ("summary.json", "verdict.json"):
        (folder / name).unlink()
    record = resume(folder)
    assert record.verdict == before
    assert RunFolder(folder).withheld


def test_a_verdict_in_memory_and_one_that_is_kept(tmp_path: Path) -> None:
    loose = CONFIG | {"algorithm": {"name": "pffl", "zeta": 5.0, "B": 1.0}, "rounds": 1}
    record = api.run(api.make_config(**loose))
    assert record.verdict is not None
    assert record.verdict["status"] == "satisfied"
    assert "every constraint holds" in record.verdict["text"]
    plain = api.run(api.make_config(**(loose | {"algorithm": "fedavg"})), tmp_path / "plain")
    assert plain.verdict is None
    assert not (tmp_path / "plain" / "verdict.json").exists()


def test_the_command_line_ends_with_3_and_keeps_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(api.make_config(**CONFIG).toml())
    call = CliRunner().invoke
    folder = str(tmp_path / "run")
    got = call(app, ["run", str(file), "--to", folder, "--quiet", "--no-report"])
    assert got.exit_code == 3, got.output
    assert "verdict: null" in got.output
    shown = call(app, ["show", folder])
    assert shown.exit_code == 0
    assert "verdict: null" in shown.output
    assert "loss minus bound" in shown.output
    kept = call(app, ["resume", folder, "--keep", "--quiet", "--no-report"])
    assert kept.exit_code == 0, kept.output
    assert (tmp_path / "run" / "model" / "model.json").exists()
