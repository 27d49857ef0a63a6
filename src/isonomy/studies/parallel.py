"""Runs in several processes at once. Each is the run it would be alone, in a folder of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from isonomy.config.schema import Config
from isonomy.errors import RunError, TrainingError
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener, resume, run

PER_PROCESS = 16  # runs, before new processes take over: memory that was freed is not given back
Plan = tuple[Config, RunFolder, bool]  # what to run, where, and whether to replace what is there


@dataclass
class Told(Listener):
    """What a run in another process said, kept until it ends so that lines of two do not mix."""

    said: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    seconds: float = 0.0
    error: TrainingError | None = None

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts."""
        self.said.append(("begin", (label, seed, done, rounds)))

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round that was measured, or the last."""
        if metrics or done == rounds:
            self.said.append(("round", (done, rounds, metrics)))

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete."""
        self.said.append(("end", (label,)))

    def note(self, text: str) -> None:
        """Something the user should read."""
        self.said.append(("note", (text,)))

    def repeat(self, listener: Listener) -> None:
        """Tell it again, to whoever watches here."""
        for name, values in self.said:
            getattr(listener, name)(*values, *([self.seconds] if name == "end" else []))


def run_or_resume(plan: Plan, listener: Listener) -> None:
    """Make the run, or go on with what is there of it."""
    config, place, overwrite = plan
    if place.exists and not overwrite:
        if not place.complete:
            resume(place.path, listener=listener)
    else:
        run(config, place.path, listener=listener, overwrite=overwrite)


def at_once(plans: Sequence[Plan], jobs: int) -> Iterator[Told]:
    """Make these runs, so many at once; what each said, in their order.

    The processes are renewed all together: a pool that renews them one by one (its
    `max_tasks_per_child`) stands still for ever in most releases of Python (cpython issue 115634).
    """
    for start in range(0, len(plans), jobs * PER_PROCESS):
        yield from _together(plans[start : start + jobs * PER_PROCESS], jobs)


def _together(plans: Sequence[Plan], jobs: int) -> Iterator[Told]:
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(threads,)) as pool:
        waiting = [pool.submit(_one, plan) for plan in plans]
        try:
            for future in waiting:
                yield future.result()
        except BrokenProcessPool:
            raise RunError(
                "a process that made a run was ended from outside, perhaps for want of memory; "
                "repeat the command, with fewer --jobs, and it goes on from there."
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def _start(threads: int) -> None:
    """Prepare a process: its share of the cores, and a quiet end when the user interrupts."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # runs survive being killed
    torch.set_num_threads(threads)


def _one(plan: Plan) -> Told:
    told, start = Told(), time.monotonic()
    try:
        run_or_resume(plan, told)
    except TrainingError as error:
        told.error = error
    told.seconds = time.monotonic() - start
    return told
