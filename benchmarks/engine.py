"""The batched engine against a plain PyTorch loop, as ratios in one run at one thread.

    python benchmarks/engine.py            the table
    python benchmarks/engine.py --json     the same as JSON
    python benchmarks/engine.py --only W1  one workload
    python benchmarks/engine.py --cpu      processor time instead of seconds, for a busy machine

W1  FedAvg, MLP 60-64-10, 100 clients x 100 examples, batch 10, one epoch, all clients.
W2  the same with 10,000 clients: time for each client's step, and peak memory.
W3  sizes by a power law (largest about 50 times the median), the same number of steps: with W2's
    10,000 clients, and with 1,000 and W1's 100, where one client's sequence of steps is the bound.
W4  CNN on 28x28 images, 20 clients; and the papers' larger CNN, 8 clients.
R   ResNet-18 on 32x32 images, 2 clients x 32 examples, batch 16.
B   steps in bfloat16 relative to float32, on a CPU with instructions for it.
S   start-up: a new process, from import to the end of the first round of a small run.

The plain loop is what one would write by hand: a copied nn.Module and torch.optim.SGD for each
client. Both start from the same model and use the same batches, and must end in the same model.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.core import random
from isonomy.core.batches import plan
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.precision import Precision, has_bf16
from isonomy.models import MODELS

Row = dict[str, object]
clock = time.perf_counter


# --- workloads ------------------------------------------------------------------------------------


def federation(sizes: list[int], shape: tuple[int, ...] = (60,), classes: int = 10) -> Federation:
    generator = torch.Generator().manual_seed(0)
    rows = sum(sizes)
    x = torch.randn(rows, *shape, generator=generator)
    y = torch.randint(classes, (rows,), generator=generator)
    borders = np.concatenate([[0], np.cumsum(sizes)])
    parts = [torch.arange(a, b) for a, b in itertools.pairwise(borders)]
    groups = torch.zeros(rows, 0, dtype=torch.int64)
    return build(x, y, groups, {"train": parts}, classes=classes)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def papers_cnn() -> nn.Module:
    entry = MODELS["cnn"]
    return entry.build((1, 28, 28), 10, **{k: o.default for k, o in entry.options.items()})


def power_law(clients: int, total: int) -> list[int]:
    """Sizes with the largest 50 times the median, in whole batches of 10, summing to `total`."""

    def sizes(exponent: float) -> np.ndarray:
        return (np.arange(1, clients + 1) / clients) ** -exponent

    low, high = 0.01, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        s = sizes(middle)
        low, high = (middle, high) if s[0] / np.median(s) < 50 else (low, middle)
    s = sizes(low)
    steps = np.maximum(1, np.floor(s / s.sum() * (total / 10))).astype(int)
    steps[np.argsort(-s)[: total // 10 - steps.sum()]] += 1
    return [int(10 * n) for n in steps]


# --- the two sides --------------------------------------------------------------------------------


def batches(fed: Federation, work: Work, seed: int, round: int) -> list[Tensor]:
    """The rows of every step of every client, as the engine draws them."""
    out = []
    for k in range(len(fed)):
        n = fed.size(k)
        made = plan(
            work,
            random.key(seed, round, k),
            torch.tensor(n),
            n,
            work.count(n),
            work.passes(n),
        )
        out.append(made.rows + fed.rows(k).start)
    return out


def plain_round(net: nn.Module, fed: Federation, steps: list[Tensor], lr: float) -> list[Tensor]:
    """FedAvg as one would write it in PyTorch."""
    total = [torch.zeros_like(p) for p in net.parameters()]
    weight = 0
    for k, rows in enumerate(steps):
        model = copy.deepcopy(net)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        for index in rows:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(fed.x[index]), fed.y[index])
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            for t, p in zip(total, model.parameters(), strict=True):
                t += fed.size(k) * p
        weight += fed.size(k)
    return [t / weight for t in total]


class Side:
    """The engine's round, with what it needs."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        fed: Federation,
        work: Work,
        *,
        compile: bool = False,
        precision: Precision = "float32",
    ) -> None:
        self.task = Task(make, classes=10)
        self.params = self.task.init(0)
        self.engine = Batched(self.task, fed, seed=0, compile=compile, precision=precision)
        self.work = work

    def round(self) -> dict[str, Tensor]:
        cohort = self.engine.cohort(self.engine.everyone(), work=self.work, round=0)
        fedavg = FedAvg()
        server = fedavg.init_server(self.task, self.params, cohort.clients)
        server = fedavg.round(server, cohort)
        out: dict[str, Tensor] = fedavg.model(self.task, fedavg.deployed(server), ())
        return out

    def warm(self, seconds: float = 3.0) -> None:
        """Run rounds for a while: steps that are used often become faster."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.round()


def interleaved(
    sides: dict[str, Callable[[], object]],
    repeats: int,
    summary: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Seconds of each side, measured in turns, so that a busy moment hits all alike."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            gc.collect()
            begin = clock()
            side()
            spent[name].append(clock() - begin)
    return {name: summary(times) for name, times in spent.items()}


def difference(a: dict[str, Tensor], b: list[Tensor]) -> float:
    return max(float((s - t).abs().max()) for s, t in zip(a.values(), b, strict=True))


# --- the figures ----------------------------------------------------------------------------------


def w1(repeats: int) -> list[Row]:
    fed, work = federation([100] * 100), Work(batch=10, lr=0.1)
    side, compiled = Side(mlp, fed, work), Side(mlp, fed, work, compile=True)
    net = mlp()
    net.load_state_dict(side.params)
    steps = batches(fed, work, 0, 0)
    gap = difference(side.round(), plain_round(net, fed, steps, 0.1))
    gap_compiled = difference(compiled.round(), plain_round(net, fed, steps, 0.1))
    side.warm()
    times = interleaved(
        {
            "plain": lambda: plain_round(net, fed, steps, 0.1),
            "batched": side.round,
            "compiled": compiled.round,
        },
        3 * repeats,
    )
    plain = times["plain"]
    both = {"batched": lambda: in_sequence(side), "compiled": lambda: in_sequence(compiled)}
    run = {"median": interleaved(both, repeats), "best": interleaved(both, repeats, min)}
    return [
        *(
            row(f"W1 seconds a round in a run, {side}, {kind}", spent / 10, "<=", 0.010)
            for kind, sides in run.items()
            for side, spent in sides.items()
        ),
        row("W1 speed-up over the plain loop", plain / times["batched"], ">=", 10, times),
        row("W1 speed-up, compiled", plain / times["compiled"], ">=", 20, times),
        row("W1 largest difference in the model", gap, "<=", 1e-5),
        row("W1 largest difference, compiled", gap_compiled, "<=", 1e-5),
    ]


def in_sequence(side: Side) -> None:
    """Ten rounds one after the other, as in a run; a single one finds the caches cold."""
    for _ in range(10):
        side.round()


def w2(repeats: int) -> list[Row]:
    small = Side(mlp, federation([100] * 100), Work(batch=10, lr=0.1))
    large = Side(mlp, federation([100] * 10_000), Work(batch=10, lr=0.1))
    small.warm(), large.warm()
    times = interleaved({"small": small.round, "large": large.round}, max(3, repeats // 2))
    ratio = (times["large"] / 100_000) / (times["small"] / 1_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [
        row("W2 time of a client's step, relative to W1's", ratio, "<=", 1.3, times),
        row("W2 peak memory of the process, GB", peak, "<=", 2.0),
    ]


def w3(repeats: int) -> list[Row]:
    rows = []
    for clients in (10_000, 1_000, 100):
        equal_sizes = [100] * clients
        uneven = power_law(clients, sum(equal_sizes))
        assert sum(uneven) == sum(equal_sizes)
        assert 45 < max(uneven) / statistics.median(uneven) < 65
        equal = Side(mlp, federation(equal_sizes), Work(batch=10, lr=0.1))
        ragged = Side(mlp, federation(uneven), Work(batch=10, lr=0.1))
        equal.warm(), ragged.warm()
        times = interleaved({"equal": equal.round, "ragged": ragged.round}, repeats)
        name = f"W3 time, relative to equal sizes, {clients:,} clients"
        rows.append(row(name, times["ragged"] / times["equal"], "<=", 1.5, times))
    return rows


def w4(repeats: int) -> list[Row]:
    small = _against_plain("W4", cnn, 20, 100, Work(batch=10, lr=0.05), repeats)
    return small + _against_plain(
        "W4 papers' CNN", papers_cnn, 8, 128, Work(batch=32, lr=0.05), repeats
    )


def resnet18() -> nn.Module:
    entry = MODELS["resnet18"]
    return entry.build((3, 32, 32), 10, **{k: o.default for k, o in entry.options.items()})


def resnet(repeats: int) -> list[Row]:
    work, shape = Work(batch=16, lr=0.05), (3, 32, 32)
    return _against_plain("R  ResNet-18", resnet18, 2, 32, work, min(3, repeats), shape)


def bf16(repeats: int) -> list[Row]:
    if not has_bf16():
        return []
    rows = []
    for name, make, clients, size, shape, work in (
        ("MLP of W1", mlp, 100, 100, (60,), Work(batch=10, lr=0.1)),
        ("CNN of W4", cnn, 20, 100, (1, 28, 28), Work(batch=10, lr=0.05)),
        ("papers' CNN", papers_cnn, 8, 128, (1, 28, 28), Work(batch=32, lr=0.05)),
        ("ResNet-18", resnet18, 2, 32, (3, 32, 32), Work(batch=16, lr=0.05)),
    ):
        fed = federation([size] * clients, shape)
        plain, half = (Side(make, fed, work, precision=kind) for kind in ("float32", "bf16"))
        plain.warm(1), half.warm(1)
        times = interleaved({"float32": plain.round, "bf16": half.round}, min(3, repeats))
        ratio = times["bf16"] / times["float32"]
        rows.append(row(f"B  bf16, time relative to float32, {name}", ratio, "<=", 2, times))
    return rows


def _against_plain(
    name: str,
    make: Callable[[], nn.Module],
    clients: int,
    size: int,
    work: Work,
    repeats: int,
    shape: tuple[int, ...] = (1, 28, 28),
) -> list[Row]:
    fed = federation([size] * clients, shape)
    side = Side(make, fed, work)
    net = make()
    net.load_state_dict(side.params)
    steps = batches(fed, work, 0, 0)
    gap = difference(side.round(), plain_round(net, fed, steps, work.lr))
    times = interleaved(
        {"plain": lambda: plain_round(net, fed, steps, work.lr), "batched": side.round}, repeats
    )
    ratio = times["batched"] / times["plain"]
    return [
        row(f"{name}: time, relative to the plain loop", ratio, "<=", 1.0, times),
        row(f"{name}: largest difference in the model", gap, "<=", 1e-5),
        row(f"{name}: clients at once, as the probe found", probed(side.engine), ">=", 1),
    ]


def probed(engine: Batched) -> int:
    (found,) = engine.chunks.values()
    return found


STARTUP = """
import time; begin = time.perf_counter()
import isonomy.runs.training as r
from isonomy.config.schema import parse
class First(r.Listener):
    def round(self, done, rounds, metrics):
        if done == 1:
            print(time.perf_counter() - begin)
