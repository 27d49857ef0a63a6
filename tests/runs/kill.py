"""Runs experiments in child processes and kills them with SIGKILL at random moments.

Executed by test_survival.py as a program of its own: everything is imported once, and each run
is a forked child, so that many kills fit into a test. Prints one JSON line.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from isonomy.config.schema import parse
from isonomy.runs.training import resume, run

BASE = {
    "rounds": 40,
    "data": {"name": "synthetic", "clients": 6, "examples": 600, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 16, "lr": 0.05, "schedule": "exponential"},
    "evaluate": {"every": 3, "bootstrap": 20},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 4},
}
CASES = {
    "fedavg": {"algorithm": "fedavg", "cohort": {"size": 4, "dropout": 0.3}},
    "local": {"algorithm": "local", "local": {**BASE["local"], "momentum": 0.9}},
    "fedprox": {
        "data": {"name": "synthetic", "clients": 6, "examples": 600, "partition": "dirichlet"},
        "algorithm": {"name": "fedprox", "mu": 0.5},
        "cohort": {"size": 3, "sampling": "size"},
        "excess": {"steps": 20},
    },
    "states on disk": {
        "algorithm": "fmtl",
        "engine": {"states": "disk"},
        "cohort": {"size": 2},
    },
}


def child(folder: Path, config) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if (folder / "config.toml").exists():
            resume(folder)
        else:
            run(config, folder)
        code = 0
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def finished(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def alive(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def progress(folder: Path) -> int:
    """Rounds streamed so far."""
    stream = folder / "rounds.jsonl"
    return stream.read_bytes().count(b"\n") if stream.exists() else 0


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "timing.jsonl"
    }


def main(where: Path, kills_each: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    # imports everything that a run needs; with another model, so that each child traces its own
    run(parse({**BASE, "rounds": 1, "model": {"name": "mlp", "hidden": [4]}}))
    report = []
    for name, changes in CASES.items():
        config = parse({**BASE, **changes})
        whole = where / name / "whole"
        assert finished(child(whole, config)) == 0
        expected = contents(whole)
        kills, moments, different, attempt = 0, [], set(), 0
        while kills < kills_each:  # a run that got to its end is started again
            broken = where / name / f"broken-{attempt}"
            attempt += 1
            while not (broken / "summary.json").exists():
                pid = child(broken, config)
                if kills < kills_each:
                    # at a random moment after a random round, the first and the last included
                    target = progress(broken) + draw.uniform(0, 2 * config.rounds / kills_each)
                    while progress(broken) < target - 1 and alive(pid):
                        time.sleep(0.001)
                    time.sleep(draw.uniform(0, 0.05))
                    os.kill(pid, signal.SIGKILL)
                    kills += finished(pid) == -signal.SIGKILL
                    moments.append(progress(broken))
                else:
                    assert finished(pid) == 0
            got = contents(broken)
            different |= {k for k in expected.keys() | got.keys() if expected.get(k) != got.get(k)}
        report.append(
            {
                "case": name,
                "kills": kills,
                "rounds_at_kill": moments,
                "files": sorted(expected),
                "different": sorted(different),
            }
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
