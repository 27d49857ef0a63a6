"""Rounds by several processes of one machine, against one process, each with one thread.

    python benchmarks/ranks.py              two processes
    python benchmarks/ranks.py --ranks 4    four

W2    FedAvg, MLP 60-64-10, 10,000 clients x 100 examples, batch 10, one epoch.
CNN   FedAvg, the papers' CNN (3.3 million parameters) on 28x28 images, 8 clients x 128, batch 32.
FMTL  FMTL with W2's network and sizes, 500 clients, who keep personal models.
E, U  W2's network with 100 or 1,000 clients of equal (E) and of uneven sizes (U, the largest 50
      times the median), with as many steps.

One process and all of them take turns in the same run, so that a busy moment hits both alike. Times
are the shortest of the repeats. The models must be equal to rounding. "by CPU" is the speed-up by
processor time: that of one process, divided by that of the busiest rank. On a busy machine it is
the only figure that means something; it does not count waiting for each other.
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
from isonomy.engines.distributed.ranks import Ranks

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
WARM = 2.5  # seconds of rounds before the measured ones: steps that are used often become faster


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


def measured(name: str, ranks: Ranks, repeats: int) -> dict[str, Any]:
    """Seconds of a round by one process and by all, in rank 0."""
    make, data, work, algorithm = WORKLOADS[name]
    task, fed = Task(make, classes=10), data()
    one = Rounds(Batched(task, fed), algorithm, work) if ranks.leads else None
    chunks = one.engine.chunks if one is not None else {}  # type: ignore[attr-defined]
    if one is not None:
        one()
    found = ranks.gathered(dict(chunks))[0]  # so that both run as many clients at once
    several = Distributed(task, fed, ranks=ranks)
    several.inner.chunks = found
    many = Rounds(several, algorithm, work)
    seconds = ranks.gathered(one()[0] if one is not None else 0.0)[0]
    for _ in range(max(1, min(200, int(WARM / seconds)))):
        many()
        if one is not None:
            one()
    many.restart()
    if one is not None:
        one.restart()
    spent: list[tuple[float, float]] = []
    used: list[tuple[float, float]] = []
    for _ in range(min(50, max(repeats, int(4 / seconds)))):
        alone = one() if one is not None else (0.0, 0.0)
        distributed.barrier()
        seconds, own = many()
        spent.append((alone[0], seconds))
        used.append((alone[1], own))
        distributed.barrier()
    apart = 0.0
    if one is not None:
        pairs = zip(tree.leaves(one.server), tree.leaves(many.server), strict=True)
        apart = max(float((a - b).abs().max()) for a, b in pairs)
    first, all_of_them = (min(times) for times in zip(*spent, strict=True))
    least = ranks.gathered(tuple(min(times) for times in zip(*used, strict=True)))
    return {
        "one by CPU": least[0][0],
        "busiest by CPU": (busiest := max(many for _, many in least)),
        "by CPU": least[0][0] / busiest,
        "workload": name,
        "one": first,
        "ranks": all_of_them,
        "speed-up": first / all_of_them,
        "difference": apart,
    }


def part(rank: int, size: int, port: int, names: list[str], repeats: int) -> None:
    """One rank's part of the benchmark."""
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, timeout=WAIT)
    distributed.init_process_group("gloo", rank=rank, world_size=size, store=store, timeout=WAIT)
    ranks = Ranks(rank, size, seconds=WAIT.total_seconds())
    rows = [measured(name, ranks, repeats) for name in names]
    if ranks.leads:
        print(json.dumps(rows))
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Several processes against one.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="workloads, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(WORKLOADS)
    if options.rank is not None:
        part(options.rank, options.ranks, options.port, names, options.repeats)
        return
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    more = [] if options.only is None else ["--only", options.only]
    command = [sys.executable, __file__, "--ranks", str(options.ranks), *more]
    command += ["--repeats", str(options.repeats), "--port", str(store.port), "--rank"]
    started = [
        subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.PIPE)
        for rank in range(options.ranks)
    ]
    out = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a process of the benchmark failed")
    titles = (
        "one",
        f"{options.ranks} ranks",
        "speed-up",
        "one CPU",
        "busiest",
        "by CPU",
        "differ by",
    )
    print(f"{'workload':10} {' '.join(f'{title:>9}' for title in titles)}")
    keys = ("one", "ranks", "speed-up", "one by CPU", "busiest by CPU", "by CPU", "difference")
    for row in json.loads(out[0]):
        shown = (f"{row[k]:.3g}" for k in keys)
        print(f"{row['workload']:10} {' '.join(f'{text:>9}' for text in shown)}")


if __name__ == "__main__":
    main()
