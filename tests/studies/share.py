"""Several processes make the runs of one study; one of them is killed with SIGKILL.

Executed by test_claims.py as a program of its own, so that everything is imported once and each
process is a forked child. Prints one JSON line.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from isonomy.config.schema import parse
from isonomy.runs.training import Listener, run
from isonomy.studies import parallel
from isonomy.studies.compare import methods, run_all, seeds

STUDY = {
    "rounds": 12,
    "data": {"name": "synthetic", "clients": 4, "examples": 400, "partition": "iid"},
    "model": "logistic",
    "local": {"batch": 16, "lr": 0.05},
    "evaluate": {"every": 3, "bootstrap": 20},
    "checkpoint": {"every": 2},
    "excess": "none",
    "compare": {
        "seeds": 3,
        "methods": [{"algorithm": "fedavg"}, {"algorithm": "fmtl"}],
    },
}


class Log(Listener):
    """Writes down which runs this process has begun and ended; slow enough to be killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _write(self, *what) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(what) + "\n")

    def begin(self, label, seed, done, rounds):
        self.run = f"{label} {seed}"
        self._write("begin", self.run, done)

    def round(self, done, rounds, metrics):
        self._write("round", self.run, done)
        time.sleep(0.02)

    def end(self, label, seconds=None):
        self._write("end", self.run)


def child(folder: Path, log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        config = parse(STUDY)
        run_all(methods(config), seeds(config), folder, listeners=[Log(log)])
        code = 0
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def lines(log: Path) -> list:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "timing.jsonl"
    }


def main(where: Path) -> None:
    torch.set_num_threads(1)
    parallel.POLL = 0.1
    run(parse({**STUDY, "rounds": 1, "compare": {}}))  # imports everything
    alone = child(where / "alone", where / "alone.log")
    assert os.waitstatus_to_exitcode(os.waitpid(alone, 0)[1]) == 0
    logs = [where / f"{i}.log" for i in range(3)]
    pids = [child(where / "shared", log) for log in logs]
    while not any(line[0] == "round" and line[2] == 5 for line in lines(logs[0])):
        time.sleep(0.005)
    os.kill(pids[0], signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    every = [line for log in logs for line in lines(log)]
    expected, got = contents(where / "alone"), contents(where / "shared")
    report = {
        "codes": codes,
        "different": sorted(
            k for k in expected.keys() | got.keys() if expected.get(k) != got.get(k)
        ),
        "files": len(expected),
        "ends": [line[1] for line in every if line[0] == "end"],
        "killed": next(line[1] for line in reversed(lines(logs[0])) if line[0] == "begin"),
        "resumed": [line[1:] for line in every if line[0] == "begin" and line[2] > 0],
        "makers": sum(any(line[0] == "end" for line in lines(log)) for log in logs[1:]),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
