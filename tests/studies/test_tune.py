"""Tuning: equal budgets, validation examples only, and a study that survives being killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

import isonomy
from isonomy.config.files import read
from isonomy.config.schema import Config, parse
from isonomy.core.examples import SPLITS
from isonomy.data.federation import Federation
from isonomy.errors import ConfigError, RunError, TrainingError
from isonomy.runs import build
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener
from isonomy.studies import parallel
from isonomy.studies.claims import claimed
from isonomy.studies.compare import methods
from isonomy.studies.search import Trial
from isonomy.studies.tuned import Tuned

BASE: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 3, "examples": 300},
    "model": "logistic",
    "local": {"lr": 0.002, "batch": 0},  # far too small a rate
    "engine": "loop",
    "evaluate": {"every": 2, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 1},
}


class Heard(Listener):
    """Counts the rounds, and may kill the process in one of them."""

    def __init__(self, last: int = 0) -> None:
        self.rounds, self.last, self.notes = 0, last, list[str]()
        self.began: list[str] = []

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        self.began.append(label)

    def round(self, done: int, rounds: int, metrics: Any) -> None:
        self.rounds += 1
        if self.rounds == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Two methods, ten trials each."""
    folder = tmp_path_factory.mktemp("study")
    return isonomy.tune(parse(BASE), ["fedavg", "fedprox"], folder, trials=10)


def test_a_bad_default_is_improved(study):
    for name in ("fedavg", "fedprox"):
        best, default = study.best(name), study.default(name)
        assert default.config.local.lr == 0.002
        assert best.values["accuracy"] > default.values["accuracy"] + 0.02
        assert best.config.local.lr > 0.01


def test_every_method_has_the_same_budget(study):
    assert [len(study.of(name)) for name in study.methods] == [10, 10]
    assert {trial.config.rounds for trial in study.trials} == {4}
    assert [t.number for t in study.trials] == [*range(10)] * 2
    for trial in study.trials:
        place = RunFolder(study.folder / trial.method / f"trial-{trial.number:03d}" / "seed-0")
        done = len(place.lines("rounds.jsonl"))
        assert done == 4 if trial.state == "complete" else 0 < done < 4
        assert place.complete == (trial.state == "complete")


def test_trials_that_are_worse_than_the_median_are_pruned(study):
    pruned = [trial for trial in study.trials if trial.state == "pruned"]
    assert pruned
    assert all(trial.number >= 5 and "after round 2 of 4" in trial.why for trial in pruned)
    assert not any(trial.values for trial in pruned)


def test_values_are_those_of_the_runs_on_validation_examples(study):
    trial = study.best("fedprox")
    again = isonomy.run(trial.config)
    assert again.metrics["accuracy"] == trial.values["accuracy"]
    assert again.config["evaluate"]["split"] == "validation"


def test_the_results_say_what_was_found(study):
    text = study.table().text()
    assert "10 trials per method, 4 rounds each" in text
    assert f"lr={study.best('fedprox').parameters['local.lr']:.3g}" in text
    told = json.loads((study.folder / "tuned.json").read_text())
    assert told == study.plain()
    assert told["best"]["fedavg"]["values"] == study.best("fedavg").values
    with pytest.raises(ConfigError, match="unknown method 'fedavgg'"):
        study.best("fedavgg")


def test_tuned_toml_compares_the_best_on_test_examples(study):
    made = read(study.folder / "tuned.toml")
    assert made == study.tuned_config()
    found = methods(made)
    assert [method.label for method in found] == ["fedavg", "fedprox"]
    for method in found:
        best = study.best(method.label).config
        assert (method.config.algorithm, method.config.local) == (best.algorithm, best.local)
        assert method.config.evaluate.split == "test"
        assert method.config.data == best.data
    (record, _) = isonomy.compare(study.folder / "tuned.toml")
    assert record.config["evaluate"]["split"] == "test"


def test_a_complete_study_runs_nothing_again(study):
    heard = Heard()
    again = isonomy.tune(
        parse(BASE), ["fedavg", "fedprox"], study.folder, trials=10, listeners=[heard]
    )
    assert heard.began == []
    assert again.plain() == study.plain()
    fewer = isonomy.tune(parse(BASE), ["fedprox"], study.folder, trials=3, listeners=[heard])
    assert heard.began == []
    assert [t.plain() for t in fewer.trials] == [t.plain() for t in study.of("fedprox")[:3]]


