"""Every algorithm on several ranks, against one process: one program, started once per rank.

    python -m contract.ranks RANK SIZE PORT [all]

All ranks stay in one process group through all algorithms. Rank 0 compares, and prints as JSON what
differs for each algorithm, in its main variant or, with `all`, in every variant. Two planted faults
must differ.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import distributed

from contract.table import algorithms
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.contract.running import Transport, close, copied, home, run, same_bits
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.runner import Untraced
from isonomy.engines.distributed.engine import Distributed
from isonomy.engines.distributed.ranks import Ranks

SHARES = 6  # of 8 clients: two and three ranks have several shares each
ROUNDS = 3


def untraced(engine: Batched) -> Batched:
    """The engine without tracing, which other clauses check and which takes most of the time."""
    engine.programs = Untraced()
    return engine


def one_process(task: Task, federation: Federation, **options: Any) -> Engine:
    return untraced(Batched(task, federation, **options))


class OnRanks(Transport):
    """Ranks: every rank holds the states of its own clients."""

    def __init__(self, ranks: Ranks) -> None:
        def make(task: Task, federation: Federation, **options: Any) -> Engine:
            engine = Distributed(task, federation, ranks=ranks, **options)
            untraced(engine.inner)
            return engine

        super().__init__(make)

    def states(self, engine: Engine) -> Tree:
        return copied(engine.all_states())


@dataclass(frozen=True)
class OwnServer(Algorithm[Global]):
    """A planted fault: the server's state is not the same in all ranks."""

    name: ClassVar[str] = "own_server"

    def init_server(self, task: Task, params: Any, clients: int) -> Global:
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        made = FedAvg().round(server, cohort)
        return Global(tree.tmap(lambda t: t + 0.01 * distributed.get_rank(), made.params))


@dataclass(frozen=True)
class OwnRank(Algorithm[Global]):
    """A planted fault: clients reply otherwise in another process."""

    name: ClassVar[str] = "own_rank"

    def init_server(self, task: Task, params: Any, clients: int) -> Global:
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Any, client: Client) -> tuple[Any, Any]:
        rank = distributed.get_rank()
        return {"params": tree.scale(message["params"], 1.0 + rank)}, client.state


PLANTED: dict[str, Algorithm] = {
    "planted: own server": OwnServer(),
    "planted: own rank": OwnRank(),
}


def differences(algorithm: Algorithm, several: dict[int, OnRanks], rank: int) -> list[str]:
    """What differs in rank 0 between one process and several ranks."""
    where, found = home(algorithm), []
    finish: dict[str, Any] = {"rounds": ROUNDS, "finish": True}
    for shares in (SHARES, "auto"):
        divided = {"shares": shares} if shares != "auto" else {}
        one = None
        if rank == 0:
            one = run(algorithm, Transport(one_process), where, **divided, **finish)
        for size, transport in several.items():
            if rank >= size or (shares == "auto" and size < max(several)):
                continue
            got = run(algorithm, transport, where, shares=shares, **finish)
            compare = close if shares == "auto" else same_bits
            try:
                if one is not None:
                    compare(got, one, f"{size} ranks, shares = {shares}")
            except AssertionError as error:
                found.append(str(error).splitlines()[0])
    return found


def main(rank: int, size: int, port: int, every: bool) -> None:
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60))
    distributed.init_process_group(
        "gloo", rank=rank, world_size=size, store=store, timeout=timedelta(seconds=120)
    )
    several = {}
    for count in range(2, size + 1):
        group = distributed.new_group(list(range(count)), timeout=timedelta(seconds=120))
        several[count] = OnRanks(Ranks(rank, count, seconds=120, group=group))
    report = {
        label: differences(algorithm, several, rank)
        for label, algorithm in {**algorithms(main=not every), **PLANTED}.items()
    }
    if rank == 0:
        print(json.dumps(report))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*(int(n) for n in sys.argv[1:4]), every="all" in sys.argv)
