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

from isonomy.contract.device import problem, traced  # isort: skip  # before any gradient

import torch

from contract.table import algorithms
from isonomy.blocks.descent import descend
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Task

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


def main(every: bool) -> None:
    torch.set_num_threads(1)
    chosen = algorithms(main=not every)
    report = {label: problem(made, 3 if every else 1) for label, made in chosen.items()}
    report |= {f"planted: {fault}": problem(Planted(fault), 1) for fault in PLANTED}
    print(json.dumps({"problems": report, "traced": sorted(traced)}))


if __name__ == "__main__":
    main("all" in sys.argv)
