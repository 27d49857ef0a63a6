"""Every algorithm's phases on a fake GPU, in a process of its own (see `fake_device`).

    python -m contract.device [all]

Prints, as JSON, what fails for each algorithm, in its main variant or, with `all`, in every
variant. Planted faults must fail.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from isonomy.engines.fake_device import NotOnDevice, Shadowed  # isort: skip  # before any gradient

import torch

from contract.table import algorithms
from isonomy.blocks.descent import descend
from isonomy.contract.running import Transport, home, run
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.capabilities import LearnsFront
from isonomy.core.client import Client
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.robust.attacks import SignFlip
from isonomy.robust.forging import Forging
from isonomy.runs.client_counts import measure, measure_values

HALF = torch.tensor([0.5])  # of the CPU, made before any phase


@dataclass(frozen=True)
class Planted(Algorithm[Global]):
    """FedAvg with a fault."""

    fault: str
    name: ClassVar[str] = "planted"

    def init_server(self, task: Task, params: Any, clients: int) -> Global:
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Any, client: Client) -> tuple[Any, Any]:
        def objective(params: Any, batch: Any) -> Any:
            loss = task.loss(params, batch)
            return loss * HALF.sum() if self.fault == "in a loop" else loss

        made = descend(objective, message["params"], client)
        if self.fault == "CPU":
            made = tree.tmap(lambda t: t * HALF, made)
        if self.fault == "factory":
            made = tree.tmap(lambda t: t + torch.zeros(1, device="cpu"), made)
        if self.fault == "waits" and float(client.rate) > 1:
            made = tree.zeros_like(made)
        return {"params": made}, client.state


PLANTED = ("CPU", "factory", "waits", "in a loop")


def problem(algorithm: Algorithm, rounds: int) -> str | None:
    """What fails: in rounds, in the last phase, in evaluation, or under a simulated attack."""
    where = home(algorithm)
    made: list[Shadowed] = []

    def make(*args: Any, **options: Any) -> Shadowed:
        made.append(Shadowed(*args, **options))
        return made[-1]

    try:
        got = run(algorithm, Transport(make), where, rounds=rounds, finish=True)
        engine = made[-1]
        cohort = engine.cohort(
            engine.everyone(),
            work=where.work,
            round=9,
            around=(Forging(SignFlip(), torch.tensor([1]), seed=0),),
        )
        model = {"model": algorithm.deployed(got.server)}
        asked = measure if isinstance(algorithm, LearnsFront) else measure_values
        given = (algorithm, "test") if asked is measure else (algorithm, where.task, "test")
        cohort.gather(asked(*given), model)  # type: ignore[operator]
        if rounds > 1 or isinstance(algorithm, Planted):
            algorithm.round(algorithm.init_server(where.task, where.params, len(where.federation)),
                            cohort)  # fmt: skip
        if engine.fake.programs.traced:
            traced.add(algorithm.name)
    except NotOnDevice as error:
        return str(error)
    return None


traced: set[str] = set()  # algorithms whose local loops were traced


def main(every: bool) -> None:
    torch.set_num_threads(1)
    chosen = algorithms(main=not every)
    report = {label: problem(made, 3 if every else 1) for label, made in chosen.items()}
    report |= {f"planted: {fault}": problem(Planted(fault), 1) for fault in PLANTED}
    print(json.dumps({"problems": report, "traced": sorted(traced)}))


if __name__ == "__main__":
    main("all" in sys.argv)
