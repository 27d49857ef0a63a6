"""Trackers of experiments, read back with the trackers' own programs.

MLflow needs other versions of some packages than the rest, so its tests are skipped where it is not
installed; the reference to it in the docs says how to install it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

import isonomy
from isonomy.config.schema import TrackConfig
from isonomy.errors import ConfigError, RunError
from isonomy.runs.trackers import base, registry


def config(**changes):
    return isonomy.make_config(
        **{
            "data": {"name": "synthetic", "examples": 200, "clients": 3},
            "model": "linear",
            "rounds": 4,
            "evaluate": {"every": 2, "bootstrap": 0},
            "checkpoint": {"every": 1},
            "front": {"rays": 0},
            "excess": "none",
            **changes,
        }
    )


def measured(record, name):
    """The metric by round."""
    return {line["round"]: line["metrics"][name] for line in record.rounds if "metrics" in line}


class Stop(isonomy.Listener):
    def round(self, done, rounds, metrics):
        if done == 2:
            raise KeyboardInterrupt


class Notes(isonomy.Listener):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed"
)
needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="MLflow is not installed"
)
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="Weights & Biases is not installed"
)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def text_of(found, tag):
    (event,) = found.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_event_files(tmp_path):
    track = {"name": "tensorboard", "to": str(tmp_path / "events"), "project": "trial"}
    made = config(algorithm={"name": "pffl", "zeta": 10.0}, track=[track])
    record = isonomy.run(made, tmp_path / "run")
    (folder,) = (tmp_path / "events" / "trial").iterdir()
    found = events(folder)
    for tag, name in (("accuracy", "accuracy"), ("client/accuracy.std", "client.accuracy.std")):
        got = {event.step: event.value for event in found.Scalars(tag)}
        assert got == pytest.approx(measured(record, name))
    toml = text_of(found, "config").removeprefix("```toml\n").removesuffix("\n```")
    assert tomllib.loads(toml)["algorithm"] == {"name": "pffl", "zeta": 10.0}
    verdict = json.loads(text_of(found, "verdict").removeprefix("```json\n").removesuffix("\n```"))
    assert verdict == record.verdict
    assert str(tmp_path / "run") in text_of(found, "files")
    names = json.loads((tmp_path / "run" / "trackers.json").read_text())
    assert names == {"tensorboard": {"run": str(folder), "round": 4}}
    assert isonomy.run(made).rounds == record.rounds  # a second run has a folder of its own
    assert len(list((tmp_path / "events" / "trial").iterdir())) == 2


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resumed_run_continues_its_log(tmp_path):
    made = config(track=[{"name": "tensorboard", "to": str(tmp_path / "events")}])
    with pytest.raises(KeyboardInterrupt):
        isonomy.run(made, tmp_path / "run", listeners=[Stop()])
    record = isonomy.resume(tmp_path / "run")
    (folder,) = (tmp_path / "events" / "isonomy").iterdir()
    steps = {event.step: event.value for event in events(folder).Scalars("loss")}
    assert steps == pytest.approx(measured(record, "loss"))


@needs_wandb
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = config(track=[{"name": "wandb", "to": str(tmp_path), "project": "trial"}])
    record = isonomy.run(made, tmp_path / "run")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    rows, settings, files = read_offline(next(folder.glob("*.wandb")))
    assert {r["round"]: r["loss"] for r in rows} == pytest.approx(measured(record, "loss"))
    assert settings["algorithm"]["name"] == "fedavg"
    assert {"config.toml", "report.html"} <= files
    assert any(name.startswith("model/") for name in files)


def read_offline(path):
    """History, config and the names of an artefact's files, from W&B's transaction log."""
    from wandb.proto import wandb_internal_pb2

    rows, settings, files = [], {}, set()
    for data in log_records(path.read_bytes()[7:]):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {}
            for item in record.history.item:
                row[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
            rows.append(row)
        for item in (*record.run.config.update, *record.config.update):
            settings[item.key] = json.loads(item.value_json)
        for entry in record.request.log_artifact.artifact.manifest.contents:
            files.add(entry.path)
        for entry in record.artifact.manifest.contents:
            files.add(entry.path)
    return rows, settings, files


def log_records(content, block=32768):
    """The records of a LevelDB log after a header of 7 bytes: in blocks, split at their ends."""
    at, part = 7, b""
    content = bytes(7) + content
    while at + 7 <= len(content):
        if block - at % block < 7:  # the rest of a block is empty
            at += block - at % block
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # complete, or the last part
            yield part
            part = b""


@needs_mlflow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_sqlite_and_over_rest(tmp_path, free_port, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    made = config(
        algorithm={"name": "pffl", "zeta": 10.0},
        track=[{"name": "mlflow", "to": uri, "project": "trial"}],
    )
    monkeypatch.chdir(tmp_path)  # artefacts of a SQLite store are in the working folder
    with pytest.raises(KeyboardInterrupt):
        isonomy.run(made, tmp_path / "run", listeners=[Stop()])
    record = isonomy.resume(tmp_path / "run")

    command = f"-m mlflow server --backend-store-uri {uri} --workers 1 --port {free_port}"
    server = subprocess.Popen(
        [sys.executable, *command.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # the server starts processes of its own
    )
    try:
        ask = lambda path, **body: rest(free_port, path, body)  # noqa: E731
        wait(lambda: ask("experiments/search", max_results=10))
        experiments = ask("experiments/search", max_results=10)["experiments"]
        (number,) = [e["experiment_id"] for e in experiments if e["name"] == "trial"]
        (run,) = ask("runs/search", experiment_ids=[number])["runs"]
        params = {one["key"]: one["value"] for one in run["data"]["params"]}
        tags = {one["key"]: one["value"] for one in run["data"]["tags"]}
        assert run["info"]["status"] == "FINISHED"
        assert params["algorithm.name"] == "pffl"
        assert params["rounds"] == "4"
        assert tags["isonomy.verdict"] == record.verdict["status"]
        identity = run["info"]["run_id"]
        history = rest(free_port, f"metrics/get-history?run_id={identity}&metric_key=loss")
        got = {int(one["step"]): one["value"] for one in history["metrics"]}
        assert got == pytest.approx(measured(record, "loss"))
        top = rest(free_port, f"artifacts/list?run_id={identity}")["files"]
        assert {"config.toml", "report.html", "verdict.json", "model"} <= {f["path"] for f in top}
        model = rest(free_port, f"artifacts/list?run_id={identity}&path=model")["files"]
        files = {Path(one["path"]).name for one in model}
        assert files == {path.name for path in (tmp_path / "run" / "model").iterdir()}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)


def rest(port, path, body=None):
    """MLflow's REST interface, as its web page uses it."""
    data = json.dumps(body).encode() if body else None
    url = f"http://127.0.0.1:{port}/api/2.0/mlflow/{path}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def wait(action, seconds=90):
    end = time.monotonic() + seconds
    while True:
        try:
            return action()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# --- what does not depend on a tracker ------------------------------------------------------------


