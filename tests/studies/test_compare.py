"""Methods times seeds, grids, presets: every run a folder of its own."""

import os
import signal
import time

import pytest

import isonomy
from isonomy import api
from isonomy.config.schema import parse
from isonomy.errors import ConfigError, RunError, TrainingError
from isonomy.report.tables import comparison
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener, Stopped
from isonomy.studies import parallel
from isonomy.studies.compare import Method, methods, run_all, seeds
from isonomy.studies.reproduce import find, methods_of, presets, reproduce
from isonomy.studies.sweep import grid

BASE = {
    "rounds": 2,
    "data": {"name": "synthetic", "clients": 3, "examples": 300},
    "model": "logistic",
    "excess": {"clusters": "none"},
    "evaluate": {"every": 2, "bootstrap": 0},
    "compare": {
        "seeds": 2,
        "methods": [
            {"algorithm": "fedavg"},
            {"label": "prox", "algorithm": {"name": "fedprox", "mu": 1.0}, "local": {"lr": 0.05}},
        ],
    },
}


class Counting(Listener):
    def __init__(self, stop=None):
        self.began, self.stop = [], stop

    def begin(self, label, seed, done, rounds):
        self.began.append((label, done))
        if self.stop == len(self.began):
            raise Stopped("enough", 15)


def test_methods_change_only_what_they_name():
    first, second = methods(parse(BASE))
    assert (first.label, second.label) == ("fedavg", "prox")
    assert (first.config.local.lr, second.config.local.lr) == (0.1, 0.05)
    assert second.config.algorithm.options == {"mu": 1.0}
    assert first.config.compare.methods == []


def test_another_algorithm_does_not_inherit_options():
    config = parse({**BASE, "algorithm": {"name": "fedprox", "mu": 3.0}})
    assert methods(config)[0].config.algorithm.options == {}


@pytest.mark.parametrize(("given", "meant"), [(3, [5, 6, 7]), ([4, 9], [4, 9])])
def test_seeds(given, meant):
    assert seeds(parse({"seed": 5, "compare": {"seeds": given}})) == meant


@pytest.mark.parametrize("given", [0, [], [1, 1], [-1]])
def test_bad_seeds(given):
    with pytest.raises(ConfigError, match=r"compare\.seeds"):
        seeds(parse({"compare": {"seeds": given}}))


def test_run_all_uses_what_is_there_and_resumes_the_rest(tmp_path):
    chosen = methods(parse(BASE))
    with pytest.raises(Stopped):
        run_all(chosen, [0, 1], tmp_path, listeners=[Counting(stop=3)])
    listener = Counting()
    records = run_all(chosen, [0, 1], tmp_path, listeners=[listener])
    assert [(r.label, r.seed) for r in records] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("prox", 0),
        ("prox", 1),
    ]
    assert [label for label, _ in listener.began] == ["prox", "prox"]
    again = Counting()
    assert run_all(chosen, [0, 1], tmp_path, listeners=[again])[0].metrics == records[0].metrics
    assert again.began == []


def test_a_run_with_another_config_is_not_taken_for_this_one(tmp_path):
    run_all(methods(parse(BASE))[:1], [0], tmp_path)
    other = methods(parse({**BASE, "rounds": 3}))[:1]
    with pytest.raises(RunError, match="another config"):
        run_all(other, [0], tmp_path)
    (record,) = run_all(other, [0], tmp_path, overwrite=True)
    assert record.config["rounds"] == 3
    assert RunFolder(tmp_path / "fedavg" / "seed-0").complete


def test_a_grid_is_every_combination():
    config = parse({**BASE, "algorithm": "fedprox", "compare": {}})
    found = grid(config, ["algorithm.mu=0,0.1", "local.optimiser=sgd,adam"])
    assert [m.label for m in found] == [
        "fedprox mu=0, local.optimiser=sgd",
        "fedprox mu=0, local.optimiser=adam",
        "fedprox mu=0.1, local.optimiser=sgd",
        "fedprox mu=0.1, local.optimiser=adam",
    ]
    assert found[3].config.algorithm.options == {"mu": 0.1}
    assert found[3].config.local.optimiser == "adam"


@pytest.mark.parametrize("axis", ["", "local.lr", "local.lr=", "=1"])
def test_a_bad_axis_is_a_sentence(axis):
    with pytest.raises(ConfigError, match="key="):
        grid(parse(BASE), [axis])


def test_two_methods_of_one_name_are_refused():
    twice = {"methods": [{"algorithm": "fedavg"}, {"algorithm": "fedavg"}]}
    with pytest.raises(ConfigError, match="own label"):
        methods(parse({**BASE, "compare": twice}))


def test_every_preset_is_whole():
    """Presets are data: each method's config is valid, each printed number has a method."""
    from isonomy import algorithms

    for preset in presets().values():
        rows = {(m["label"], m.get("setting", "")) for m in preset.methods}
        for expected in preset.expected:
            assert (expected["method"], expected.get("setting", "")) in rows
            assert expected["metric"] in preset.metrics
        for scale in ("full", *preset.scales):
            for method in methods_of(preset, scale):
                algorithms.make(method.config.algorithm.name, method.config.algorithm.options)


