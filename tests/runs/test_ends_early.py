"""A method that ends training before the configured rounds, and PFFL that does so by its gap."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import isonomy
from isonomy import api
from isonomy.errors import ConfigError
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import resume

CONFIG: dict[str, Any] = {
    "rounds": 40,
    "data": {"name": "synthetic", "clients": 3, "examples": 300},
    "model": "logistic",
    "algorithm": {"name": "pffl", "zeta": 0.65, "B": 2.0, "track": 2, "stop": 0.05},
    "local": {"steps": 5, "batch": 0, "lr": 1.0},
    "evaluate": {"every": 40, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 3},
}


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "early"
    api.run(api.make_config(**CONFIG), folder, keep=True)
    return folder


def test_training_ends_when_the_gap_is_small(early: Path) -> None:
    record = api.load_one(early)
    lines = record.rounds
    recorded = {line["round"]: line.get("recorded", {}) for line in lines}
    nus = {round: entry["nu"] for round, entry in recorded.items() if "nu" in entry}
    assert list(nus) == list(range(2, len(lines) + 1, 2))  # every second round
    risks = [recorded[round]["risk"] for round in nus]
    small = [nu <= 0.05 * risk for nu, risk in zip(nus.values(), risks, strict=True)]
    assert small == [False] * (len(small) - 1) + [True]
    assert 2 < len(lines) < 40
    assert record.metrics["accuracy"] > 0  # the last round was evaluated
    assert f"ended training after {len(lines)} of 40 rounds" in " ".join(record.notes)
    assert record.verdict is not None
    assert record.verdict["facts"]["gap"] == pytest.approx(list(nus.values())[-1], rel=1e-5)
    assert record.verdict["facts"]["eta"] == pytest.approx(lines[-1]["recorded"]["eta"], rel=1e-5)
    page = isonomy.write_report([record], early / "page.html").read_text()
    assert "Recorded by the methods" in page


def test_a_run_that_ended_early_is_the_same_after_a_stop(early: Path, tmp_path: Path) -> None:
    """Killed before the end was written, and killed at the checkpoint before that."""
    expected = RunFolder(early)
    for name, states in (("end", 1), ("before", 2)):
        folder = shutil.copytree(early, tmp_path / name)
        (folder / "summary.json").unlink()
        place = RunFolder(folder)
        for round in place.checkpoints()[: states - 1]:
            for path in (folder / "checkpoint").glob(f"*{round}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert len(place.checkpoints()) >= 1
        resume(folder, keep=True)
        assert place.lines("rounds.jsonl") == expected.lines("rounds.jsonl")
        assert place.verdict() == expected.verdict()
        one, other = (f / "model" / "model.safetensors" for f in (folder, early))
        assert one.read_bytes() == other.read_bytes()


def test_the_number_of_rounds_on_the_card_is_that_of_the_run(early: Path, tmp_path: Path) -> None:
    api.export(early, tmp_path / "model")
    rounds = len(RunFolder(early).lines("rounds.jsonl"))
    assert api.load_model(tmp_path / "model").card.origin.round == rounds


def test_what_cannot_be_tracked_is_refused() -> None:
    with pytest.raises(ConfigError, match="linear model"):
        api.run(api.make_config(**(CONFIG | {"model": {"name": "mlp", "hidden": [4]}})))
    with pytest.raises(ConfigError, match="all clients in every round"):
        api.run(api.make_config(**CONFIG, cohort={"size": 2}))


def test_without_stop_every_round_is_run_and_the_gap_recorded() -> None:
    options = {key: v for key, v in CONFIG["algorithm"].items() if key != "stop"}
    record = api.run(api.make_config(**(CONFIG | {"algorithm": options, "rounds": 5})))
    assert [("nu" in line["recorded"]) for line in record.rounds[1:]] == [True, False, True, False]
    json.dumps(record.rounds)