config = {"data": "synthetic", "rounds": 2, "model": "mlp", "evaluate": {"every": 2}}
r.run(parse(config), listeners=[First()])
"""


def startup(repeats: int) -> list[Row]:
    seconds = []
    for _ in range(min(3, repeats)):
        done = subprocess.run([sys.executable, "-c", STARTUP], check=True, capture_output=True)
        seconds.append(float(done.stdout))
    return [
        row("S  start-up, seconds from import to a round", statistics.median(seconds), "<=", 5.0)
    ]


def row(
    name: str, value: float, sign: str, target: float, times: dict[str, float] | None = None
) -> Row:
    met = value >= target if sign == ">=" else value <= target
    seconds = {k: round(v, 5) for k, v in (times or {}).items()}
    return {
        "figure": name,
        "value": value,
        "target": f"{sign} {target:g}",
        "met": met,
        "seconds": seconds,
    }


WORKLOADS = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "R": resnet, "B": bf16, "S": startup}


def main() -> None:
    parser = argparse.ArgumentParser(description="The batched engine against a plain loop.")
    parser.add_argument("--only", choices=WORKLOADS, help="one workload")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="processor time instead of seconds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cpu:
        global clock
        clock = time.process_time
    more = ["--cpu"] if options.cpu else []
    rows: list[Row] = []
    if options.only:
        rows = WORKLOADS[options.only](options.repeats)
    else:
        # each in a process of its own, so that memory and caches are its own
        for name in WORKLOADS:
            command = [sys.executable, __file__, "--only", name, "--json"]
            done = subprocess.run(
                [*command, *more, "--repeats", str(options.repeats)],
                check=True,
                stdout=subprocess.PIPE,
            )
            rows += json.loads(done.stdout)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'figure':52} {'value':>10} {'target':>9}  met  seconds")
    for r in rows:
        shown, met = f"{r['value']:.3g}", "yes" if r["met"] else "NO"
        print(f"{r['figure']:52} {shown:>10} {r['target']:>9}  {met:3}  {r['seconds'] or ''}")


if __name__ == "__main__":
    main()
