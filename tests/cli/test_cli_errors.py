"""Mistakes of a user: one sentence, exit code 2, nothing written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isonomy.cli import shell


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("roundz=2", ["'roundz'", "Did you mean 'rounds'?"]),
        ("local.epoch=2", ["'local.epoch'", "Did you mean 'epochs'?"]),
        ("nonsense.key=2", ["'nonsense'"]),
        ("lr=0.01", ["'lr'", "Did you mean 'local.lr'"]),
        ("excess=nothing", ["excess.clusters", "'none'"]),
        ("local.lr=-1", ["local.lr", "above 0"]),
        ("rounds=0", ["rounds", "at least 1"]),
        ("rounds=two", ["rounds", "'two'", "a whole number"]),
        ("evaluate.split=tset", ["evaluate.split", "'test'"]),
        ("cohort.dropout=1.5", ["cohort.dropout", "below 1"]),
        ("local=3", ["local", "a table"]),
        ("algorithm=fedavgg", ["'fedavgg'", "Did you mean 'fedavg'?"]),
        ("algorithm.mu=1", ["algorithm.mu", "weight"]),
        ("algorithm.weight=heavy", ["algorithm.weight", "'equal'"]),
        ("data.name=sinthetic", ["'sinthetic'", "Did you mean 'synthetic'?"]),
        ("data.example=10", ["'example'", "Did you mean 'examples'?"]),
        ("data.partition=irid", ["'irid'", "Did you mean 'iid'?"]),
        ("model=mpl", ["'mpl'", "Did you mean 'mlp'?"]),
        ("model.hiden=[4]", ["'hiden'", "hidden"]),
        ("cohort.size=50", ["cohort.size", "3 clients"]),
        ("rounds", ["'rounds'", "key=value"]),
        ("=2", ["'=2'", "key=value"]),
    ],
)
def test_a_bad_key_or_value_is_named(place, refused, override, words):
    sentence = refused("run", "tiny.toml", override, "--to", "out")
    for word in words:
        assert word in sentence
    assert not (place / "out").exists()


def test_a_model_that_does_not_fit_the_data(place, refused):
    sentence = refused("run", "tiny.toml", "model=cnn", "--to", "out")
    assert "cnn" in sentence
    assert "images" in sentence
    assert not (place / "out").exists()


def test_training_that_diverges_leaves_no_summary(place, refused):
    sentence = refused("run", "tiny.toml", "local.lr=1e9", "--to", "out")
    assert "local.lr" in sentence
    assert "finite" in sentence
    assert not (place / "out" / "summary.json").exists()
    assert not (place / "out" / "report.html").exists()


def test_a_file_that_is_not_toml(place, refused):
    (place / "broken.toml").write_text("rounds = [")
    assert "'broken.toml'" in refused("run", "broken.toml")
    (place / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "'binary.toml'" in refused("run", "binary.toml")
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "absent.toml"], ["'absent.toml'"]),
        (["run", "quikstart"], ["Did you mean 'quickstart'?"]),
        (["run", "focus-synthetic"], ["isonomy reproduce focus-synthetic"]),
        (["run", "."], ["'.'"]),
        (["run"], ["CONFIG", "isonomy run --help"]),
        (["run", "tiny.toml", "--fast"], ["--fast", "isonomy run --help"]),
        (["--fast"], ["--fast", "isonomy --help"]),
        (["rum"], ["rum"]),
        (["ls", "algorithm"], ["'algorithm'", "Did you mean 'algorithms'?"]),
        (["show", "fedprx"], ["Did you mean 'fedprox'?"]),
        (["show", "client.accuracy.wurst10"], ["client.accuracy.wurst10"]),
        (["show", "no.such.module:Thing"], ["no.such.module"]),
        (["show", "isonomy.errors:Thing"], ["Thing"]),
        (["reproduce", "focus-sinthetic"], ["Did you mean 'focus-synthetic'?"]),
        (["reproduce", "focus-synthetic", "--seeds", "0"], ["seeds"]),
        (["reproduce", "focus-synthetic", "--seeds", "many"], ["--seeds many"]),
        (["reproduce", "focus-synthetic", "--seeds", "4,4"], ["seeds"]),
        (["compare", "rounds=2"], ["config", "TOML"]),
        (["compare", "tiny.toml", "tiny.toml"], ["'fedavg'", "label"]),
        (["compare", "tiny.toml", "--seeds", "many"], ["--seeds many"]),
        (["compare", "tiny.toml", "--seeds", "0"], ["seeds"]),
        (["compare", "tiny.toml", "--seeds", "1,1"], ["seeds"]),
        (["compare", "tiny.toml", "--algorithms", ","], ["algorithm"]),
        (["compare", "tiny.toml", "--algorithms", "local,fedavgg"], ["Did you mean 'fedavg'?"]),
        (["compare", "tiny.toml", "--format", "pdf"], ["'pdf'", "latex"]),
        (["compare", "tiny.toml", "--columns", "accuraccy"], ["Did you mean 'accuracy'?"]),
        (["compare", "tiny.toml", "--columns", "group.nobody.max_loss"], ["of these runs"]),
        (["compare", "tiny.toml", "--columns", "accuracy,faa"], ["metric of these runs 'faa'"]),
        (
            ["reproduce", "focus-synthetic", "--only", "q-FFL q"],
            ["did you mean 'q-FFL q = 0.1' or"],
        ),
        (["reproduce", "focus-synthetic", "--only", "FedProxy"], ["Did you mean 'FedProx'?"]),
        (["data", "list"], ["no such command 'list'. Did you mean 'ls'? See"]),
        (["sweep", "tiny.toml", "rounds=2"], ["algorithm.mu=0,0.1,1"]),
        (["sweep", "tiny.toml", "rounds=2,x"], ["rounds", "'x'"]),
        (["sweep", "tiny.toml", "local.lr"], ["key=value"]),
        (["resume", "absent"], ["'absent'"]),
        (["report", "absent"], ["'absent'"]),
        (["data", "get", "adlt"], ["Did you mean 'adult'?"]),
    ],
)
def test_a_bad_command_is_refused_before_anything_is_written(place, refused, arguments, words):
    sentence = refused(*arguments)
    for word in words:
        assert word in sentence
    assert [path.name for path in place.iterdir()] == ["tiny.toml"]


def test_a_method_that_cannot_run_is_found_before_the_first_is_run(place, refused):
    text = (place / "tiny.toml").read_text()
    text += '[[compare.methods]]\nalgorithm = "local"\n'
    text += '[[compare.methods]]\nalgorithm = "fedavg"\nmodel = { name = "cnn" }\n'
    (place / "two.toml").write_text(text)
    assert "cnn" in refused("compare", "two.toml")
    assert not (place / "runs").exists()


def test_a_run_is_overwritten_only_with_the_option(place, cli, refused):
    cli("run", "tiny.toml", "--to", "out", "--no-report")
    sentence = refused("run", "tiny.toml", "--to", "out")
    assert "--overwrite" in sentence
    cli("run", "tiny.toml", "rounds=1", "--to", "out", "--overwrite", "--no-report")


def test_a_file_that_cannot_be_written_is_reported(place, cli, refused):
    cli("compare", "tiny.toml", "--to", "out")
    (place / "taken").write_text("")
    assert "'taken/table.md'" in refused(
        "compare", "tiny.toml", "--to", "out", "--out", "taken/table.md"
    )


def test_an_unexpected_error_is_one_sentence_unless_debugging(place, cli, monkeypatch):
    def explode(*args, **kwargs):
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("isonomy.runs.training.run", explode)
    result = cli("run", "tiny.toml", code=1)
    assert "ZeroDivisionError: by zero" in result.stderr
    assert "ISONOMY_DEBUG=1" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    monkeypatch.setenv(shell.DEBUG, "1")
    result = cli("run", "tiny.toml", code=1)
    assert "Traceback" in result.stderr


def test_an_interrupt_outside_the_rounds_is_130(place, cli, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("isonomy.runs.training.run", interrupted)
    result = cli("run", "tiny.toml", code=130)
    assert result.stderr == "Error: interrupted.\n"


def test_an_interrupted_run_names_the_verb_that_continues_it(place, cli):
    arguments = [sys.executable, "-m", "isonomy.cli", "run", "tiny.toml"]
    arguments += ["rounds=100000", "evaluate.every=10", "--to", "out"]
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    streamed = place / "out" / "rounds.jsonl"
    for _ in range(2400):
        if streamed.exists() and streamed.stat().st_size > 1000:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert err.splitlines() == [line for line in err.splitlines() if "isonomy resume out" in line]
    assert "Traceback" not in err
    # its own config says when it ends, so that the test need not wait for it
    config = place / "out" / "config.toml"
    done = int(err.split("round ")[1].split(";")[0])
    config.write_text(config.read_text().replace("rounds = 100000", f"rounds = {done + 3}"))
    result = cli("resume", "out")
    assert f"continues after round {done} of {done + 3}" in result.stdout
    assert (place / "out" / "report.html").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_broken_pipe_is_not_an_error():
    arguments = [sys.executable, "-m", "isonomy.cli", "show", "config"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (1, shell.BROKEN_PIPE)


def test_the_real_program_gives_a_sentence_and_code_2(place: Path):
    arguments = [sys.executable, "-m", "isonomy.cli", "run", "tiny.toml", "roundz=3"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Did you mean 'rounds'?" in done.stderr
