"""Nothing is lost: kills, signals, full disks and damaged checkpoints."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isonomy.config.schema import parse
from isonomy.errors import RunError
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener, Stopped, resume, run

SMALL = {
    "rounds": 6,
    "data": {"name": "synthetic", "clients": 4, "examples": 300, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": "local",
    "local": {"batch": 32},
    "evaluate": {"every": 2, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 2, "keep": 2},
}


class StopAt(Listener):
    """Sends this process a signal after a round, as a person or a scheduler would."""

    def __init__(self, round, number=signal.SIGTERM):
        self.at, self.number, self.notes = round, number, []

    def round(self, done, rounds, metrics):
        if done == self.at:
            os.kill(os.getpid(), self.number)

    def note(self, text):
        self.notes.append(text)


def result(folder: Path) -> dict[str, bytes]:
    """Everything a run leaves but its timing."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "timing.jsonl"
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(parse(SMALL), folder)
    return folder


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_killed_at_random_moments_resumes_to_the_same_bytes(tmp_path, kills):
    script = Path(__file__).with_name("kill.py")
    seed = int(time.time())  # new moments every time; printed below if it fails
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(kills), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (seed, done.stderr)
    report = json.loads(done.stdout)
    assert [c["different"] for c in report] == [[], [], [], []], (seed, report)
    assert sum(c["kills"] for c in report) >= 4 * kills, (seed, report)
    assert all("model/model.safetensors" in c["files"] for c in report)
    assert "checkpoint/states.rows" in report[-1]["files"]


@pytest.mark.parametrize("left", [".json", ".safetensors"])
def test_what_a_kill_left_of_an_older_checkpoint_is_deleted(tmp_path, whole, left):
    """Killed after the last checkpoint, while the oldest one was being deleted."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    newest = max((folder / "checkpoint").glob(f"*{left}"))
    shutil.copy(newest, newest.with_name(f"00000001{left}"))
    resume(folder)
    assert result(folder) == result(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, whole, number):
    folder = tmp_path / "run"
    with pytest.raises(Stopped, match="isonomy resume") as stopped:
        run(parse(SMALL), folder, listeners=[StopAt(3, number)])
    assert stopped.value.exit_code == 128 + number
    assert RunFolder(folder).checkpoints()[0] == 3
    assert not RunFolder(folder).complete
    resume(folder)
    assert result(folder) == result(whole)


def test_resuming_a_complete_run_changes_nothing(whole):
    before = result(whole)
    told = StopAt(99)
    record = resume(whole, listeners=[told])
    assert "complete" in told.notes[0]
    assert record.metrics["accuracy"] > 0.5
    assert result(whole) == before


@pytest.mark.parametrize("damage", ["truncate", "flip", "description"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_resumes(tmp_path, whole, damage):
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        run(parse(SMALL), folder, listeners=[StopAt(4)])
    newest = RunFolder(folder).checkpoints()[0]
    tensors = folder / "checkpoint" / f"{newest:08d}.safetensors"
    if damage == "truncate":
        tensors.write_bytes(tensors.read_bytes()[:-40])
    elif damage == "flip":
        content = bytearray(tensors.read_bytes())
        content[-5] ^= 1
        tensors.write_bytes(content)
    else:
        tensors.with_suffix(".json").write_text('{"round":')
    told = StopAt(99)
    resume(folder, listeners=[told])
    assert any(f"round {newest}" in n and "damaged" in n for n in told.notes)
    assert result(folder) == result(whole)


def test_what_a_kill_left_half_removed_goes_with_the_next_checkpoint(tmp_path, whole):
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        run(parse(SMALL), folder, listeners=[StopAt(4)])
    (folder / "checkpoint" / "00000001.safetensors").write_bytes(b"its description is gone")
    (folder / "checkpoint" / ".00000005.json.partial").write_bytes(b"{")
    resume(folder)
    assert result(folder) == result(whole)


@pytest.mark.parametrize("last", ["whole", "damaged"])
def test_a_kill_at_the_very_end(tmp_path, whole, last):
    """After the tables were joined, before the summary; and the last checkpoint may be damaged."""
    folder = tmp_path / "run"
    run(parse(SMALL), folder)
    (folder / "summary.json").unlink()
    if last == "damaged":
        (folder / "checkpoint" / "00000006.safetensors").write_bytes(b"")
    resume(folder)
    assert result(folder) == result(whole)


def test_what_is_left_of_an_older_run_does_not_mislead(tmp_path, whole):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()  # killed while --overwrite removed it
    shutil.rmtree(folder / "checkpoint")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(Stopped):
        run(parse(SMALL), folder, listeners=[StopAt(2)], overwrite=True)
    assert not RunFolder(folder).complete
    resume(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    assert result(folder) == result(whole)


def test_no_intact_checkpoint_is_a_clear_error(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        run(parse(SMALL), folder, listeners=[StopAt(4)])
    for tensors in (folder / "checkpoint").glob("*.safetensors"):
        tensors.write_bytes(b"")
    with pytest.raises(RunError, match=r"no checkpoint in .* is intact.*--overwrite"):
        resume(folder)


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from isonomy.errors import IsonomyError
from isonomy.runs.training import Listener, run
from isonomy.config.schema import parse
class Fill(Listener):
    def round(self, done, rounds, metrics):
        if done == 3:  # from here on no file may grow beyond this: as on a disk that is full
            resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
try:
    run(parse(eval(sys.argv[2])), sys.argv[1], listeners=[Fill()])
except IsonomyError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_resumes(tmp_path, whole):
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder), repr(SMALL)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "the disk is full" in done.stdout
    assert "isonomy resume" in done.stdout
    assert "Traceback" not in done.stderr
    assert RunFolder(folder).checkpoints() == [2]
    assert not list(folder.rglob("*.partial"))
    resume(folder)
    assert result(folder) == result(whole)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None,
    reason="mounting a small disk needs root",
)
def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this machine does not let us mount a small disk")
    try:
        with pytest.raises(RunError, match="the disk is full"):
            run(
                parse({**SMALL, "rounds": 400, "checkpoint": {"every": 1, "keep": 2}}), disk / "run"
            )
        newest = RunFolder(disk / "run").newest()
        assert newest is not None
        assert newest.round >= 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_run_is_not_overwritten_unasked(whole):
    with pytest.raises(RunError, match=r"complete run.*--overwrite"):
        run(parse(SMALL), whole)


def test_a_damaged_stream_is_noticed(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        run(parse(SMALL), folder, listeners=[StopAt(4)])
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(RunError, match=r"of the .* rounds before the checkpoint"):
        resume(folder)
