"""Progress of runs: bars on a terminal, plain lines elsewhere.

Bars go to standard error. Lines are a log on standard output, above the result; they go to standard
error where the output is a table for another program.
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
    """A run that is to be executed: its method, seed and rounds."""

    label: str
    seed: int
    rounds: int

    @property
    def title(self) -> str:
        """Method and seed."""
        return f"{self.label}, seed {self.seed}"


@contextmanager
def show_progress(
    jobs: Sequence[Job], *, quiet: bool = False, to_stderr: bool = False
) -> Iterator[Listener]:
    """A listener that shows the progress of these runs, in this order."""
    if quiet or not sys.stderr.isatty():
        yield Lines(jobs, to_stderr)
        return
    bars = Bars(jobs)
    with bars.progress:
        yield bars


@contextmanager
def show_trials(*, quiet: bool = False) -> Iterator[Listener]:
    """A listener that shows one line per trial, when it has ended; their number is not known."""
    yield Trials(quiet)


class Trials(Listener):
    """One line per trial, and notes that are printed once each."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.printed: set[str] = set()
        self.last = ""

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """Keep what was measured last."""
        self.last = f": {measured(metrics)}" if metrics else self.last

    def end(self, label: str, seconds: float | None = None) -> None:
        """A trial is complete."""
        if not self.quiet:
            taken = "" if seconds is None else f" ({duration(seconds)})"
            typer.echo(f"  {label}{self.last}{taken}", err=True)

    def note(self, text: str) -> None:
        """Print a note, unless it was printed before."""
        if text not in self.printed:
            self.printed.add(text)
            shell.note(text)


class _Progress(Listener):
    """Shared by bars and lines: the current run, and notes that are printed once each."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.number = 0  # the current run, counted from 1
        self.job = jobs[0] if jobs else Job("run", 0, 1)
        self.printed: set[str] = set()
        self.started = time.monotonic()

    def next(self, job: Job) -> None:
        """Make this the current run."""
        planned = [(j.label, j.seed) for j in self.jobs]
        here = (job.label, job.seed)
        self.number = planned.index(here) + 1 if here in planned else self.number + 1
        self.job = job
        self.started = time.monotonic()

    def note(self, text: str) -> None:
        """Print a note, unless it was printed before."""
        if text not in self.printed:
            self.printed.add(text)
            self.print_note(text)

    def print_note(self, text: str) -> None:
        """Print a note."""
        shell.note(text)


class Lines(_Progress):
    """One line when a run begins, at each evaluation, and when it ends."""

    def __init__(self, jobs: Sequence[Job], to_stderr: bool = False) -> None:
        super().__init__(jobs)
        self.to_stderr = to_stderr

    def line(self, text: str) -> None:
        """Print a line."""
        typer.echo(text, err=self.to_stderr)

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts."""
        self.next(Job(label, seed, rounds))
        count = f"[{self.number}/{len(self.jobs)}] " if len(self.jobs) > 1 else ""
        start = f"continues after round {done} of {rounds}" if done else f"{rounds} rounds"
        self.line(f"{count}{self.job.title}: {start}")

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """Print a line if the round was evaluated."""
        if metrics:
            self.line(f"  round {done}/{rounds}: {measured(metrics)}")

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete."""
        taken = time.monotonic() - self.started if seconds is None else seconds
        self.line(f"{label}: done in {duration(taken)}")


class Bars(_Progress):
    """One bar for the current run, and one for all runs."""

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
        """A bar without an end, while data and surrogates are prepared."""
        return self.progress.add_task(job.title, total=None, count="preparing", measured="")

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts: its bar replaces that of the previous run."""
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
        """A round is over."""
        changed: dict[str, Any] = {"measured": measured(metrics)} if metrics else {}
        self.progress.update(self.one, completed=done, count=f"{done}/{rounds}", **changed)
        if self.all is not None:
            self.progress.update(self.all, advance=done - self.done)
        self.done = done

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete, perhaps before its last round; the next one is prepared."""
        if self.all is not None:
            self.progress.update(self.all, advance=self.job.rounds - self.done)
            self.done = self.job.rounds
        if self.number < len(self.jobs):
            self.progress.remove_task(self.one)
            self.one = self._prepare(self.jobs[self.number])
        else:
            self.progress.update(self.one, description=f"{label}: complete")

    def print_note(self, text: str) -> None:
        """Print a note above the bars."""
        self.progress.console.print(
            f"Note: {shell.one_line(text)}", style="yellow", markup=False, highlight=False
        )


def measured(metrics: dict[str, float]) -> str:
    """The accuracy, or the loss if there is no accuracy, as text.

    >>> measured({"accuracy": 0.84567, "loss": 0.3})
    'accuracy 0.8457'
    """
    name = "accuracy" if metrics.get("accuracy") is not None else "loss"
    value = metrics.get(name)
    return "" if value is None else f"{name} {value:.4f}"


def duration(seconds: float) -> str:
    """A number of seconds as text.

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
