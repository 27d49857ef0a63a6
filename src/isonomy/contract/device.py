"""The device clause: the phases of an algorithm run on a GPU, shown on a fake one.

Import this module first, in a process of its own (see `isonomy.engines.fake_device`):

    python -m isonomy.contract.device fedprox mu=0.5
"""

from __future__ import annotations

from isonomy.engines.fake_device import NotOnDevice, Shadowed  # isort: skip  # before any gradient

import sys
from typing import Any

import torch

from isonomy import algorithms
from isonomy.config.overrides import parse_override
from isonomy.contract.running import Transport, home, run
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront
from isonomy.robust.attacks import SignFlip
from isonomy.robust.forging import Forging
from isonomy.runs.client_counts import measure, measure_values

traced: set[str] = set()  # the algorithms whose local loops were traced


def problem(algorithm: Algorithm, rounds: int = 3) -> str | None:
    """What fails: in rounds, in the last phase, in evaluation, or under a simulated attack."""
    where = home(algorithm)
    made: list[Shadowed] = []

    def make(*args: Any, **options: Any) -> Shadowed:
        made.append(Shadowed(*args, **options))
        return made[-1]

    try:
        got = run(algorithm, Transport(make), where, rounds=rounds, finish=True)
        engine = made[-1]
        forged = Forging(SignFlip(), torch.tensor([1]), seed=0)
        everyone = engine.cohort(engine.everyone(), work=where.work, round=rounds, around=(forged,))
        model = {"model": algorithm.deployed(got.server)}
        if isinstance(algorithm, LearnsFront):
            everyone.gather(measure(algorithm, "test"), model)
        else:
            everyone.gather(measure_values(algorithm, where.task, "test"), model)
        if rounds > 1:
            algorithm.round(got.server, everyone)
    except NotOnDevice as error:
        return str(error)
    if engine.fake.programs.traced:
        traced.add(algorithm.name)
    return None


if __name__ == "__main__":
    options: dict[str, Any] = {}
    for text in sys.argv[2:]:
        options |= parse_override(text)
    found = problem(algorithms.make(sys.argv[1], options))
    print(found or "its phases run on a device")
    sys.exit(1 if found else 0)
