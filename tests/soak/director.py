"""Carries out the plan on real processes, and keeps a record of what was done and when."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from federation.process_table import descendants, marked
from federation.real import Place
from soak.plan import ORGANISER, Event, Plan
from soak.watch import Memory, strangers

EVERY = 5.0  # seconds between two samples
PAUSE = 2.0  # seconds until what was killed is started again


class SoakError(Exception):
    """The test failed; the text says how."""


@dataclass(frozen=True)
class Struck:
    """An event that was carried out, after `round` rounds, to one participant or the organiser."""

    event: Event
    name: str
    round: int
    seconds: float  # since the start
    printed: Mapping[str, int]  # how much everyone had printed, in characters


class Director:
    """Starts everyone, strikes as planned, and samples memory and addresses until all is over."""

    def __init__(self, place: Place, plan: Plan, end: float, say: Callable[[str], None]) -> None:
        self.place, self.plan, self.say = place, plan, say
        self.memory = Memory()
        self.struck: list[Struck] = []
        self.strangers: set[str] = set()
        self.first_round = 0.0  # seconds until the first round was done
        self._begin, self._end = time.monotonic(), end
        self._left = list(plan.events)
        self._due: dict[Event, float] = {}  # when the next event strikes
        self._later: list[tuple[float, Callable[[], object]]] = []
        # who stands still or was killed: since which round, until when, and how it goes on
        self._down: dict[str, tuple[int, float, Callable[[], object]]] = {}
        self._away: dict[str, int] = {}  # who was struck, and the round since which it may answer
        self._sampled = 0.0
        self._shown = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begin

    def run(self) -> None:
        """From the start of the processes to their end; raises SoakError if one fails."""
        self.place.serve()
        for name in self.plan.names:
            self._join(name)
        while self._running():
            lines = self.place.rounds() if self.place.run.exists() else []
            self._follow(lines)
            now = time.monotonic()
            if now > self._end:
                raise SoakError(f"the time is over after {len(lines)} rounds\n{self.place.logs()}")
            for when, act in [item for item in self._later if item[0] <= now]:
                self._later.remove((when, act))
                act()
            self._release(lines)
            self._strike(len(lines))
            if now - self._sampled > EVERY:
                self._sampled = now
                self._sample(len(lines))
            time.sleep(0.3)

    def _join(self, name: str) -> None:
        arguments = ["join", *self.place.joining(name)]
        if name == self.plan.attacker:
            plan = str(self.place.folder / "plan.json")
            self.place.start(name, sys.executable, "-m", "soak.attacker", plan, *arguments)
        else:
            self.place.isonomy(name, *arguments)

    def _running(self) -> bool:
        """Whether a process is still running; raises SoakError if one has failed."""
        for name, process in self.place.processes.items():
            if process.poll():
                raise SoakError(f"'{name}' ended with {process.poll()}\n{self.place.logs()}")
        return any(process.poll() is None for process in self.place.processes.values())

    # --- strikes ----------------------------------------------------------------------------------

    def _follow(self, lines: list[dict]) -> None:
        """Note who is back, and show the progress."""
        done = len(lines)
        if done and not self.first_round:
            self.first_round = self.seconds
        for name, since in list(self._away.items()):
            for line in lines[since:]:
                if all(fault["client"] != name for fault in line.get("faults", ())):
                    del self._away[name]
                    self.say(f"{self.seconds:6.0f} s: {name} is back in round {line['round']}")
                    break
        if done >= self._shown + 20:
            self._shown = done - done % 20
            self.say(f"{self.seconds:6.0f} s: {done} of {self.plan.rounds} rounds")

    def _strike(self, done: int) -> None:
        """Carry out the next event if it is due.

        Nobody is struck again before it is back, and the organiser only if everyone is.
        """
        if not self._left or done < self._left[0].round or ORGANISER in self._away:
            return
        event = self._left[0]
        if set(event.who or self.plan.names) & set(self._away):
            return
        if time.monotonic() < self._due.setdefault(event, time.monotonic() + event.delay):
            return
        del self._left[0]
        for name in event.who or (ORGANISER,):
            self._act(event, name, done)

    def _release(self, lines: list[dict]) -> None:
        """Let those go on that were away for long enough to be noticed.

        Otherwise one that was killed right after its reply could be back before the next is due.
        """
        for name, (since, until, go_on) in list(self._down.items()):
            named = any(
                fault["client"] == name
                for line in lines[since:]
                for fault in line.get("faults", ())
            )
            late = until + 3 * self.place.timeout  # it was not noticed, which will be reported
            if time.monotonic() > (until if named else late):
                del self._down[name]
                go_on()

    def _act(self, event: Event, name: str, done: int) -> None:
        printed = {who: len(text) for who, text in logs_of(self.place.folder).items()}
        self.struck.append(Struck(event, name, done, self.seconds, printed))
        lasting = f" for {event.seconds:g} s or more" if event.seconds else ""
        self.say(f"{self.seconds:6.0f} s: {event.kind} of {name}{lasting}, after round {done}")
        now = time.monotonic()
        if event.kind == "restart":
            self.place.crash(ORGANISER)
            again = ("--resume", str(self.place.run))
            self._later.append((now + PAUSE, lambda: self.place.serve(*again)))
            self._away[name] = done
        elif event.kind == "kill":
            self.place.crash(name)
            self._down[name] = (done, now + PAUSE, lambda: self._join(name))
            self._away[name] = done + 2  # it may have answered in the round that is going on
        else:
            first = self.place.processes[name].pid
            stopped = descendants(first) if event.kind == "stall" else [first]
            for pid in stopped:
                _signal(pid, signal.SIGSTOP)
            self._down[name] = (done, now + event.seconds, lambda: _continue(stopped))
            self._away[name] = done + 2

    # --- samples ----------------------------------------------------------------------------------

    def _sample(self, done: int) -> None:
        for owner, process in list(self.place.processes.items()):
            self.memory.sample(owner, descendants(process.pid), self.seconds, done)
        self.strangers |= strangers(marked(self.place.folder))


def _continue(stopped: list[int]) -> None:
    for pid in reversed(stopped):
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def logs_of(folder: Path) -> dict[str, str]:
    """What each process printed, by its name."""
    return {path.stem: path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))}
