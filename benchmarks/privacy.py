"""What differential privacy costs in time: ratios of CPU time, one thread, rounds in turn.

    python benchmarks/privacy.py            the table
    python benchmarks/privacy.py --json     the same as JSON
    python benchmarks/privacy.py --opacus   also Opacus, in a loop over clients

The workload is W1 of benchmarks/engine.py: FedAvg, MLP 60-64-10, 100 clients x 100 examples, batch
10, one epoch, all clients, on the batched engine. Client-level privacy clips and noises every
reply; example-level privacy clips and noises the gradient of every example. Opacus (its own
package) trains every client's model with DP-SGD, with the same sampling rate, clip and noise.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

import engine as workloads
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.batched.engine import Batched
from isonomy.privacy.examples import PrivateExamples
from isonomy.privacy.ledger import Ledger, Terms
from isonomy.privacy.noise import Key
from isonomy.privacy.release import ClientRelease, finite_only

CLIENTS, ROWS, BATCH = 100, 100, 10
CLIP, NOISE = 1.0, 1.0
ROUNDS, OPACUS_ROUNDS = 30, 5
Round = Callable[[int], None]
TARGETS = {"client level": 1.2, "example level, Poisson": 3.0}


def alternating(ones: dict[str, Round], rounds: int) -> dict[str, list[float]]:
    """The CPU times of rounds of each, in turn, after two that warm up."""
    spent: dict[str, list[float]] = {name: [] for name in ones}
    for round in range(rounds + 2):
        for name, one in ones.items():
            begin = time.process_time()
            one(round)
            if round >= 2:
                spent[name].append(time.process_time() - begin)
    return spent


def ratio(one: list[float], other: list[float]) -> float:
    """The median of the ratios of rounds in the same turn, so that other work changes it little."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def ours(kind: str) -> Round:
    """A round of ours, of one kind of privacy."""
    fed = workloads.federation([ROWS] * CLIENTS)
    task, algorithm, work = (
        Task(workloads.mlp, classes=10),
        FedAvg(weight="equal"),
        Work(batch=BATCH),
    )
    engine = Batched(task, fed)
    server = [algorithm.init_server(task, task.init(0), CLIENTS)]
    terms = Terms(
        level="client", delta=1e-5, budget=None, multiplier=NOISE, rate=1.0, clients=CLIENTS,
        rounds=10**6, releases=1,
    )  # fmt: skip
    ledger, key = Ledger(terms), Key.of_seed(0)

    def one(round: int) -> None:
        wrap, around, release = (), (), None
        if kind == "client":
            release = ClientRelease(ledger, key, clip=None, bounds={}, sizes=fed.sizes())
            wrap = (finite_only, release)
        elif kind != "plain":
            around = (PrivateExamples(key, clip=CLIP, noise=NOISE, batches=kind),)  # type: ignore
        cohort = engine.cohort(
            engine.everyone(), work=work, round=round, wrap=wrap, around=around, release=release
        )
        server[0] = algorithm.round(server[0], cohort)

    return one


def opacus() -> Round:
    """One round with Opacus: every client's model, optimiser and loader, one after the other."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    fed, origin = workloads.federation([ROWS] * CLIENTS), workloads.mlp()
    lossy = nn.CrossEntropyLoss()

    def one(round: int) -> None:
        del round
        for k in range(CLIENTS):
            at = fed.rows(k)
            net = copy.deepcopy(origin)
            loader = DataLoader(TensorDataset(fed.x[at], fed.y[at]), batch_size=BATCH)
            net, optimiser, loader = PrivacyEngine().make_private(
                module=net,
                optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
                data_loader=loader,
                noise_multiplier=NOISE,
                max_grad_norm=CLIP,
            )
            for x, y in loader:
                optimiser.zero_grad()
                lossy(net(x), y).backward()
                optimiser.step()

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--opacus", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ones = {
        "plain": ours("plain"),
        "client level": ours("client"),
        "example level, Poisson": ours("poisson"),
        "example level, passes": ours("passes"),
    }
    if given.opacus:
        ones["Opacus, a loop over clients"] = opacus()
    found = alternating(ones, OPACUS_ROUNDS if given.opacus else ROUNDS)
    plain = found["plain"]
    rows = [
        {
            "what": name,
            "milliseconds": round(1000 * min(spent), 1),
            "times plain": round(ratio(spent, plain), 2),
            "target": TARGETS.get(name),
        }
        for name, spent in found.items()
    ]
    if given.opacus:
        faster = ratio(found["Opacus, a loop over clients"], found["example level, Poisson"])
        rows.append({"what": "example level against Opacus", "times faster": round(faster, 1)})
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{k}: {v}" for k, v in row.items() if v is not None))


if __name__ == "__main__":
    main()
