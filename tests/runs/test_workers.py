"""Runs that several processes compute: the same result, clean ends, and refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isonomy.config.schema import parse
from isonomy.errors import ConfigError, RunError
from isonomy.runs.training import Listener, Stopped, build, resume, run

SMALL = {
    "rounds": 6,
    "data": {"name": "synthetic", "clients": 7, "examples": 500, "partition": "dirichlet"},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": "fmtl",
    "local": {"batch": 16, "lr": 0.05},
    "cohort": {"size": 5, "dropout": 0.2},
    "attack": {"name": "sign_flip", "fraction": 0.2},
    "evaluate": {"every": 2, "bootstrap": 5},
    "excess": {"steps": 4},
    "checkpoint": {"every": 2, "keep": 2},
}


def shared(engine):
    return parse({**SMALL, "engine": {"shares": 4, **engine}})


def result(folder: Path) -> dict[str, bytes]:
    """Everything a run leaves but its timing, and the config, which names the engine."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in ("timing.jsonl", "config.toml")
    }


class AtRound(Listener):
    """Does something after a round."""

    def __init__(self, round, do):
        self.at, self.do, self.notes = round, do, []

    def round(self, done, rounds, metrics):
        if done == self.at:
            self.do()

    def note(self, text):
        self.notes.append(text)


def workers() -> list[int]:
    """The workers that this process started and that are alive; it may have other children too."""
    pid = os.getpid()
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(k) for k in found if b"sys.stdin.buffer" in Path(f"/proc/{k}/cmdline").read_bytes()]


def kill_worker() -> None:
    (worker,) = workers()
    os.kill(worker, signal.SIGKILL)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run(shared({}), folder)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker in /proc")
def test_a_killed_worker_ends_the_run_and_any_number_of_processes_resumes_it(tmp_path, alone):
    folder = tmp_path / "run"
    begin = []

    def kill():
        begin.append(time.monotonic())
        kill_worker()

    with pytest.raises(RunError, match=r"worker 1 .*signal 9.*isonomy resume") as raised:
        run(shared({"workers": 2}), folder, listeners=[AtRound(3, kill)])
    assert time.monotonic() - begin[0] < 30
    assert "\n" not in str(raised.value)
    assert not workers()
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("workers = 2", "workers = 1"))
    resume(folder)
    assert result(folder) == result(alone)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_workers_give_the_bytes_of_one_process(tmp_path, alone, count):
    run(shared({"workers": count}), tmp_path / "run")
    assert result(tmp_path / "run") == result(alone)


def test_a_signal_stops_all_processes_and_the_same_number_resumes(tmp_path, alone):
    folder = tmp_path / "run"
    stop = AtRound(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="isonomy resume"):
        run(shared({"workers": 2}), folder, listeners=[stop])
    resume(folder)
    assert result(folder) == result(alone)


def test_an_attack_that_needs_all_replies_and_a_record_in_memory():
    attacked = {**SMALL, "rounds": 2, "attack": {"name": "inner_product", "fraction": 0.3}}
    one = run(parse({**attacked, "engine": {"shares": 2}}))
    two = run(parse({**attacked, "engine": {"workers": 2}}))
    assert two.rounds == one.rounds
    assert repr((two.metrics, two.clients)) == repr((one.metrics, one.clients))  # some are NaN


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"name": "loop", "workers": 2}, "reference and runs in one process"),
        ({"name": "loop", "shares": 2}, "one client after the other"),
        ({"name": "distributed", "workers": 2}, "remove one of them"),
        ({"workers": 3, "shares": 2}, "less than engine.workers = 3"),
    ],
)
def test_what_cannot_be_divided_is_refused(engine, words):
    with pytest.raises(ConfigError, match=words):
        build(parse({**SMALL, "engine": engine}))


def test_data_in_memory_are_not_divided():
    data = {"name": "memory", "digest": "0"}
    with pytest.raises(ConfigError, match="in the memory of this process"):
        build(parse({**SMALL, "data": data, "engine": {"workers": 2}}))


def test_torchrun_without_the_engine_is_refused(monkeypatch):
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"would all make the same run; set engine\.name"):
        run(parse(SMALL))


def test_the_engine_without_torchrun_is_one_process(alone, tmp_path):
    run(shared({"name": "distributed"}), tmp_path / "run")
    assert result(tmp_path / "run") == result(alone)


# --- torchrun, and kills at random moments --------------------------------------------------------


def torchrun(*words: str, restarts: int = 0, **options) -> subprocess.Popen:
    """Torchrun with two processes of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [*command, f"--max-restarts={restarts}", "-m", "isonomy.cli", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def rounds_done(folder: Path) -> int:
    stream = folder / "rounds.jsonl"
    return stream.read_bytes().count(b"\n") if stream.exists() else 0


def ranks_of(launcher: int) -> dict[int, int]:
    """The ranks that a launcher has started, by their number."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = {}
    for child in children:
        try:
            entries = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        named = [entry[5:] for entry in entries if entry.startswith(b"RANK=")]
        if named:
            found[int(named[0])] = int(child)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_torchrun_restarts_a_killed_rank_to_the_same_bytes(tmp_path, alone):
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(shared({"name": "distributed"}).toml())
    started = torchrun("run", str(config), "--to", str(folder), "--no-report", restarts=3)
    killed = 0
    while started.poll() is None:
        if killed < 2 and rounds_done(folder) >= 2 * (killed + 1):
            os.kill(ranks_of(started.pid)[killed % 2], signal.SIGKILL)
            killed += 1
            time.sleep(1)
        time.sleep(0.01)
    said = started.communicate()[0]
    assert started.returncode == 0, said
    assert killed >= 1  # a fast run may end before the second
    assert result(folder) == result(alone)


@pytest.mark.slow
def test_ranks_killed_at_random_moments_resume_to_the_same_bytes(tmp_path):
    script = Path(__file__).with_name("kill_ranks.py")
    seed = int(time.time())  # new moments every time; printed below if it fails
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "20", str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (seed, done.stderr)
    report = json.loads(done.stdout)
    assert report["kills"] == 20, (seed, report)
    assert report["different"] == [], (seed, report)
    assert {rank for rank, _ in report["killed"]} == {0, 1}, (seed, report)