class Recording:
    """A backend that keeps what it is given, and fails where it is told to."""

    def __init__(self, fails=""):
        self.calls, self.fails = [], fails

    def _call(self, name, *given):
        self.calls.append((name, *given))
        if self.fails == name:
            raise OSError("no route to host")

    def start(self, given, about, known):
        self._call("start", about.name, known)
        return "17"

    def log(self, step, metrics):
        self._call("log", step, metrics)

    def finish(self, result):
        assert result.report.read_text().startswith("<!DOCTYPE html>")
        self._call("finish", sorted(path.name for path in result.model.iterdir()))

    def stop(self):
        self._call("stop")


@pytest.fixture
def backend(monkeypatch):
    """Makes the tracker `mlflow` a backend of this file."""

    def use(made):
        monkeypatch.setitem(registry.BACKENDS, "mlflow", (lambda: made, "MLflow"))
        monkeypatch.setattr(registry, "installed", lambda _: True)
        return made

    return use


def test_what_a_tracker_is_given(tmp_path, backend):
    found = backend(Recording())
    record = isonomy.run(config(track=["mlflow"]), tmp_path / "run")
    assert [call[0] for call in found.calls] == ["start", "log", "log", "finish"]
    assert found.calls[0] == ("start", "fedavg, seed 0", None)
    assert {call[1]: call[2]["loss"] for call in found.calls[1:3]} == measured(record, "loss")
    assert "model.safetensors" in found.calls[-1][1]
    assert not any(":" in name for name in found.calls[1][2])


