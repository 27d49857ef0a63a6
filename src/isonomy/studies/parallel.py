"""Runs in several processes at once. Each gives the same result as when it is run alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, NamedTuple

from isonomy.config.schema import Config
from isonomy.data import memory
from isonomy.errors import RunError, TrainingError
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener
from isonomy.runs.processes import refuse_under_torchrun
from isonomy.runs.training import resume, run

PER_PROCESS = 16  # runs before processes are replaced, because they do not return freed memory


class Plan(NamedTuple):
    """A run to make: its config and folder.

    `overwrite` replaces what the folder holds; `keep` writes a model that its verdict withholds.
    """

    config: Config
    place: RunFolder
    overwrite: bool = False
    keep: bool = False


@dataclass
class Report(Listener):
    """What a run in another process reported; replayed when it ends, so that runs do not mix."""

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    seconds: float = 0.0
    error: TrainingError | None = None

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts."""
        self.calls.append(("begin", (label, seed, done, rounds)))

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round that was evaluated, or the last."""
        if metrics or done == rounds:
            self.calls.append(("round", (done, rounds, metrics)))

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete."""
        self.calls.append(("end", (label,)))

    def note(self, text: str) -> None:
        """A sentence that the user should read."""
        self.calls.append(("note", (text,)))

    def replay(self, listener: Listener) -> None:
        """Report it again, to a listener of this process."""
        for name, values in self.calls:
            getattr(listener, name)(*values, *([self.seconds] if name == "end" else []))


def run_or_resume(plan: Plan, listener: Listener) -> None:
    """Make the run, or resume it if its folder holds an unfinished one."""
    config, place, overwrite, keep = plan
    refuse_under_torchrun("this command")
    if place.exists and not overwrite:
        if not place.complete:
            resume(place.path, listeners=[listener], keep=keep)
    else:
        run(config, place.path, listeners=[listener], overwrite=overwrite, keep=keep)


def at_once(plans: Sequence[Plan], jobs: int) -> Iterator[Report]:
    """Make these runs, `jobs` at once; yields what each reported, in their order.

    All processes are replaced together: a pool that replaces them one by one (its
    `max_tasks_per_child`) hangs in most releases of Python (cpython issue 115634).
    """
    for start in range(0, len(plans), jobs * PER_PROCESS):
        yield from _together(plans[start : start + jobs * PER_PROCESS], jobs)


def _together(plans: Sequence[Plan], jobs: int) -> Iterator[Report]:
    with processes(jobs, [plan.config for plan in plans]) as pool:
        waiting = [pool.submit(_one, plan) for plan in plans]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def processes(jobs: int, configs: Sequence[Config]) -> Iterator[ProcessPoolExecutor]:
    """A pool of so many processes that share the cores; raises RunError if one is killed.

    Data from memory that the configs name are sent to each process.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    data = memory.packed(config.data.model_dump() for config in configs)
    given = (threads, data)
    with ProcessPoolExecutor(jobs, context, initializer=_start, initargs=given) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise RunError(
                "a process that made a run was killed, perhaps because memory ran out; repeat the "
                "command with fewer --jobs, and it continues from there."
            ) from None


def _start(threads: int, data: bytes) -> None:
    """Prepare a process: its share of the cores, the data from memory, and no traceback when the
    user interrupts.
    """
    import torch

    memory.unpack(data)

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # killed runs can be resumed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, also if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _one(plan: Plan) -> Report:
    report, start = Report(), time.monotonic()
    try:
        run_or_resume(plan, report)
    except TrainingError as error:
        report.error = error
    report.seconds = time.monotonic() - start
    return report
