"""Runs with two processes, of which one is killed with SIGKILL at random moments.

Executed by test_workers.py as a program of its own: rank 0 is a forked child, which starts the
other rank. Prints one JSON line.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from kill import alive, contents, finished, progress

from isonomy.config.schema import parse
from isonomy.errors import RunError
from isonomy.runs.training import resume, run

CONFIG = {
    "rounds": 60,
    "data": {"name": "synthetic", "clients": 6, "examples": 600, "partition": "dirichlet"},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": "fmtl",
    "local": {"batch": 16, "lr": 0.05, "schedule": "exponential"},
    "cohort": {"size": 4, "dropout": 0.3},
    "evaluate": {"every": 3, "bootstrap": 20},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 4},
    "engine": {"workers": 2},
}
BOUND = 30  # seconds in which the other rank ends


def start(folder: Path) -> int:
    """Rank 0, as a forked child."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if (folder / "config.toml").exists():
            resume(folder)
        else:
            run(parse(CONFIG), folder)
        code = 0
    except RunError as error:
        code = 3 if "isonomy resume" in str(error) and "worker 1" in str(error) else 4
        print(error, file=sys.stderr, flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def worker_of(pid: int) -> int | None:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else None


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def main(where: Path, wanted: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    whole = where / "whole"
    assert finished(start(whole)) == 0
    expected = contents(whole)
    killed, different, slowest, attempt = [], set(), 0.0, 0
    while len(killed) < wanted:
        broken = where / f"broken-{attempt}"
        attempt += 1
        while not (broken / "summary.json").exists():
            pid = start(broken)
            if len(killed) == wanted:
                assert finished(pid) == 0
                continue
            # at a random moment after a random round, or while the processes start
            target = progress(broken) + draw.uniform(0, 3 * CONFIG["rounds"] / wanted)
            begin, most = time.monotonic(), draw.uniform(0, 8) if draw.random() < 0.2 else 1e9
            while progress(broken) < target - 1 and alive(pid) and time.monotonic() - begin < most:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.05))
            worker, rank = worker_of(pid) if alive(pid) else None, draw.randrange(2)
            if worker is None:
                assert finished(pid) == 0
                continue
            os.kill((pid, worker)[rank], signal.SIGKILL)
            begin = time.monotonic()
            code = finished(pid)
            while not gone(worker):
                assert time.monotonic() - begin < BOUND, "the other rank is still there"
                time.sleep(0.01)
            slowest = max(slowest, time.monotonic() - begin)
            if code in (-signal.SIGKILL, 3):
                killed.append((rank, progress(broken)))
            else:  # the run was complete before the kill was noticed
                assert code == 0, f"rank 0 ended with {code}"
        got = contents(broken)
        different |= {k for k in expected.keys() | got.keys() if expected.get(k) != got.get(k)}
    report = {"kills": len(killed), "killed": killed, "different": sorted(different)}
    print(json.dumps({**report, "slowest_end": slowest, "files": sorted(expected)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
