"""All clauses of the contract on one algorithm, with the reason for each one that is broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from isonomy.contract import checks
from isonomy.contract.engines import NAMES, transports
from isonomy.contract.recording import Record, check_recorded, never_asked
from isonomy.core.algorithm import Algorithm
from isonomy.errors import ConfigError, IsonomyError, missing_extra, unknown

OF_A_CLASS: dict[str, Callable[[type[Algorithm]], None]] = {
    "declaration": checks.check_declaration,
    "model": checks.check_model,
}
ON_AN_ENGINE: dict[str, Callable[..., None]] = {
    "engines agree": checks.check_engines_agree,
    "repeatable": checks.check_repeatable,
    "inputs unchanged": checks.check_inputs_unchanged,
    "order": checks.check_order,
    "padding": checks.check_padding,
    "outside untouched": checks.check_outside_untouched,
    "serialisation": checks.check_serialisation,
    "missing replies": checks.check_missing_replies,
    "resume": checks.check_resume,
}
LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class Result:
    """What became of one clause: `why` is empty if it holds. `engine` is empty if it needs none."""

    clause: str
    engine: str
    meaning: str
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether the clause holds."""
        return not self.why

    @property
    def line(self) -> str:
        """One line: pass or fail, the engine, the clause and the reason."""
        start = f"{'pass' if self.passed else 'FAIL'}  {self.engine or '-':8}{self.clause}"
        return start if self.passed else f"{start}: {self.why}"


@dataclass(frozen=True)
class Checked:
    """The clauses of the contract on one algorithm."""

    algorithm: Algorithm
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every clause holds."""
        return all(one.passed for one in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The clauses that are broken."""
        return tuple(one for one in self.results if not one.passed)

    def __repr__(self) -> str:
        lines = [one.line for one in self.results]
        return "\n".join([repr(self.algorithm), *lines, *(f"note  {note}" for note in self.notes)])


def chosen_engines(names: Sequence[str] | None = None) -> list[str]:
    """The engines to check on: those named, or all that are installed."""
    there = transports()
    for name in names or ():
        if name not in NAMES:
            raise ConfigError(unknown("engine", name, NAMES))
        if name not in there:
            raise ConfigError(missing_extra(f"checking on '{name}'", "Flower", "flower"))
    return list(dict.fromkeys(names)) if names else list(there)


def results(
    algorithm: Algorithm, engines: Sequence[str] | None = None, records: list[Record] | None = None
) -> Iterator[Result]:
    """Run the clauses one after the other; what the algorithm exchanged is added to `records`."""
    if not __debug__:
        raise ConfigError("python -O leaves out the checks of the contract; run it without -O.")
    names, there = chosen_engines(engines), transports()
    kind = type(algorithm)
    for clause, of_class in OF_A_CLASS.items():
        yield _result(clause, "", of_class, kind)
    yield _result("phases pure", "", checks.check_phases_pure, algorithm)
    yield _result("recorded", "", check_recorded, algorithm, kept=records)
    for name in names:
        for clause, function in ON_AN_ENGINE.items():
            yield _result(clause, name, function, algorithm, there[name])


def check(algorithm: Algorithm, engines: Sequence[str] | None = None) -> Checked:
    """All clauses of the contract on one algorithm."""
    records: list[Record] = []
    found = tuple(results(algorithm, engines, records))
    return Checked(algorithm, found, tuple(notes(algorithm, records)))


def notes(algorithm: Algorithm, records: list[Record]) -> Iterator[str]:
    """What was not checked: phases that these options never ask."""
    if not records:
        return
    for phase, verb in sorted(never_asked(type(algorithm), records)):
        yield (
            f"phase '{phase}' declares {verb}, but no round asked it in this way with these "
            "options; check the algorithm also with options that do, or remove the declaration."
        )


def _result(
    clause: str, engine: str, function: Callable[..., None], *given: Any, **options: Any
) -> Result:
    meaning = (function.__doc__ or "").strip().partition("\n")[0]
    try:
        function(*given, **options)
    except (AssertionError, IsonomyError) as error:
        return Result(clause, engine, meaning, _sentence(error, function.__name__))
    return Result(clause, engine, meaning)


def _sentence(error: BaseException, function: str) -> str:
    """The reason in one line, without the name of the function that found it."""
    text = re.sub(r"\s+", " ", str(error)).strip().removeprefix(f"{function}: ")
    text = text or "the clause is broken"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
