"""Excess risk: surrogates chosen on held-out examples, standard errors, measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import isonomy
from isonomy.cli import app
from isonomy.errors import RunError
from isonomy.metrics import excess, faa, faa_interval, paired
from isonomy.report.figures import all_figures
from isonomy.runs import surrogate
from isonomy.runs.build import build

# 60 examples for 50 features: a client on its own overfits, and more so the longer it trains
SCARCE: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "linear", "clients": 4, "d": 50, "n": 60, "n_test": 400, "sigma": 1.0},
    "model": {"name": "linear"},
    "algorithm": {"name": "focus", "models": 2},
    "local": {"steps": 5, "batch": 0, "lr": 0.05},
    "evaluate": {"every": 3, "bootstrap": 0},
}


def scarce(steps: int, **changes: Any) -> Any:
    about = {"clusters": "true", "steps": steps, "batch": 0}
    return isonomy.make_config(**{**SCARCE, **changes}, excess=about)


def test_the_length_of_the_surrogate_does_not_decide_the_answer() -> None:
    """Ten times the steps: FAA moves with a surrogate of fixed length, not with the chosen one."""
    short, long = (isonomy.run(scarce(steps, algorithm="fedavg")) for steps in (40, 400))
    print(short.excess["by_length"], long.excess["by_length"], short.metrics, long.metrics)
    fixed = [run.excess["by_length"][-1] for run in (short, long)]
    assert abs(fixed[0] - fixed[1]) > 0.4
    assert abs(short.metrics["faa"] - long.metrics["faa"]) < 0.1 * abs(fixed[0] - fixed[1])


def test_no_excess_is_negative_beyond_chance() -> None:
    """With a surrogate of two steps, the model itself is better, and is then the reference."""
    weak = isonomy.run(scarce(2, algorithm="local", rounds=3))
    assert any(weak.excess["better"])
    for value, error, better in zip(
        weak.excess["excess"], weak.excess["error"], weak.excess["better"], strict=True
    ):
        assert value == 0 if better else value > -4 * error
    (said,) = [note for note in weak.notes if note.startswith("FAA: ")]
    assert "better than the surrogate beyond chance at" in said
    assert weak.metrics["faa"] == pytest.approx(faa(weak.excess["excess"]))


def test_held_out_examples_are_not_trained_on() -> None:
    setting = build(scarce(10))
    data = setting.clean
    found = surrogate._pooled(data, (0, 0, 0, 1), "test")
    assert found.sizes("validation").tolist() == [
        int(data.sizes("validation")[:3].sum()),
        int(data.sizes("validation")[3]),
    ]
    carved = surrogate._pooled(data, (0, 0, 0, 1), "validation")  # evaluated on validation
    train = int(data.sizes("train")[3])
    assert carved.size(1, "validation") == train // 10
    assert carved.size(1, "train") == train - train // 10
    for k in (0, 1):
        rows = {tuple(x.tolist()) for x in carved.x[carved.rows(k, "train")]}
        held = {tuple(x.tolist()) for x in carved.x[carved.rows(k, "validation")]}
        assert not rows & held


def test_a_client_without_held_out_examples_uses_the_model_of_all() -> None:
    """Nine training examples, none of them held out: the surrogate is that of all clients."""
    tiny = {"name": "linear", "clients": 3, "d": 5, "n": 9, "n_test": 50}
    setting = build(isonomy.make_config(**{**SCARCE, "data": tiny}, excess={"steps": 20}))
    own = surrogate._reference(setting.clean, setting.task, (0, 1, 2), SCHEDULE, 2, "validation", 0)
    assert [choice.trained for choice in own.choices] == ["all"] * 3
    assert [choice.held_out for choice in own.choices] == [0] * 3
    assert all(choice.loss is None for choice in own.choices)


SCHEDULE = isonomy.make_config(local={"steps": 5, "batch": 0, "lr": 0.05}).local


# --- errors and intervals -------------------------------------------------------------------------


def test_paired_by_hand() -> None:
    own, other = np.array([1.0, 2.0, 4.0]), np.array([0.5, 1.0, 1.0])
    found = paired([own], [other])
    gap = own - other  # 0.5, 1, 3
    assert found.excess[0] == pytest.approx(1.5)
    assert found.error[0] == pytest.approx(np.sqrt(((gap - 1.5) ** 2).sum() / 2 / 3))
    assert found.better[0] == 0
    far = paired([other + np.array([0.0, 0.01, 0.02])], [own + 5])
    assert (far.excess[0], far.error[0], far.better[0]) == (0, 0, 1)
    assert np.isnan(paired([own[:1]], [other[:1]]).error[0])


def test_the_interval_of_faa_covers() -> None:
    """Losses as skewed as those of a classifier; the model is as good as the surrogate or worse."""
    rng = np.random.default_rng(0)
    true = np.array([0.0, 0.0, 0.1, 0.3, 0.05])
    inside = wrong = 0
    for _ in range(400):
        floor = [rng.exponential(0.3, size=200) for _ in true]
        losses = [at + rng.normal(t, 0.3, size=200) for at, t in zip(floor, true, strict=True)]
        found = paired(losses, floor)
        low, high = faa_interval(found)
        inside += low <= 0.3 <= high
        wrong += bool(found.better.any())
    assert inside >= 0.95 * 400
    assert wrong <= 0.05 * 400 + 3 * np.sqrt(0.05 * 0.95 * 400)


# --- where it is shown, and measured again --------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("excess") / "run"
    isonomy.run(scarce(100), folder)
    return folder


def test_measured_again_from_the_folder(run: Path) -> None:
    record = isonomy.load(run)[0]
    again = isonomy.excess(run)
    assert again.faa == record.metrics["faa"]
    assert (again.low, again.high) == (record.metrics["faa:low"], record.metrics["faa:high"])
    assert again.excess == record.clients["excess_loss"][-4:]
    assert again.error == record.clients["excess_error"][-4:]
    assert again.plain() == record.excess
    other = isonomy.excess(run, steps=300, checkpoints=3, lr=0.02, clusters="one")
    assert other.lengths == [100, 200, 300]
    assert set(other.clusters) == {0}
    assert other.faa != again.faa
    found = isonomy.excess(run, clusters="found")
    assert found.clusters == record.clients["cluster"][-4:]
    loss = record.clients["loss"][-4:]
    assert again.excess == pytest.approx(excess(loss, again.surrogate_loss).tolist(), abs=1e-6)


def test_runs_without_clusters_or_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not a run|no config"):
        isonomy.excess(tmp_path)
    short = scarce(10, data={"name": "synthetic"}, model={"name": "logistic"}, algorithm="fedavg")
    isonomy.run(short, tmp_path / "run")
    with pytest.raises(RunError, match="--clusters"):
        isonomy.excess(tmp_path / "run")
    with pytest.raises(RunError, match="--clusters"):
        isonomy.excess(tmp_path / "run", clusters="found")


def test_the_command(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "excess.json"
    result = CliRunner().invoke(app, ["excess", str(run), "--steps", "50", "--json", str(to)])
    assert result.exit_code == 0, result.output
    for text in ("standard error", "outlier 3", "FAA against surrogates", "up to 50 sgd steps"):
        assert text in result.output
    found = json.loads(to.read_text())
    assert found["lengths"][-1] == 50
    assert f"FAA {found['faa']:.4f}, 95 % interval [{found['low']:.4f}" in result.output


def test_the_schedule_is_wherever_faa_is(run: Path) -> None:
    record = isonomy.load(run)[0]
    text = isonomy.table([record])
    assert "up to 100 sgd steps, full batches, learning rate 0.05" in text
    assert "Surrogate, seed 0: Chosen by cluster: 0: " in text
    assert "up to 100 sgd steps" in " ".join(record.notes)
    figure = {figure.name: figure for figure in all_figures([record])}["excess"]
    clients, lengths = (view.chart.marks for view in figure.views)
    assert list(clients[0].y) == pytest.approx(record.clients["excess_loss"][-4:], 1e-6)
    names = [mark.name for mark in lengths]
    assert names == ["focus (models=2)"] * 2 + ["focus (models=2), chosen surrogate"]
    assert list(lengths[0].x) == [10 * (i + 1) for i in range(10)]


def test_the_number_of_clusters_is_shown(run: Path) -> None:
    record = isonomy.load(run)[0]
    assert len(set(record.clients["cluster"][-4:])) == 2
    assert record.metrics["clusters"] == len(set(record.clients["cluster"][-4:]))
    text = isonomy.table([record])
    assert "clusters found" in text
    members: dict[int, list[str]] = {}
    for name, cluster in zip(
        record.clients["name"][-4:], record.clients["cluster"][-4:], strict=True
    ):
        members.setdefault(cluster, []).append(name)
    for cluster, names in members.items():
        assert f"{cluster}: {', '.join(names)}" in text
    drawn = {figure.name: figure for figure in all_figures([record])}["clients"]
    assert not any("cluster" in view.title or "_" in view.title for view in drawn.views)