def test_a_preset_gives_the_papers_numbers_beside_ours(tmp_path):
    rows = reproduce(find("focus-synthetic"), tmp_path, scale="quick")
    (faa,) = [r for r in rows if (r["method"], r["metric"]) == ("FedAvg", "faa")]
    assert faa["paper"] == 0.958
    assert faa["ours"] == pytest.approx(0.8, abs=0.08)
    assert set(faa) == {
        "preset", "method", "setting", "metric", "paper", "ours", "spread", "seeds",
        "verdict", "note",
    }  # fmt: skip


def test_an_unknown_preset_is_a_sentence():
    with pytest.raises(ConfigError, match="Did you mean 'focus-synthetic'"):
        find("focus-syntetic")


def good_and_bad():
    """A method that learns, and one that diverges."""
    base = {
        "rounds": 3,
        "data": {"name": "linear", "clients": 3, "n": 50},
        "model": "linear",
        "excess": {"clusters": "none"},
    }
    return Method.of(parse(base), "good"), Method.of(parse({**base, "local": {"lr": 1e30}}), "bad")


def test_a_run_that_diverges_does_not_cost_the_others(tmp_path):
    good, bad = good_and_bad()
    heard = Heard()
    records = run_all([bad, good], [0], tmp_path / "both", listeners=[heard])
    assert [(r.label, r.complete, bool(r.metrics)) for r in records] == [
        ("bad", False, False),
        ("good", True, True),
    ]
    assert any("bad, seed 0, diverged: round 1" in text for text in heard.notes)
    loaded = {r.label: r for r in api.load(tmp_path / "both")}
    assert loaded["bad"].facts["diverged"]["round"] == 1
    table = comparison(list(loaded.values()))
    assert "diverged in round 1: lower local.lr (now 1e+30)" in table.text()
    # with a lower rate the folder can be used again
    cured = Method.of(good.config, "bad")
    (again,) = run_all([cured], [0], tmp_path / "both")
    assert again.complete
    assert "diverged" not in again.facts
    with pytest.raises(TrainingError, match="not finite"):
        run_all([bad], [0], tmp_path / "alone")


def test_runs_made_at_once_are_those_made_in_turn(tmp_path):
    good, bad = good_and_bad()
    heard = Heard()
    turn = run_all([good], [0, 1, 2], tmp_path / "turn")
    run_all([good], [1], tmp_path / "once")
    once = run_all([bad, good], [0, 1, 2], tmp_path / "once", listeners=[heard], jobs=2)
    ended = [r for r in once if r.complete]
    assert [(r.label, r.seed) for r in ended] == [("good", 0), ("good", 1), ("good", 2)]
    assert [r.metrics for r in ended] == [r.metrics for r in turn]
    for seed in (0, 2):
        one, other = (tmp_path / way / "good" / f"seed-{seed}" for way in ("turn", "once"))
        files = [path.name for path in (one / "model").iterdir()]
        assert files
        for name in files:
            assert (one / "model" / name).read_bytes() == (other / "model" / name).read_bytes()
    assert sorted(heard.began) == [("bad", 0), ("bad", 1), ("bad", 2), ("good", 0), ("good", 2)]
    assert sum("bad, seed" in text and "diverged: round 1" in text for text in heard.notes) == 3


def test_processes_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_one", _numbered)
    monkeypatch.setattr(parallel, "PER_PROCESS", 2)
    chosen = methods(parse(BASE))[0]
    plans = [parallel.Plan(chosen.config, RunFolder(tmp_path))] * 5
    made = [report.seconds for report in parallel.at_once(plans, jobs=1)]
    assert made[0] == made[1] != made[2] == made[3] != made[4] != made[0]


def test_runs_are_reported_as_they_end_or_in_their_order(tmp_path, monkeypatch):
    """The first run waits for the end of the second."""
    config = methods(parse(BASE))[0].config
    plans = [parallel.Plan(config, RunFolder(tmp_path / name)) for name in ("slow", "quick")]
    ended = list(parallel._as_they_end(plans, 2, _slow_or_quick))
    assert [i for i, _ in ended] == [1, 0]
    monkeypatch.setattr(parallel, "_as_they_end", lambda plans, jobs, make: iter(ended))
    assert list(parallel.at_once(plans, 2)) == [ended[1][1], ended[0][1]]


def _slow_or_quick(plan):
    """A run that writes a file, or waits until it is there and a second longer."""
    sign = plan.place.path.with_name("ended")
    if plan.place.path.name == "quick":
        sign.touch()
        return parallel.Report(seconds=1.0)
    while not sign.exists():
        time.sleep(0.05)
    time.sleep(1)
    return parallel.Report(seconds=2.0)


def _numbered(plan):
    """A run that says in which process it was."""
    return parallel.Report(seconds=os.getpid())


def test_a_process_that_is_killed_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_claimed", _ended)
    chosen = methods(parse(BASE))
    with pytest.raises(RunError, match=r"was killed.*--jobs"):
        run_all(chosen, [0], tmp_path, jobs=2)


def _ended(plan):
    """A run whose process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_jobs_are_checked(tmp_path):
    with pytest.raises(ConfigError, match="jobs = 0"):
        run_all(methods(parse(BASE)), [0], tmp_path, jobs=0)
    with pytest.raises(ConfigError, match="needs a folder"):
        isonomy.compare("quickstart", jobs=2)


class Heard(Listener):
    """Keeps what a run reports."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.began: list[tuple[str, int]] = []

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        self.began.append((label, seed))

    def note(self, text: str) -> None:
        self.notes.append(text)
