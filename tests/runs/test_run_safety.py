"""A run's folder: one process at a time, no foreign files, and a config that describes the run."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import isonomy
from isonomy.errors import RunError
from isonomy.runs.folder import RunFolder

SMALL = {
    "data": {"name": "synthetic", "examples": 80},
    "rounds": 4,
    "model": "logistic",
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 1, "keep": 4},
}


def _stopped(tmp_path: Path, after: int) -> Path:
    """A run that was stopped after some rounds."""

    class Stop(isonomy.Listener):
        def round(self, done, rounds, metrics):
            if done == after:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(isonomy.IsonomyError):
        isonomy.run(isonomy.make_config(**SMALL), tmp_path / "run", listeners=[Stop()])
    return tmp_path / "run"


def _resume(folder: Path, ready, go) -> None:
    class Wait(isonomy.Listener):
        def begin(self, label, seed, done, rounds):
            ready.set()
            go.wait(60)

    isonomy.resume(folder, listeners=[Wait()])


def test_only_one_process_works_on_a_run(tmp_path):
    folder = _stopped(tmp_path, 2)
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=_resume, args=(folder, ready, go))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(RunError, match="another process is working on the run"):
            isonomy.resume(folder)
        with pytest.raises(RunError, match="another process is working on the run"):
            isonomy.run(isonomy.make_config(**SMALL), folder, overwrite=True)
        assert not RunFolder(folder).complete
    finally:
        go.set()
        other.join(60)
    assert other.exitcode == 0
    assert [line["round"] for line in RunFolder(folder).lines("rounds.jsonl")] == [1, 2, 3, 4]


def test_a_kill_between_joining_the_tables_and_deleting_the_parts(tmp_path):
    """The crash point at which a resumed run had its earlier evaluations twice."""
    config = isonomy.make_config(**SMALL, evaluate={"every": 1})
    isonomy.run(config, tmp_path / "run")
    place = RunFolder(tmp_path / "run")
    want = (place.path / "clients.parquet").read_bytes()
    (place.path / "clients").mkdir()
    for round in (1, 2, 3, 4):  # as they were before the joined table was renamed
        shutil.copy(place.path / "clients.parquet", place.path / f"clients/{round:08d}.parquet")
    place.reopen()
    isonomy.resume(place.path)
    assert (place.path / "clients.parquet").read_bytes() == want


def test_a_changed_config_is_not_resumed(tmp_path):
    folder = _stopped(tmp_path, 2)
    config = folder / "config.toml"
    text = config.read_text()
    assert "lr = 0.1" in text
    config.write_text(text.replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(RunError, match=r"config\.toml' was changed after the run had begun"):
        isonomy.resume(folder)
    config.write_text(text)
    assert isonomy.resume(folder).rounds[-1]["round"] == 4


@pytest.mark.parametrize("name", [".rounds.jsonl.partial", "rounds.jsonl", ".summary.json.partial"])
def test_links_in_a_foreign_run_are_not_followed(tmp_path, name):
    folder = _stopped(tmp_path, 2)
    target = tmp_path / "precious"
    target.write_text("mine")
    link = folder / name
    if link.exists():
        shutil.copy(link, folder / "kept")
        link.unlink()
    link.symlink_to(target)
    with contextlib.suppress(RunError):
        isonomy.resume(folder)
    assert target.read_text() == "mine"


def test_the_processes_of_jobs_end_with_their_parent(tmp_path):
    """The parent is killed while both processes wait in their first round."""
    (tmp_path / "waits.py").write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from isonomy.algorithms.average.fedavg import FedAvg\n"
        "class Waits(FedAvg):\n"
        "    name = 'waits'\n"
        "    def round(self, server, cohort):\n"
        "        Path(f'pid.{os.getpid()}').touch()\n"
        "        time.sleep(120)\n"
    )
    command = "from isonomy.cli import main; main()"
    words = ["compare", "quickstart", "data=synthetic", "data.examples=400", "model=logistic"]
    words += ["--algorithms", "waits:Waits", "--trust", "waits", "--seeds", "2", "--jobs", "2"]
    parent = subprocess.Popen(
        [sys.executable, "-c", command, *words], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        pids = _until(lambda: [int(p.name[4:]) for p in tmp_path.glob("pid.*")], 2)
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: [pid for pid in pids if not _alive(pid)], 2)


def _until(found, count: int) -> list[int]:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        got = found()
        if len(got) >= count:
            return got
        time.sleep(0.1)
    raise AssertionError(f"{found()} after 90 seconds")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False
