"""Rounds by several processes of one machine, against one process, each with one thread.

    python benchmarks/ranks.py              two processes
    python benchmarks/ranks.py --ranks 4    four
    python benchmarks/ranks.py --compile    with `engine.compile`

W2    FedAvg, MLP 60-64-10, 10,000 clients x 100 examples, batch 10, one epoch.
CNN   FedAvg, the papers' CNN (3.3 million parameters) on 28x28 images, 8 clients x 128, batch 32.
FMTL  FMTL with W2's network and sizes, 500 clients, who keep personal models.
E, U  W2's network with 100 or 1,000 clients of equal (E) and of uneven sizes (U, the largest 50
      times the median), with as many steps.

One process and all of them take turns in the same run, so that a busy moment hits both alike. Times
are the shortest of the repeats; "median" is the speed-up by medians. After one round the models
must be equal to rounding ("differ by"). "by CPU" is the speed-up by processor time: that of one
process, divided by that of the busiest rank. On a busy machine it is the only figure that means
something; it does not count waiting for each other. "apart" is the speed-up by the clock of ranks
that compute their shares without exchanging anything: what the machine allows. Two processes share
its cache and memory.

"uneven" compares U with E on the same number of processes: the time of a round with uneven sizes,
divided by that with equal ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import distributed

from engine import federation, mlp, papers_cnn, power_law
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.distributed.engine import Distributed
from isonomy.engines.distributed.ranks import Ranks, joined

WAIT = timedelta(seconds=600)

Workload = tuple[Callable[[], torch.nn.Module], Callable[[], Federation], Work, Algorithm]

STEPS = Work(batch=10, lr=0.1)
WORKLOADS: dict[str, Workload] = {
    "W2": (mlp, lambda: federation([100] * 10_000), STEPS, FedAvg()),
    "CNN": (papers_cnn, lambda: federation([128] * 8, (1, 28, 28)), Work(lr=0.05), FedAvg()),
    "FMTL": (mlp, lambda: federation([100] * 500), STEPS, FMTL()),
    "E100": (mlp, lambda: federation([100] * 100), STEPS, FedAvg()),
    "U100": (mlp, lambda: federation(power_law(100, 10_000)), STEPS, FedAvg()),
    "E1000": (mlp, lambda: federation([100] * 1_000), STEPS, FedAvg()),
    "U1000": (mlp, lambda: federation(power_law(1_000, 100_000)), STEPS, FedAvg()),
}


class Rounds:
    """The rounds of one engine."""

    def __init__(self, engine: Engine, algorithm: Algorithm, work: Work) -> None:
        self.engine, self.algorithm, self.work = engine, algorithm, work
        engine.prepare(work)
        self.restart()

    def restart(self) -> None:
        """Begin with the first round again."""
        engine, algorithm = self.engine, self.algorithm
        params = engine.task.init(0)
        engine.reset(algorithm.init_client(engine.task, params))
        self.server = algorithm.init_server(engine.task, params, len(engine.federation))
        self.round = 0

    def __call__(self) -> tuple[float, float]:
        """Seconds of the next round, and of the processor."""
        begin, used = time.perf_counter(), time.process_time()
        ids = self.engine.everyone()
        cohort = self.engine.cohort(ids, work=self.work, round=self.round)
        self.server = self.algorithm.round(self.server, cohort)
        self.round += 1
        return time.perf_counter() - begin, time.process_time() - used


def measured(name: str, ranks: Ranks, repeats: int, warm: float, compile: bool) -> dict[str, Any]:
    """Seconds of a round by one process and by all, in rank 0."""
    make, data, work, algorithm = WORKLOADS[name]
    task, fed = Task(make, classes=10), data()
    alone = Batched(task, fed, compile=compile)
    one = Rounds(alone, algorithm, work)
    if ranks.leads:
        one()
        one.restart()
    chunks = ranks.gathered(alone.chunks)[0]  # so that all run as many clients at once
    alone.chunks = dict(chunks)
    several = Distributed(task, fed, ranks=ranks, inner=Batched(task, fed, compile=compile))
    several.inner.chunks = dict(chunks)
    many = Rounds(several, algorithm, work)
    own = Batched(task, fed, compile=compile, shares=ranks.size, chunks=chunks)
    own.held = [ranks.rank]
    apart = Rounds(own, algorithm, work)
    many(), one()
    difference = max(
        float((a - b).abs().max())
        for a, b in zip(tree.leaves(one.server), tree.leaves(many.server), strict=True)
    )
    seconds = ranks.gathered(one()[0])[0]
    for _ in range(max(1, min(1000, int(warm / seconds)))):
        many(), apart()
        if ranks.leads:
            one()
    spent: dict[str, list[float]] = {"one": [], "ranks": [], "apart": []}
    used: dict[str, list[float]] = {"one": [], "ranks": []}
    for _ in range(min(50, max(repeats, int(4 / seconds)))):
        for kind, rounds in {"one": one, "ranks": many, "apart": apart}.items():
            distributed.barrier()
            clock, processor = (0.0, 0.0) if kind == "one" and not ranks.leads else rounds()
            spent[kind].append(clock)
            if kind in used:
                used[kind].append(processor)
    distributed.barrier()
    every = ranks.gathered((spent, used))
    least = {kind: max(min(rank[0][kind]) for rank in every) for kind in spent}
    middle = {kind: max(median(rank[0][kind]) for rank in every) for kind in spent}
    processor = {kind: max(min(rank[1][kind]) for rank in every) for kind in used}
    return {
        "workload": name,
        "one": least["one"],
        "ranks": least["ranks"],
        "speed-up": least["one"] / least["ranks"],
        "median": middle["one"] / middle["ranks"],
        "apart": least["one"] / least["apart"],
        "by CPU": processor["one"] / processor["ranks"],
        "difference": difference,
    }


def part(rank: int, port: int, names: list[str], options: argparse.Namespace) -> None:
    """One rank's part of the benchmark."""
    size, measure = options.ranks, (options.repeats, options.warm, options.compile)
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, timeout=WAIT)
    with joined(rank, size, seconds=WAIT.total_seconds(), store=store) as ranks:
        rows = [measured(name, ranks, *measure) for name in names]
    if rank == 0:
        print(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Several processes against one.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="workloads, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--warm",
        type=float,
        default=2.5,
        help="seconds of one process's rounds before the measured ones: steps become faster after "
        "400 uses, and uneven clients have many kinds of steps that a round uses once",
    )
    parser.add_argument("--compile", action="store_true", help="steps by torch's compiler")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(WORKLOADS)
    if options.rank is not None:
        part(options.rank, options.port, names, options)
        return
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    more = [] if options.only is None else ["--only", options.only]
    more += ["--compile"] if options.compile else []
    command = [sys.executable, __file__, "--ranks", str(options.ranks), *more]
    command += [
        "--repeats",
        str(options.repeats),
        "--warm",
        str(options.warm),
        "--port",
        str(store.port),
        "--rank",
    ]
    started = [
        subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.PIPE)
        for rank in range(options.ranks)
    ]
    out = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a process of the benchmark failed")
    rows = {row["workload"]: row for row in json.loads(out[0])}
    titles = ("one", f"{options.ranks} ranks", "speed-up", "median", "apart", "by CPU", "differ by")
    print(f"{'workload':10} {' '.join(f'{title:>9}' for title in titles)}")
    keys = ("one", "ranks", "speed-up", "median", "apart", "by CPU", "difference")
    for row in rows.values():
        shown = (f"{row[k]:.3g}" for k in keys)
        print(f"{row['workload']:10} {' '.join(f'{text:>9}' for text in shown)}")
    for equal, uneven in (("E100", "U100"), ("E1000", "U1000")):
        if {equal, uneven} <= rows.keys():
            ratio = {kind: rows[uneven][kind] / rows[equal][kind] for kind in ("one", "ranks")}
            print(f"{uneven} uneven: {ratio['one']:.3g} with one process, {ratio['ranks']:.3g} "
                  f"with {options.ranks}")  # fmt: skip


if __name__ == "__main__":
    main()
