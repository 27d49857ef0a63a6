"""How a run is watched: bars on a terminal, plain lines anywhere else.

Bars are on the error stream. Lines are a log on the output stream, which the result ends; they
step aside to the error stream where the output is a table for another program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from isonomy.cli import shell
from isonomy.runs.listener import Listener

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class Job:
    """A run that will be made: its method, its seed and its rounds."""

    label: str
    seed: int
    rounds: int

    @property
    def title(self) -> str:
        """Method and seed."""
        return f"{self.label}, seed {self.seed}"


@contextmanager
def watching(
    jobs: Sequence[Job], *, quiet: bool = False, aside: bool = False
) -> Iterator[Listener]:
    """A listener for these runs, in this order."""
    if quiet or not sys.stderr.isatty():
        yield Lines(jobs, aside)
        return
    bars = Bars(jobs)
    with bars.progress:
        yield bars


class _Watch(Listener):
    """What both share: which run it is, and notes printed once each."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.number = 0  # of the current run, from 1
        self.job = jobs[0] if jobs else Job("run", 0, 1)
        self.said: set[str] = set()
        self.started = time.monotonic()

    def next(self, job: Job) -> None:
        """Go to this run."""
        planned = [(j.label, j.seed) for j in self.jobs]
        here = (job.label, job.seed)
        self.number = planned.index(here) + 1 if here in planned else self.number + 1
        self.job = job
        self.started = time.monotonic()

    def note(self, text: str) -> None:
        """Print a note that was not printed yet."""
        if text not in self.said:
            self.said.add(text)
            self.say(text)

    def say(self, text: str) -> None:
        """Print a note."""
        shell.note(text)


class Lines(_Watch):
    """A line when a run begins, at each evaluation, and when it ends."""

    def __init__(self, jobs: Sequence[Job], aside: bool = False) -> None:
        super().__init__(jobs)
        self.aside = aside

    def line(self, text: str) -> None:
        """Print a line at once, for whoever follows a log."""
        typer.echo(text, err=self.aside)

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts."""
        self.next(Job(label, seed, rounds))
        count = f"[{self.number}/{len(self.jobs)}] " if len(self.jobs) > 1 else ""
        start = f"goes on after round {done} of {rounds}" if done else f"{rounds} rounds"
        self.line(f"{count}{self.job.title}: {start}")

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A line if the round was measured."""
        if metrics:
            self.line(f"  round {done}/{rounds}: {measured(metrics)}")

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete."""
        taken = time.monotonic() - self.started if seconds is None else seconds
        self.line(f"{label}: done in {duration(taken)}")


class Bars(_Watch):
    """A bar for the current run, and one for all of them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self.progress = _progress()
        self.all: TaskID | None = None
        if len(self.jobs) > 1:
            total = sum(job.rounds for job in self.jobs)
            title = f"{len(self.jobs)} runs"
            self.all = self.progress.add_task(title, total=total, count="", measured="")
        self.one = self._prepare(self.job)
        self.done = 0

    def _prepare(self, job: Job) -> TaskID:
        """A bar for the time in which data and surrogates are made."""
        return self.progress.add_task(job.title, total=None, count="preparing", measured="")

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts: its bar takes the place of the last run's."""
        self.next(Job(label, seed, rounds))
        self.progress.remove_task(self.one)
        self.one = self.progress.add_task(
            self.job.title, total=rounds, completed=done, count=f"{done}/{rounds}", measured=""
        )
        self.done = done
        if self.all is not None:
            self.progress.update(
                self.all, advance=done, count=f"run {self.number}/{len(self.jobs)}"
            )

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round more."""
        changed: dict[str, Any] = {"measured": measured(metrics)} if metrics else {}
        self.progress.update(self.one, completed=done, count=f"{done}/{rounds}", **changed)
        if self.all is not None:
            self.progress.update(self.all, advance=done - self.done)
        self.done = done

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete: the next one is prepared."""
        if self.number < len(self.jobs):
            self.progress.remove_task(self.one)
            self.one = self._prepare(self.jobs[self.number])
        else:
            self.progress.update(self.one, description=f"{label}: complete")

    def say(self, text: str) -> None:
        """Print a note above the bars."""
        self.progress.console.print(
            f"Note: {shell.one_line(text)}", style="yellow", markup=False, highlight=False
        )


def measured(metrics: dict[str, float]) -> str:
    """The latest accuracy, or the loss where there is none.

    >>> measured({"accuracy": 0.84567, "loss": 0.3})
    'accuracy 0.8457'
    """
    name = "accuracy" if metrics.get("accuracy") is not None else "loss"
    value = metrics.get(name)
    return "" if value is None else f"{name} {value:.4f}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(3.21), duration(75)
    ('3.2 s', '1 min 15 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _progress() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False, justify="right"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[measured]}", markup=False),
        console=shell.console(err=True),
        transient=True,
        refresh_per_second=8,
        speed_estimate_period=120,
    )