def test_a_run_is_the_same_with_and_without_a_tracker(tmp_path, backend):
    backend(Recording())
    plain = isonomy.run(config(), tmp_path / "plain")
    assert isonomy.run(config(track=["mlflow"])).rounds == plain.rounds
    assert config(track=["mlflow"]).digest == config().digest
    again = isonomy.compare(config(), tmp_path / "c", algorithms=["fedavg"])
    tracked = isonomy.compare(config(track=["mlflow"]), tmp_path / "c", algorithms=["fedavg"])
    assert again[0].rounds == tracked[0].rounds  # the complete run is used again


def test_a_tracker_that_cannot_begin_ends_the_run(backend):
    found = backend(Recording(fails="start"))
    with pytest.raises(RunError, match=r"mlflow cannot begin \(OSError: no route to host\)"):
        isonomy.run(config(track=["mlflow"]))
    assert [call[0] for call in found.calls] == ["start"]


@pytest.mark.parametrize("step", ["log", "finish"])
def test_a_later_fault_does_not_end_the_run(step, tmp_path, backend):
    found, notes = backend(Recording(fails=step)), Notes()
    record = isonomy.run(config(track=["mlflow"]), tmp_path / "run", listeners=[notes])
    assert record.complete
    (note,) = [one for one in notes.notes if "tracking" in one]
    assert note == (
        "tracking with mlflow failed (OSError: no route to host); the run continues without it."
    )
    assert [call[0] for call in found.calls].count(step) == 1


def test_a_resumed_run_has_the_same_name_there(tmp_path, backend):
    first = backend(Recording())
    with pytest.raises(KeyboardInterrupt):
        isonomy.run(config(track=["mlflow"]), tmp_path / "run", listeners=[Stop()])
    assert [call[0] for call in first.calls] == ["start", "log", "stop"]
    second = backend(Recording())
    isonomy.resume(tmp_path / "run")
    assert second.calls[0] == ("start", "fedavg, seed 0", "17")
    assert [call[1] for call in second.calls if call[0] == "log"] == [4]


@pytest.mark.parametrize(("known", "rounds"), [(0, [2, 4]), (2, [4]), (4, [])])
def test_each_round_is_reported_once(known, rounds, tmp_path, backend):
    """Whether a kill came before a round was reported, or before its checkpoint was written."""
    backend(Recording())
    with pytest.raises(KeyboardInterrupt):
        isonomy.run(config(track=["mlflow"]), tmp_path / "run", listeners=[Stop()])
    path = tmp_path / "run" / "trackers.json"
    path.write_text(json.dumps({"mlflow": {"run": "17", "round": known}}))
    found = backend(Recording())
    record = isonomy.resume(tmp_path / "run")
    logged = {call[1]: call[2]["loss"] for call in found.calls if call[0] == "log"}
    assert list(logged) == rounds
    assert logged.items() <= measured(record, "loss").items()


def test_wrong_trackers_are_refused(monkeypatch):
    monkeypatch.setattr(registry, "installed", lambda _: False)
    for name, title in (("mlflow", "MLflow"), ("tensorboard", "TensorBoard"), ("wandb", "W")):
        with pytest.raises(ConfigError, match=rf"needs {title}.*pip install 'isonomy\[{name}\]'"):
            isonomy.run(config(track=[name]))
    with pytest.raises(ConfigError, match="track"):
        config(track=["neptune"])
    with pytest.raises(ConfigError, match="names 'wandb' twice"):
        registry.require(config(track=["wandb", "wandb"]))


def test_trackers_are_imported_only_when_asked_for():
    script = (
        "import isonomy, isonomy.runs.training, sys\n"
        "print([n for n in ('mlflow', 'tensorboard', 'wandb', 'pandas', 'sklearn') "
        "if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_names_on_the_command_line(tmp_path, monkeypatch):
    from isonomy.cli.arguments import with_trackers

    made = config(track=[{"name": "wandb", "project": "mine"}])
    got = with_trackers(made, ["wandb", "mlflow"]).track
    assert got == [TrackConfig(name="wandb", project="mine"), TrackConfig(name="mlflow")]
    with pytest.raises(ConfigError, match="--track"):
        with_trackers(made, ["ml_flow"])
    assert base.about_run(made, "x", None).flat["algorithm.name"] == "fedavg"
