"""Rounds by several processes of one machine, against one process, each with one thread.

    python benchmarks/ranks.py              two processes
    python benchmarks/ranks.py --ranks 4    four
    python benchmarks/ranks.py --compile    with `engine.compile`
    python benchmarks/ranks.py --bf16       with `engine.precision = "bf16"`

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

"uneven" compares U with E on the same number of processes, in turns: the time of a round with
uneven sizes, divided by that with equal ones. The CNN also takes turns with a plain PyTorch loop on
as many threads as there are processes, in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import distributed, nn

from engine import batches, federation, mlp, papers_cnn, plain_round, power_law
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


COMPARED = (("E100", "U100"), ("E1000", "U1000"))


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


class Sides:
    """A workload by one process, by all, and by all without exchanging anything."""

    def __init__(self, name: str, ranks: Ranks, options: argparse.Namespace) -> None:
        make, data, work, algorithm = WORKLOADS[name]
        task, fed = Task(make, classes=10), data()
        how: dict[str, Any] = {
            "compile": options.compile,
            "precision": "bf16" if options.bf16 else "float32",
        }
        alone = Batched(task, fed, **how)
        one = Rounds(alone, algorithm, work)
        if ranks.leads:
            one()
            one.restart()
        chunks = ranks.gathered(alone.chunks)[0]  # so that all run as many clients at once
        alone.chunks = dict(chunks)
        several = Distributed(task, fed, ranks=ranks, inner=Batched(task, fed, **how))
        several.inner.chunks = dict(chunks)
        many = Rounds(several, algorithm, work)
        own = Batched(task, fed, shares=ranks.size, chunks=chunks, **how)
        own.held = [ranks.rank]
        apart = Rounds(own, algorithm, work)
        many(), one()
        self.difference = max(
            float((a - b).abs().max())
            for a, b in zip(tree.leaves(one.server), tree.leaves(many.server), strict=True)
        )
        self.name, self.ranks = name, ranks
        self.sides: dict[str, Callable[[], tuple[float, float]]] = {
            "one": one,
            "ranks": many,
            "apart": apart,
        }
        if name == "CNN":
            self.sides["plain"] = Plain(make(), fed, work, threads=ranks.size)
        self.spent: dict[str, list[float]] = {side: [] for side in self.sides}
        self.used: dict[str, list[float]] = {side: [] for side in self.sides}
        self.seconds = float(ranks.gathered(one()[0])[0])

    def warm(self, seconds: float) -> None:
        """Run rounds for a while: steps that are used often become faster."""
        for _ in range(max(1, min(1000, int(seconds / self.seconds)))):
            for side, rounds in self.sides.items():
                if self.ranks.leads or side in ("ranks", "apart"):
                    rounds()

    def measure(self) -> None:
        """One round of each."""
        for side, rounds in self.sides.items():
            distributed.barrier()
            all_take_part = side in ("ranks", "apart")
            clock, processor = rounds() if self.ranks.leads or all_take_part else (0.0, 0.0)
            self.spent[side].append(clock)
            self.used[side].append(processor)

    def row(self) -> dict[str, Any]:
        """What was measured, in rank 0."""
        distributed.barrier()
        every = self.ranks.gathered((self.spent, self.used))
        least = {side: max(min(rank[0][side]) for rank in every) for side in self.sides}
        middle = {side: max(median(rank[0][side]) for rank in every) for side in self.sides}
        processor = {side: max(min(rank[1][side]) for rank in every) for side in self.sides}
        return {
            "workload": self.name,
            "one": least["one"],
            "ranks": least["ranks"],
            "plain": least.get("plain"),
            "speed-up": least["one"] / least["ranks"],
            "median": middle["one"] / middle["ranks"],
            "apart": least["one"] / least["apart"],
            "by CPU": processor["one"] / processor["ranks"],
            "difference": self.difference,
        }


class Plain:
    """The rounds of a plain PyTorch loop, with several threads."""

    def __init__(self, net: nn.Module, fed: Federation, work: Work, *, threads: int) -> None:
        self.net, self.fed, self.threads = net, fed, threads
        self.steps, self.lr = batches(fed, work, 0, 0), work.lr

    def __call__(self) -> tuple[float, float]:
        """Seconds of a round, and of the processor."""
        torch.set_num_threads(self.threads)
        begin, used = time.perf_counter(), time.process_time()
        plain_round(self.net, self.fed, self.steps, self.lr)
        spent = time.perf_counter() - begin, time.process_time() - used
        torch.set_num_threads(1)
        return spent


def measured(names: Sequence[str], ranks: Ranks, options: argparse.Namespace) -> list[Any]:
    """The rows of workloads that take turns, so that a busy moment hits all alike."""
    made = [Sides(name, ranks, options) for name in names]
    for one in made:
        one.warm(options.warm)
    for _ in range(min(50, max(options.repeats, int(4 / made[0].seconds)))):
        for one in made:
            one.measure()
    return [one.row() for one in made]


def together(names: Sequence[str]) -> list[list[str]]:
    """Groups of workloads that are compared with each other."""
    pairs = [list(pair) for pair in COMPARED if {*pair} <= {*names}]
    return pairs + [[name] for name in names if all(name not in pair for pair in pairs)]


def part(rank: int, port: int, names: list[str], options: argparse.Namespace) -> None:
    """One rank's part of the benchmark."""
    size = options.ranks
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, timeout=WAIT)
    with joined(rank, size, seconds=WAIT.total_seconds(), store=store) as ranks:
        rows = [row for group in together(names) for row in measured(group, ranks, options)]
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
    parser.add_argument("--bf16", action="store_true", help="local steps in bfloat16")
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
    more += ["--bf16"] if options.bf16 else []
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
    for row in rows.values():
        if row["plain"] is not None:
            times = f"{row['plain']:.3g} s, {row['plain'] / row['ranks']:.3g} times as long"
            print(f"{row['workload']}: a plain loop on {options.ranks} threads takes {times}")
    for equal, uneven in COMPARED:
        if {equal, uneven} <= rows.keys():
            ratio = {kind: rows[uneven][kind] / rows[equal][kind] for kind in ("one", "ranks")}
            print(f"{uneven} uneven: {ratio['one']:.3g} with one process, {ratio['ranks']:.3g} "
                  f"with {options.ranks}")  # fmt: skip


if __name__ == "__main__":
    main()
