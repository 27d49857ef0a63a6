"""A run's verdict: written, shown, withheld with its model, and the same after a stop."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import isonomy
from isonomy import api
from isonomy.cli import app
from isonomy.errors import RunError
from isonomy.report import tables
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
def unmet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose bound no model can keep."""
    folder = tmp_path_factory.mktemp("runs") / "unmet"
    record = api.run(api.make_config(**CONFIG), folder)
    assert record.verdict is not None
    assert record.verdict["status"] == "infeasible"
    return folder


def test_an_unmet_bound_gives_no_model_and_says_so(unmet_run: Path) -> None:
    place = RunFolder(unmet_run)
    assert place.complete
    assert place.withheld
    assert not (unmet_run / "model").exists()
    assert json.loads((unmet_run / "verdict.json").read_text())["status"] == "infeasible"
    with pytest.raises(RunError, match="verdict is 'infeasible'"):
        api.predictor(unmet_run, 0)
    page = isonomy.write_report(api.load(unmet_run), unmet_run / "page.html").read_text()
    assert "Verdicts" in page
    text = json.loads((unmet_run / "verdict.json").read_text())["text"]
    assert html.escape(text) in page  # the report has the words and figures of verdict.json
    assert "infeasible" in page
    table = tables.comparison(api.load(unmet_run))
    at = [column.name for column in table.columns].index("verdict")
    assert table.rows[0][at].value == "infeasible 1"


def test_the_model_can_be_had_afterwards(unmet_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(unmet_run, tmp_path / "again")
    before = (folder / "verdict.json").read_bytes()
    resume(folder)
    assert RunFolder(folder).withheld  # nothing to do, and nothing given
    record = resume(folder, keep=True)
    assert (folder / "model" / "model.json").exists()
    assert (folder / "verdict.json").read_bytes() == before
    assert record.verdict is not None
    assert record.verdict["status"] == "infeasible"
    kept = api.run(api.make_config(**CONFIG), tmp_path / "kept", keep=True)
    assert kept.metrics == record.metrics
    same = [(f / "model" / "model.safetensors").read_bytes() for f in (folder, tmp_path / "kept")]
    assert same[0] == same[1]


def test_a_run_killed_at_its_end_has_the_same_verdict(unmet_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(unmet_run, tmp_path / "killed")
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
    assert record.verdict["status"] == "met"
    assert "every constraint holds" in record.verdict["text"]
    plain = api.run(api.make_config(**(loose | {"algorithm": "fedavg"})), tmp_path / "plain")
    assert plain.verdict is None
    assert not (tmp_path / "plain" / "verdict.json").exists()


def test_a_network_that_meets_its_bounds_is_written_and_ends_with_0(tmp_path: Path) -> None:
    """And the same network, with bounds that it violates, ends with 3 and no model."""
    call = CliRunner().invoke
    changed = CONFIG | {"model": {"name": "mlp", "hidden": [4]}, "rounds": 1}
    for zeta, code, word in ((2.0, 0, "met"), (0.01, 3, "violated")):
        file, folder = tmp_path / f"{word}.toml", tmp_path / word
        made = api.make_config(**(changed | {"algorithm": {"name": "pffl", "zeta": zeta}}))
        file.write_text(made.toml())
        got = call(app, ["run", str(file), "--to", str(folder), "--quiet", "--no-report"])
        assert got.exit_code == code, got.output
        assert f"verdict: {word}." in got.output
        assert RunFolder(folder).withheld == (code == 3)


def test_under_attack_the_verdict_covers_the_clients_that_the_metrics_cover() -> None:
    """One of three clients has flipped labels; its losses are in neither."""
    algorithm = {"name": "pffl", "zeta": 0.5, "B": 5.0}
    attack = {"name": "labels", "clients": [1]}
    made = api.make_config(**(CONFIG | {"algorithm": algorithm}), attack=attack)
    record = api.run(made)
    assert record.verdict is not None
    facts = record.verdict["facts"]
    assert "of the 2 benign of 3 clients" in record.verdict["text"]
    assert facts["clients"] == 2
    sizes = dict(zip(record.clients["client"], record.clients["size"], strict=True))
    measured = sum(cell["held_examples"] for cell in facts["constraints"])
    assert measured == sizes[0] + sizes[2]
    assert "of all 3 clients" in _text(api.run(api.make_config(**CONFIG)))


def _text(record: Any) -> str:
    return str(record.verdict["text"])


def test_the_command_line_ends_with_3_and_keeps_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(api.make_config(**CONFIG).toml())
    call = CliRunner().invoke
    folder = str(tmp_path / "run")
    got = call(app, ["run", str(file), "--to", folder, "--quiet", "--no-report"])
    assert got.exit_code == 3, got.output
    assert "verdict: infeasible" in got.output
    shown = call(app, ["show", folder])
    assert shown.exit_code == 0
    assert "verdict: infeasible" in shown.output
    assert "loss minus bound" in shown.output
    kept = call(app, ["resume", folder, "--keep", "--quiet", "--no-report"])
    assert kept.exit_code == 3, kept.output  # 0 only if the bounds are met
    assert (tmp_path / "run" / "model" / "model.json").exists()
    exported = call(app, ["export", folder, "--to", str(tmp_path / "exported")])
    assert exported.exit_code == 0, exported.output
    text = json.loads((tmp_path / "run" / "verdict.json").read_text())["text"]
    assert f"Verdict of the run: infeasible: {text}" in " ".join(exported.output.split())


def test_a_run_is_shown_beside_the_constant_prediction(unmet_run: Path) -> None:
    """The note on the constant prediction had no figures beside it."""
    shown = CliRunner().invoke(app, ["show", str(unmet_run)]).output
    constant = api.load(unmet_run)[0].rounds[-1]["constant"]["metrics"]["accuracy"]
    line = next(line for line in shown.splitlines() if line.startswith("accuracy"))
    assert line.split()[2] == f"{constant:.3f}"
