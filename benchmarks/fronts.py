"""HetPFL: seconds of one core for a run, for more clients, and for many preferences.

    python benchmarks/fronts.py            the table, and whether the bounds hold
    python benchmarks/fronts.py --json     the same as JSON

run         SYNTHETIC as in the paper: 3 clients, 15 rounds of 30 local epochs, 8 preferences, the
            fusion and 1,001 preferences measured. The bound is 15 s, tracing included.
clients     the same total data (5,000 rows) and work over 10 and over 100 clients: at most 4 times
            the time.
preferences 1,001 preferences measured against 11, each in one batched call.

Each is a new process with one thread; what is counted is its processor's time in the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

LOCAL = {"epochs": 30, "batch": 128, "optimiser": "adam", "lr": 0.005, "weight_decay": 0.0001}
RUN, CLIENTS = 15.0, 4.0  # the bounds: seconds, times
PAPER = {"name": "synthetic", "partition": "paper"}


def even(clients: int) -> dict[str, Any]:
    """The same rows over so many clients."""
    spread = {"name": "dirichlet", "by": "group", "beta": 100.0}
    return {"name": "synthetic", "clients": clients, "partition": spread}


CASES: dict[str, dict[str, Any]] = {
    "run": {"data": PAPER},
    "10 clients": {"data": even(10)},
    "100 clients": {"data": even(100)},
}


def seconds(case: dict[str, Any]) -> float:
    """A run's time on one core."""
    from isonomy.config.schema import Config
    from isonomy.runs.training import run

    torch.set_num_threads(1)
    config = {
        "rounds": 15,
        "model": {"name": "mlp", "hidden": [4, 4]},
        "local": LOCAL,
        "evaluate": {"every": 15, "bootstrap": 0},
        "front": {"rays": 1000},
        "excess": {"clusters": "none"},
        "algorithm": {"name": "hetpfl"},
        **case,
    }
    begin = time.process_time()
    run(Config.model_validate(config))
    return time.process_time() - begin


def measuring() -> dict[str, float]:
    """A front of 11 and of 1,001 preferences on the paper's test examples, once warm."""
    from isonomy.config.schema import Config
    from isonomy.runs import front
    from isonomy.runs.build import build, engine_of

    torch.set_num_threads(1)
    out = {}
    for rays in (10, 1000):
        given = {"data": PAPER, "model": {"name": "mlp", "hidden": [4, 4]}, "front": {"rays": rays}}
        setting = build(Config.model_validate({**given, "algorithm": {"name": "hetpfl"}}))
        engine = engine_of(setting)
        server = setting.algorithm.init_server(setting.task, setting.params, 3)
        engine.reset(setting.algorithm.init_client(setting.task, setting.params))
        names = front.names_of(setting) or ()
        for _ in range(2):
            begin = time.process_time()
            front.learnt(setting, server, engine, "test", names, others=False)
        out[f"{rays + 1} preferences"] = time.process_time() - begin
    return out


def main() -> None:
    """Measure each case in a separate process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        found = measuring() if args.case == "measuring" else {args.case: seconds(CASES[args.case])}
        print(json.dumps(found))
        return
    rows: dict[str, float] = {}
    for case in (*CASES, "measuring"):
        told = subprocess.run(
            [sys.executable, __file__, "--case", case], check=True, capture_output=True, text=True
        )
        rows |= json.loads(told.stdout.splitlines()[-1])
    rows["100 clients / 10 clients"] = rows["100 clients"] / rows["10 clients"]
    held = rows["run"] <= RUN and rows["100 clients / 10 clients"] <= CLIENTS
    if args.json:
        print(json.dumps({**rows, "bounds hold": held}))
    else:
        for name, value in rows.items():
            print(f"{name:26s} {value:8.2f}")
        print("bounds hold" if held else "a bound does not hold")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
