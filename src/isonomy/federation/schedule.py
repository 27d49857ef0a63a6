"""The questions that a participant answers in a run, derived from the charter's config.

A participant derives this list with its own installation, shows it before it agrees, and answers
nothing else. Which phases a round or the end of a run can ask follows from the code of the
algorithm's `round`, `finish` and `examine`; how often, from the declaration of each phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.asked import times_asked
from isonomy.core.capabilities import EndsEarly, LearnsFront
from isonomy.core.phase import declared
from isonomy.core.preference import ray_of
from isonomy.core.work import Work
from isonomy.federation.flower.codec import MalformedError
from isonomy.federation.flower.phase_runner import READ_ONLY
from isonomy.robust import combiners
from isonomy.robust.defence import LOSS
from isonomy.runs.front import few_of, preferences_of

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
    """Where a question stands, how often it may be asked there, and with which work and rate.

    If it is `last`, it ends training: nothing of a later round follows.
    """

    position: Position
    most: int
    work: Work
    rate: float
    last: bool = False


class Schedule:
    """The questions of a run: those of every round, of the end, and of evaluations."""

    def __init__(self, config: Config, algorithm: Algorithm) -> None:
        self.config, self.algorithm = config, algorithm
        self.may_end = isinstance(algorithm, EndsEarly) and algorithm.may_end
        self.training = times_asked(algorithm, at_end=False)
        self.final = times_asked(algorithm, at_end=True)
        if config.defence.name != "none" and combiners.find(config.defence.name).losses:
            for asked in (self.training, self.final):
                means = [n for n in asked if "mean" in declared(type(algorithm))[n].verbs]
                if means:
                    asked[LOSS_QUESTION] = sum(asked[name] for name in means)
        self.evaluation = self._measured(last=False)
        self.last = self._measured(last=True)

    def _measured(self, *, last: bool) -> dict[str, list[int | None]]:
        """The measurements of an evaluation, each with the grids of preferences that it may have.

        A grid is given by the number that replaces the config's, None for the config's own.
        """
        config, split = self.config, self.config.evaluate.split
        out: dict[str, list[int | None]] = {f"{READ_ONLY}{split}": [None]}
        if not isinstance(self.algorithm, LearnsFront):
            return out
        whole = bool(config.front.rays)

        def add(split: str, whose: str, rays: int | None) -> None:
            out.setdefault(f"{READ_ONLY}{split}:{whose}", []).append(rays)

        if whole:
            add(split, "own", None)
            add(split, "joint", None)
        if self.chooses:  # the clients' preferences, on validation examples
            add("validation", "own", few_of(config, last=last))
        if last and whole and (self.chooses or split != "validation"):
            add("validation", "joint", None)
            if not self.chooses:
                add("validation", "own", None)
        return out

    @property
    def asked(self) -> set[str]:
        """The phases of training and of the end."""
        return {*self.training, *self.final}

    @property
    def chooses(self) -> bool:
        """Whether every client predicts at its own preference."""
        learns = isinstance(self.algorithm, LearnsFront)
        return learns and not tuple(getattr(self.algorithm, "preference", ()))

    def evaluated(self, done: int) -> bool:
        """Whether there is an evaluation after so many rounds."""
        rounds, every = self.config.rounds, self.config.evaluate.every
        return 1 <= done <= rounds and (done == rounds or done % every == 0)

    def slot(self, name: str, round: int, *, final: bool = False) -> Slot:
        """Where a question stands; raises MalformedError for one that is not in the schedule.

        `round` counts from 0. At the end (`final`) and in an evaluation it is the number of rounds
        done. A method that may end early has its end, and the last evaluation, after any round.
        """
        rounds, work = self.config.rounds, self.config.local
        final = final or round == rounds
        early = self.may_end and 1 <= round < rounds
        if name.startswith(READ_ONLY) and name != LOSS_QUESTION:
            last = round == rounds or (early and not self._regular(name, round))
            known = self.last if last else self.evaluation
            if name not in known or not (last or self.evaluated(round)):
                raise MalformedError(
                    f"the charter has no evaluation '{_short(name)}' after {round} rounds"
                )
            most = len((self.last if early else known)[name])
            none = Work(steps=1)  # nothing is trained
            return Slot(Position(round - 1, EVALUATION), most, none, none.lr, last)
        asked = self.final if final else self.training
        if not 0 <= round <= rounds or (final and round < rounds and not early):
            raise MalformedError(
                f"the charter has {rounds} rounds, and this is {'the end' if final else 'round'} "
                + (f"after {round}" if final else f"{round + 1}")
            )
        if name not in asked:
            when = "at the end" if final else "in a round"
            raise MalformedError(f"the charter's method does not ask '{_short(name)}' {when}")
        place = Position(round - 1, FINAL) if final else Position(round, TRAINING)
        other = self.algorithm.other_work(name, work)
        rate = work.rate(round, rounds) if other is None else other.lr
        return Slot(place, asked[name], other or work, rate, final)

    def _regular(self, name: str, done: int) -> bool:
        """Whether a measurement is part of an evaluation that is due anyway."""
        return self.evaluated(done) and name in self.evaluation

    def check_message(self, name: str, round: int, message: Any) -> None:
        """Raise MalformedError for preferences that do not follow from the charter.

        The preferences of a front are those of the config's grid, or of the smaller one on which
        clients choose. The client's own one is any: without validation rows it is others' mean.
        """
        algorithm = self.algorithm
        if not name.startswith(READ_ONLY) or name == LOSS_QUESTION:
            return
        if not isinstance(message, dict) or not set(message) <= {"model", "rays", "ray"}:
            raise MalformedError(f"the message of '{_short(name)}' has unknown parts")
        rays, ray = message.get("rays"), message.get("ray")
        front = isinstance(algorithm, LearnsFront) and name.count(":") == 2
        if (rays is not None) != front or (ray is not None and (front or not self.chooses)):
            raise MalformedError(f"'{_short(name)}' is not asked with such preferences")
        if isinstance(algorithm, LearnsFront) and front:
            last = round == self.config.rounds or self.may_end
            grids = [*(self.last.get(name, ()) if last else ()), *self.evaluation.get(name, ())]
            known = (ray_of(preferences_of(self.config, algorithm, one)) for one in grids)
            if not any(_same(rays, one) for one in known):
                raise MalformedError(f"the preferences of '{_short(name)}' are not the charter's")
        if isinstance(algorithm, LearnsFront) and ray is not None:
            zeros = torch.zeros(len(algorithm.objectives))
            inside = _like(ray, zeros) and bool((ray >= 0).all())
            if not inside or not abs(float(ray.sum()) - 1) < 1e-5:
                raise MalformedError(f"the preference of '{_short(name)}' is not one")

    # --- in words ---------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """The questions in words, from the docstrings of this installation."""
        every, rounds = self.config.evaluate.every, self.config.rounds
        evaluations = sum(self.evaluated(n) for n in range(1, rounds + 1))
        lines = [f"in each of the {rounds} rounds: {self._list(self.training)}"]
        if self.final:
            lines.append(f"at the end: {self._list(self.final)}")
        if self.may_end:
            lines[0] = f"in each of up to {rounds} rounds: {self._list(self.training)}"
        also = self._fronts()
        lines.append(
            f"{evaluations} evaluations (every {every} rounds and after the last){also}"
            if evaluations > 1
            else f"one evaluation, after the last round{also}"
        )
        return lines

    def _fronts(self) -> str:
        """What evaluations measure of fronts."""
        grids = [one for name in list(self.last)[1:] for one in self.last[name]]
        if not grids:
            return ""
        most = self.config.front.rays or few_of(self.config, last=True) or 0
        return f", with the models of up to {most + 1} preferences, on up to two splits"

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


def _like(given: Any, wanted: Tensor) -> bool:
    """Whether something is a tensor of this shape and type."""
    return isinstance(given, Tensor) and given.shape == wanted.shape and given.dtype == wanted.dtype


def _same(given: Any, wanted: Tensor) -> bool:
    return _like(given, wanted) and torch.equal(given, wanted)
