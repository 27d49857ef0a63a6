"""Processes that share the folder of a study: every run is made by one of them."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from isonomy.config.schema import parse
from isonomy.errors import RunError
from isonomy.studies import claims
from isonomy.studies.claims import ClaimLost, busy, claimed
from isonomy.studies.compare import methods, run_all


def test_a_killed_process_is_replaced_and_every_run_is_made_once(tmp_path):
    script = Path(__file__).with_name("share.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["codes"] == [-9, 0, 0]
    assert report["different"] == []
    assert report["files"] > 6 * 6
    runs = [f"{name} {seed}" for name in ("fedavg", "fmtl") for seed in range(3)]
    assert sorted(report["ends"]) == runs
    assert report["killed"] in [run for run, _ in report["resumed"]]
    assert report["makers"] == 2


def other(folder, *, age, host="elsewhere", number=0):
    """A claim of a process of another machine, renewed so many seconds ago."""
    path = folder.with_name(f".{folder.name}.claim-{number:04d}")
    path.write_text(json.dumps({"host": host, "pid": 1, "machine": "another"}))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_one_process_holds_a_claim_until_it_ends(tmp_path):
    run = tmp_path / "seed-0"
    with claimed(run) as mine:
        assert mine is not None
        assert busy(run) == f"process {os.getpid()} on {claims.socket.gethostname()}"
        with claimed(run) as again:
            assert again is None
        assert busy(run) is not None
    assert busy(run) is None
    assert list(tmp_path.iterdir()) == []


def test_a_claim_without_a_sign_of_life_is_taken_over(tmp_path):
    run = tmp_path / "seed-0"
    old = other(run, age=claims.STALE - 20)
    assert busy(run) == "process 1 on elsewhere"
    with claimed(run) as claim:
        assert claim is None
    os.utime(old, (0, time.time() - claims.STALE - 5))
    assert busy(run) is None
    with claimed(run) as claim:
        assert claim.number == 1
        assert busy(run).startswith(f"process {os.getpid()} ")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_replaced_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "RENEWED", 0.02)
    run = tmp_path / "seed-0"
    with claimed(run) as claim:
        claim.check()
        newer = other(run, age=0, number=1)
        for _ in range(200):
            if claim.lost:
                break
            time.sleep(0.02)
        with pytest.raises(ClaimLost, match="has taken over the run"):
            claim.round(3, 5, None)
    assert newer.exists()  # it belongs to the other process


def test_only_one_of_many_gets_a_claim(tmp_path):
    run, held, ready = tmp_path / "seed-0", [], threading.Barrier(8)

    def take():
        ready.wait()
        claim = claims._take(run)
        if claim is not None:
            held.append(claim)

    for _ in range(5):
        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(held) == 1
        held.pop().release()


def test_runs_of_others_are_not_overwritten(tmp_path):
    config = parse({"rounds": 1, "data": {"name": "synthetic"}, "model": "logistic"})
    folder = tmp_path / "fedavg" / "seed-0"
    folder.parent.mkdir()
    other(folder, age=1)
    with pytest.raises(RunError, match="process 1 on elsewhere is making the run"):
        run_all(methods(config), [0], tmp_path, overwrite=True)
