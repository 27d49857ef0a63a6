"""What a user sees of a comparison: diverged methods, a stopped comparison, the constant."""

from __future__ import annotations

import os
import signal

import isonomy
from isonomy.cli.output import DIVERGED
from isonomy.errors import TrainingError
from isonomy.runs.listener import Listener
from isonomy.studies import parallel

BAD = """
[[compare.methods]]
label = "Good"
algorithm = "fedavg"

[[compare.methods]]
label = "Bad"
algorithm = "fedavg"
local = { lr = 1e30 }
"""


def test_a_method_that_diverges_stays_in_the_table_and_sets_the_exit_code(place, cli):
    (place / "both.toml").write_text((place / "tiny.toml").read_text() + BAD)
    result = cli("compare", "both.toml", "--to", "out", "--seeds", "2", code=DIVERGED)
    assert "diverged in round 1: lower local.lr (now 1e+30) or scale the features" in result.stdout
    assert "Warning: Bad diverged in 2 of 2 runs." in result.stderr
    assert "diverged in round 1" in (place / "out" / "report.html").read_text()
    again = cli("report", "out")
    assert "Bad, seed 1: diverged in round 1" in again.stdout


def test_some_seeds_that_diverge_are_a_warning(place, cli, monkeypatch):
    real = parallel.run_or_resume

    def fails_once(plan, listener):
        if plan[0].seed == 1:
            raise TrainingError("round 2: training diverged; lower local.lr, and run again.")
        real(plan, listener)

    monkeypatch.setattr(parallel, "run_or_resume", fails_once)
    result = cli("compare", "tiny.toml", "--to", "out", "--seeds", "2")
    assert "Warning: fedavg diverged in 1 of 2 runs." in result.stderr
    assert "seed 1: diverged in round 2: lower local.lr" in result.stdout


def test_a_stopped_comparison_names_its_folder_and_the_command(place, cli, monkeypatch):
    begun = []

    class Interrupt(Listener):
        def begin(self, label, seed, done, rounds):
            begun.append(label)

        def round(self, done, rounds, metrics):
            if len(begun) == 2 and done == 1:
                os.kill(os.getpid(), signal.SIGINT)

    real = isonomy.api.run_methods

    def run_methods(*given, listeners, **more):
        return real(*given, listeners=[*listeners, Interrupt()], **more)

    monkeypatch.setattr("isonomy.api.run_methods", run_methods)
    words = ["compare", "tiny.toml", "--algorithms", "fedavg,local", "--to", "my out"]
    monkeypatch.setattr("sys.argv", ["isonomy", *words, "--overwrite"])
    result = cli(*words, "--overwrite", code=128 + signal.SIGINT)
    said = result.stderr.splitlines()[-1]
    assert said == (
        "The comparison in 'my out' was stopped after 1 of 2 runs; local, seed 0, is at round 1 of "
        "2; continue with `isonomy compare tiny.toml --algorithms fedavg,local --to 'my out'`."
    )
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert [r.complete for r in isonomy.load("my out")] == [True, False]
    cli(*words)
    assert [r.complete for r in isonomy.load("my out")] == [True, True]


def test_the_constant_prediction_is_a_row(place, cli):
    result = cli("compare", "tiny.toml", "--to", "out", "--format", "csv")
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("constant prediction,")
    (record,) = isonomy.load("out")
    about = record.rounds[-1]["constant"]
    # the accuracy is the share of the most frequent training class among the test examples
    gaps = [v for name, v in about["metrics"].items() if name.endswith("demographic_parity")]
    assert gaps
    assert set(gaps) == {0.0}
    assert 0 < about["metrics"]["accuracy"] < 1


def test_a_record_is_shown_on_one_line(place):
    record = isonomy.run("tiny.toml")
    text = repr(record)
    assert text.startswith("Record('fedavg', seed=0, rounds=2, complete, accuracy=0.")
    assert len(text) < 120
