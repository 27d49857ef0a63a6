"""The questions that a participant answers in a run, derived from the charter's config.

A participant derives this list with its own installation, shows it before it agrees, and answers
nothing else. Which phases a round or the end of a run can ask follows from the code of the
algorithm's `round` and `finish`; how often, from the declaration of each phase.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

import torch

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront
from isonomy.core.phase import declared
from isonomy.core.work import Work
from isonomy.federation.flower.codec import MalformedError
from isonomy.federation.flower.phase_runner import READ_ONLY
from isonomy.robust import combiners
from isonomy.robust.defence import LOSS
from isonomy.runs.front import rays_of

TRAINING, FINAL, EVALUATION = range(3)
LOSS_QUESTION = READ_ONLY + LOSS


class Position(NamedTuple):
    """A place in the order of questions: a round, and in it training, the end, the evaluation."""

    round: int
    stage: int

    def __str__(self) -> str:
        stage = ("", "the end, after ", "the evaluation after ")[self.stage]
        return f"{stage}round {self.round + 1}"


@dataclass(frozen=True)
class Slot:
    """Where a question stands, how often it may be asked there, and with which work and rate."""

    position: Position
    most: int
    work: Work
    rate: float


class Schedule:
    """The questions of a run: those of every round, of the end, and of evaluations."""

    def __init__(self, config: Config, algorithm: Algorithm) -> None:
        self.config, self.algorithm = config, algorithm
        self.training = self._times("round")
        self.final = self._times("finish")
        if config.defence.name != "none" and combiners.COMBINERS[config.defence.name].losses:
            for asked in (self.training, self.final):
                means = [n for n in asked if "mean" in declared(type(algorithm))[n].verbs]
                if means:
                    asked[LOSS_QUESTION] = sum(asked[name] for name in means)
        self.evaluation = dict.fromkeys(self._measured(config.evaluate.split), 1)
        self.last = self.evaluation | dict.fromkeys(self._fronts("validation"), 1)

    def _times(self, method: str) -> dict[str, int]:
        phases = declared(type(self.algorithm))
        out = {}
        for name in phases:
            if name in reached(type(self.algorithm), method):
                times = phases[name].times
                out[name] = int(getattr(self.algorithm, times) if isinstance(times, str) else times)
        return out

    def _measured(self, split: str) -> list[str]:
        return [f"{READ_ONLY}{split}", *self._fronts(split)]

    def _fronts(self, split: str) -> list[str]:
        if not isinstance(self.algorithm, LearnsFront) or not self.config.front.rays:
            return []
        return [f"{READ_ONLY}{split}:{whose}" for whose in ("own", "joint")]

    def evaluated(self, done: int) -> bool:
        """Whether there is an evaluation after so many rounds."""
        rounds, every = self.config.rounds, self.config.evaluate.every
        return 1 <= done <= rounds and (done == rounds or done % every == 0)

    def slot(self, name: str, round: int) -> Slot:
        """Where a question stands; raises MalformedError for one that is not in the schedule.

        `round` counts from 0. The end has the number of rounds, and an evaluation the number of
        rounds done.
        """
        rounds, work = self.config.rounds, self.config.local
        if name.startswith(READ_ONLY) and name != LOSS_QUESTION:
            known = self.last if round == rounds else self.evaluation
            if name not in known or not self.evaluated(round):
                raise MalformedError(
                    f"the charter has no evaluation '{_short(name)}' after {round} rounds"
                )
            none = Work(steps=1)  # nothing is trained
            return Slot(Position(round - 1, EVALUATION), known[name], none, none.lr)
        asked = self.final if round == rounds else self.training
        if not 0 <= round <= rounds:
            raise MalformedError(f"the charter has {rounds} rounds, and this is round {round + 1}")
        if name not in asked:
            when = "at the end" if round == rounds else "in a round"
            raise MalformedError(f"the charter's method does not ask '{_short(name)}' {when}")
        place = Position(rounds - 1, FINAL) if round == rounds else Position(round, TRAINING)
        other = self.algorithm.other_work(name, work)
        if other is not None:
            return Slot(place, asked[name], other, other.lr)
        return Slot(place, asked[name], work, work.rate(round, rounds))

    def check_message(self, name: str, message: Any) -> None:
        """Raise MalformedError for preferences that are not the config's."""
        if "rays" not in message or not isinstance(self.algorithm, LearnsFront):
            return
        rays = rays_of(self.config, self.algorithm)
        if not torch.equal(message["rays"], rays):
            raise MalformedError(f"the preferences of '{_short(name)}' are not the charter's")

    # --- in words ---------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """The questions in words, from the docstrings of this installation."""
        every, rounds = self.config.evaluate.every, self.config.rounds
        evaluations = sum(self.evaluated(n) for n in range(1, rounds + 1))
        lines = [f"in each of the {rounds} rounds: {self._list(self.training)}"]
        if self.final:
            lines.append(f"at the end: {self._list(self.final)}")
        extra = len(self.evaluation) - 1
        also = f" (and {extra} of fronts, for {self.config.front.rays + 1} models)" if extra else ""
        lines.append(
            f"{evaluations} evaluations (every {every} rounds and after the last){also}"
            if evaluations > 1
            else f"one evaluation, after the last round{also}"
        )
        return lines

    def _list(self, asked: dict[str, int]) -> str:
        phases, out = declared(type(self.algorithm)), []
        for name, most in asked.items():
            if name == LOSS_QUESTION:
                does = "the loss of the received model on all training rows, for the defence"
            else:
                does = phases[name].does.rstrip(".")
            often = "" if most == 1 else f", up to {most} times"
            out.append(f"'{name}' ({does}{often})")
        return "; ".join(out) or "nothing"


def _short(name: str) -> str:
    return name[:40]


# --- what a method can ask ------------------------------------------------------------------------


def reached(kind: type[Algorithm], method: str) -> set[str]:
    """The phases that a method of an algorithm can ask, read from the code that it can reach.

    >>> from isonomy.algorithms.personal.finetune import Finetune
    >>> sorted(reached(Finetune, "round")), sorted(reached(Finetune, "finish"))
    (['local'], ['tune'])
    """
    phases, found, seen, todo = set(declared(kind)), set[str](), set[str](), [method]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in phases:
            found.add(name)
            continue
        own = inspect.getattr_static(kind, name, None)
        function = own.fget if isinstance(own, property) else getattr(own, "__func__", own)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if isinstance(code, CodeType):
            todo += _names(code)
    return found


def _names(code: CodeType) -> Iterator[str]:
    """All names of attributes that code uses, with that of the functions inside."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