@pytest.mark.parametrize("end", [1, 26])  # in the first trial, and in a later one
def test_a_study_that_was_killed_continues_to_the_same_trials(study, tmp_path, end):
    pid = os.fork()
    if not pid:
        try:
            isonomy.tune(parse(BASE), ["fedprox"], tmp_path, trials=10, listeners=[Heard(end)])
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    heard = Heard()
    again = isonomy.tune(parse(BASE), ["fedprox"], tmp_path, trials=10, listeners=[heard])
    assert len(heard.began) < 10 or end == 1
    assert [t.plain() for t in again.trials] == [t.plain() for t in study.of("fedprox")]
    for trial in again.trials:
        one, other = (
            folder / "fedprox" / f"trial-{trial.number:03d}" / "seed-0" / "rounds.jsonl"
            for folder in (tmp_path, study.folder)
        )
        assert one.read_bytes() == other.read_bytes()


def test_test_examples_have_no_influence(monkeypatch):
    small = parse({**BASE, "rounds": 2, "local": {"batch": 0}})
    kept = isonomy.tune(small, ["fedavg"], trials=3)
    measured = isonomy.run(small).metrics["accuracy"]
    _forget(monkeypatch, _with_other_test_labels)
    changed = isonomy.tune(small, ["fedavg"], trials=3)
    assert changed.plain() == kept.plain()
    assert isonomy.run(small).metrics["accuracy"] != measured  # the change does show on test


