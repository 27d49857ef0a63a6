"""Runs in several processes at once. Each gives the same result as when it is run alone.

Processes that work in the same folder, also on several hosts, share its runs (`share_runs`): each
run is made by the one that has claimed it, and a run whose process was killed is taken over.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, NamedTuple

from isonomy.config.schema import Config
from isonomy.data import memory
from isonomy.errors import RunError, TrainingError
from isonomy.runs.build import versions
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener, Listeners
from isonomy.runs.processes import refuse_under_torchrun
from isonomy.runs.training import resume, run
from isonomy.studies.claims import ClaimLost, busy, claimed

POLL = 2.0  # seconds between two looks at what other processes have done
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
    elsewhere: bool = False  # whether another process makes the run, so this one did not

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


def share_runs(
    plans: Sequence[Plan], jobs: int, listener: Listener
) -> Iterator[tuple[int, TrainingError | None]]:
    """Make these runs, together with other processes that do the same; waits for theirs.

    Yields the number of each run that is complete, and the error of one that diverged.
    """
    waiting, told = list(range(len(plans))), False
    if any(plan.overwrite and busy(plan.place.path) for plan in plans):
        at = next(plan for plan in plans if plan.overwrite and busy(plan.place.path))
        raise RunError(
            f"{busy(at.place.path)} is making the run in '{at.place.path}'; leave out --overwrite "
            "to share the work, or stop that process first."
        )
    while waiting:
        ready = [i for i in waiting if _result(plans[i]) or busy(plans[i].place.path) is None]
        for i, report in _made([plans[i] for i in ready], ready, jobs, listener):
            if not report.elsewhere:
                waiting.remove(i)
                yield i, report.error
        if waiting and not ready:
            if not told:
                who = next(filter(None, (busy(plans[i].place.path) for i in waiting)), "others")
                many = f"{len(waiting)} runs are" if len(waiting) > 1 else "one run is"
                listener.note(f"{many} being made by {who}; waiting for it.")
                told = True
            time.sleep(POLL)


def _made(
    plans: Sequence[Plan], numbers: Sequence[int], jobs: int, listener: Listener
) -> Iterator[tuple[int, Report]]:
    """What became of these runs, as they end: one after the other, or several at once."""
    left = []
    for i, plan in zip(numbers, plans, strict=True):
        done = _result(plan)
        if done is None:
            left.append((i, plan))
        else:
            yield i, done
    if jobs == 1:
        for i, plan in left:
            yield i, _claimed(plan, listener)
        return
    for at, report in _as_they_end([plan for _, plan in left], jobs, _claimed):
        report.replay(listener)
        yield left[at][0], report


def _result(plan: Plan) -> Report | None:
    """The report of a run that is complete or has diverged; None if it is to be made."""
    if plan.overwrite:
        return None
    if plan.place.complete:
        return Report()
    diverged = plan.place.diverged() if plan.place.exists else None
    return None if diverged is None else Report(error=TrainingError(str(diverged["error"])))


def _claimed(plan: Plan, listener: Listener | None = None) -> Report:
    """Make a run, unless another process does."""
    report, start = Report(), time.monotonic()
    with claimed(plan.place.path) as claim:
        if claim is None:
            return Report(elsewhere=True)
        done = _result(plan)
        if done is not None:
            return done
        try:
            run_or_resume(plan, Listeners([claim, report if listener is None else listener]))
        except ClaimLost:
            return Report(elsewhere=True)
        except TrainingError as error:
            report.error = error
            _keep_diverged(plan.config, plan.place, error)
    report.seconds = time.monotonic() - start
    return report


def _keep_diverged(config: Config, place: RunFolder, error: TrainingError) -> None:
    """Write down that a run diverged, so that every report of the comparison says so."""
    if not place.exists:  # a run without a checkpoint was removed
        place.create(config.model_copy(update={"versions": versions()}))
    text = str(error)
    found = re.match(r"round (\d+):", text)
    cure = text.rpartition("; ")[2].removesuffix(".").removesuffix(", and run again")
    about = {"round": int(found[1]) if found else None, "cure": cure, "error": text}
    place.write("diverged.json", json.dumps(about, indent=1).encode())


def at_once(
    plans: Sequence[Plan], jobs: int, make: Callable[[Plan], Report] | None = None
) -> Iterator[Report]:
    """Make these runs, `jobs` at once; yields what each reported, in their order."""
    early: dict[int, Report] = {}
    following = 0
    for i, report in _as_they_end(plans, jobs, make or _one):
        early[i] = report
        while following in early:
            yield early.pop(following)
            following += 1


def _as_they_end(
    plans: Sequence[Plan], jobs: int, make: Callable[[Plan], Report]
) -> Iterator[tuple[int, Report]]:
    """Make these runs, `jobs` at once; yields the number of each that ends, and what it reported.

    All processes are replaced together: a pool that replaces them one by one (its
    `max_tasks_per_child`) hangs in most releases of Python (cpython issue 115634).
    """
    for start in range(0, len(plans), jobs * PER_PROCESS):
        for i, report in _together(plans[start : start + jobs * PER_PROCESS], jobs, make):
            yield start + i, report


def _together(
    plans: Sequence[Plan], jobs: int, make: Callable[[Plan], Report]
) -> Iterator[tuple[int, Report]]:
    with processes(jobs, [plan.config for plan in plans]) as pool:
        waiting = {pool.submit(make, plan): i for i, plan in enumerate(plans)}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
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