def _forget(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let every federation be loaded anew, with a change."""
    load = build.load
    monkeypatch.setattr(build, "load", lambda *given, **named: change(load(*given, **named)))
    build._load.cache_clear()
    monkeypatch.setattr(build, "_warned", type(build._warned)())


@pytest.fixture(autouse=True)
def _no_changed_data_is_left():
    yield
    build._load.cache_clear()


def _with_other_test_labels(federation: Federation) -> Federation:
    y = federation.y.clone()
    for client in range(len(federation)):
        rows = federation.rows(client, "test")
        y[rows] = 1 - y[rows]
    object.__setattr__(federation, "y", y)
    return federation


def test_data_without_validation_examples_are_refused(monkeypatch):
    def without(federation: Federation) -> Federation:
        ranges = federation.ranges.clone()
        at = SPLITS.index("validation")
        ranges[:, at, 1] = ranges[:, at, 0]
        object.__setattr__(federation, "ranges", ranges)
        return federation

    _forget(monkeypatch, without)
    with pytest.raises(ConfigError, match="no validation examples, and tuning never uses test"):
        isonomy.tune(parse(BASE), ["fedavg"], trials=1)


def test_trials_that_diverge_are_counted_and_listed(tmp_path):
    config = parse(
        {
            **BASE,
            "data": {"name": "linear", "clients": 3, "n": 50},
            "model": "linear",
            "local": {"lr": 1e30},
        }
    )
    heard = Heard()
    found = isonomy.tune(config, ["fedavg"], tmp_path, trials=4, listeners=[heard])
    assert found.objectives == ["loss"]  # there are no classes
    assert found.default("fedavg").state == "failed"
    assert found.best("fedavg").number > 0
    assert any("fedavg, trial 0 counts as failed: round 1" in text for text in heard.notes)
    assert any("trial 0, failed: round 1" in note for note in found.table().footnotes)
    with pytest.raises(TrainingError, match="no trial of any method is complete: round 1"):
        isonomy.tune(config, ["fedavg"], trials=1)


def test_a_method_without_a_complete_trial_is_left_out(tmp_path):
    config = parse(
        {
            **BASE,
            "compare": {
                "methods": [
                    {"label": "bad", "algorithm": "fedavg", "local": {"lr": 1e30}},
                    {"label": "good", "algorithm": "fedavg", "local": {"lr": 0.01}},
                ]
            },
            "data": {"name": "linear", "clients": 3, "n": 50},
            "model": "linear",
        }
    )
    heard = Heard()
    found = isonomy.tune(config, folder=tmp_path, trials=1, listeners=[heard])
    assert found.usable == ["good"]
    assert [m["label"] for m in found.tuned_config().compare.methods] == ["good"]
    assert "no trial of bad is complete, so it has no best one." in heard.notes
    assert "bad" in found.table().text()
    with pytest.raises(ConfigError, match="no trial of 'bad' is complete"):
        found.best("bad")


def test_values_are_means_over_seeds(tmp_path):
    config = parse({**BASE, "rounds": 2})
    found = isonomy.tune(config, ["fedavg"], tmp_path, trials=2, seeds=[0, 4])
    for trial in found.trials:
        alone = [
            isonomy.run(trial.config.model_copy(update={"seed": seed})).metrics["accuracy"]
            for seed in (0, 4)
        ]
        assert trial.values["accuracy"] == pytest.approx(sum(alone) / 2)
        assert alone[0] != alone[1]
    assert "means over the seeds 0, 4" in found.table().text()
    with pytest.raises(RunError, match="another config"):  # its trials had two seeds
        isonomy.tune(config, ["fedavg"], tmp_path, trials=2)


def same_at_once(study: Tuned, folder: Path, trials: int) -> None:
    heard = Heard()
    at_once = isonomy.tune(
        parse(BASE), ["fedavg", "fedprox"], folder, trials=trials, jobs=2, listeners=[heard]
    )
    first = [t.plain() for name in study.methods for t in study.of(name)[:trials]]
    assert [t.plain() for t in at_once.trials] == first
    assert len(heard.began) == 2 * trials


class OneByOne(Executor):
    """Runs a function when it is submitted, in this process: torch.func is not safe in threads."""

    def __init__(self, jobs, configs):
        self.jobs = jobs

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_jobs_do_not_change_the_trials(study, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "processes", OneByOne)
    monkeypatch.setattr(parallel, "PER_PROCESS", 4)
    same_at_once(study, tmp_path, 7)


@pytest.mark.slow
def test_jobs_in_processes_do_not_change_the_trials(study, tmp_path):
    same_at_once(study, tmp_path, 6)


def test_overwrite_replaces_the_trials_and_nothing_else(tmp_path):
    config = parse({**BASE, "rounds": 2})
    isonomy.tune(config, ["fedavg"], tmp_path, trials=2)
    (tmp_path / "mine.txt").write_text("kept")
    longer = parse({**BASE, "rounds": 3})
    with pytest.raises(RunError, match="another config"):
        isonomy.tune(longer, ["fedavg"], tmp_path, trials=1)
    found = isonomy.tune(longer, ["fedavg"], tmp_path, trials=1, overwrite=True)
    assert found.best("fedavg").config.rounds == 3
    assert sorted(p.name for p in (tmp_path / "fedavg").iterdir()) == [
        "trial-000",
        "trials.journal",
    ]
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_trials_that_another_process_makes_are_not_deleted(tmp_path):
    with claimed(tmp_path / "fedavg"), pytest.raises(RunError, match="is tuning in"):
        isonomy.tune(parse(BASE), ["fedavg"], tmp_path, trials=1, overwrite=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trials": 0}, "trials = 0: give the number"),
        ({"jobs": 0}, "jobs = 0: give the number"),
        ({"jobs": 2}, "needs a folder"),
        ({"seeds": []}, "seeds = "),
        ({"objectives": ["group.sex.demographic_parity"]}, r"unknown metric of fedavg 'group\.sex"),
        ({"objectives": ["faa:low"]}, "neither more nor less"),
        ({"fixed": ["algorithm.mu"]}, "unknown key to fix"),
    ],
)
def test_mistakes_are_found_before_anything_runs(given, words):
    heard = Heard()
    with pytest.raises(ConfigError, match=words):
        isonomy.tune(parse(BASE), ["fedavg"], listeners=[heard], **given)
    assert heard.began == []


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'isonomy\[tune\]'"):
        isonomy.tune(parse(BASE), ["fedavg"], trials=1)


# --- several objectives --------------------------------------------------------------------------

BOTH = ["accuracy", "group.z.demographic_parity"]


def tuned(**values: list[tuple[float, float]]) -> Tuned:
    """Trials with these values, by method."""
    config: Config = parse(BASE)
    rows = [
        Trial(name, i, "complete", {}, dict(zip(BOTH, pair, strict=True)), "", config)
        for name, pairs in values.items()
        for i, pair in enumerate(pairs)
    ]
    return Tuned(config, dict.fromkeys(values, config), BOTH, [0], rows)


def test_of_several_objectives_the_point_nearest_to_the_best_of_each():
    # ranges over the fronts of both methods: accuracy 0.5 to 0.9, gap 0.0 to 0.4
    found = tuned(a=[(0.9, 0.4), (0.8, 0.1), (0.7, 0.3), (0.5, 0.0)], b=[(0.6, 0.2), (0.5, 0.3)])
    assert [t.number for t in found.front("a")] == [0, 1, 3]
    assert found.best("a").number == 1  # (1/4)^2 + (1/4)^2, against 1 and 1
    assert found.best("b").number == 0
    assert "nearest to the best value of each" in found.table().text()


def test_a_study_with_two_objectives(tmp_path):
    config = parse({**BASE, "rounds": 2})
    found = isonomy.tune(config, ["fedfb"], tmp_path, trials=4, objectives=BOTH)
    assert {t.state for t in found.trials} == {"complete"}  # nothing is pruned
    assert found.best("fedfb") in found.front("fedfb")
    assert all(set(t.values) == set(BOTH) for t in found.trials)
    again = isonomy.tune(config, ["fedfb"], tmp_path, trials=4, objectives=BOTH)
    assert again.plain() == found.plain()
