"""A fuzzer: a source of cases, and what is done with each; runs of many cases."""

from __future__ import annotations

import hashlib
import resource
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fuzz import guard

CORPUS = Path(__file__).with_name("corpus")
SOURCE = str(Path(guard.__file__).parents[2] / "src")
Try = Callable[[bytes], None]


@dataclass(frozen=True)
class Fuzzer:
    """`opened` prepares what all cases need in a folder, and gives what is done with one case.

    A case is the content of a file, so that a case that found a bug can be kept as one.
    """

    name: str
    cases: SearchStrategy[bytes]
    opened: Callable[[Path], AbstractContextManager[Try]]

    def corpus(self) -> list[Path]:
        """The cases that found bugs."""
        folder = CORPUS / self.name
        return sorted(folder.iterdir()) if folder.is_dir() else []


@dataclass
class Outcome:
    """What a run found: the number of cases, and for each bug where it is and a small case."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    bugs: dict[str, bytes] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


@cache
def warm_up() -> None:
    """Import what runs import late: that writes caches, and does not depend on the case."""
    from isonomy import api

    for engine in ("loop", "batched"):
        api.run(
            api.make_config(
                data={"name": "synthetic", "examples": 60},
                model="logistic",
                rounds=1,
                engine=engine,
                excess={"clusters": "none"},
            )
        )


@contextmanager
def ready(fuzzer: Fuzzer) -> Iterator[Try]:
    """What is done with a case, watched; an escape or an unexpected error raises."""
    warm_up()
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        place = Path(folder)
        with fuzzer.opened(place) as one:

            def watched(case: bytes) -> None:
                with guard.watching(place):
                    one(case)

            yield watched


def run(fuzzer: Fuzzer, *, seconds: float = 0.0, cases: int = 0, first_seed: int = 0) -> Outcome:
    """Try cases for some seconds, or a number of cases; a bug does not end it."""
    out = Outcome(fuzzer.name)
    batch = cases or 500
    with ready(fuzzer) as one, _limited_memory():
        begin = time.monotonic()
        number = first_seed
        while not cases or number == first_seed:
            _batch(fuzzer, one, out, number, batch, begin + seconds if seconds else None)
            number += 1
            if seconds and time.monotonic() - begin > seconds:
                break
        out.seconds = time.monotonic() - begin
    return out


def _batch(
    fuzzer: Fuzzer, one: Try, out: Outcome, number: int, most: int, end: float | None
) -> None:
    """Cases of one seed; each bug that is found is made small, recorded, and then left alone."""
    found: dict[str, tuple[bytes, str]] = {}
    while True:
        found.clear()

        @seed(number)
        @settings(
            max_examples=most,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @given(fuzzer.cases)
        def attempt(case: bytes) -> None:
            if end is not None and time.monotonic() > end:
                return
            out.cases += 1
            try:
                one(case)
            except Exception as error:
                where = place_of(error)
                if where in out.bugs:
                    return
                found[where] = case, "".join(traceback.format_exception(error))  # the last is best
                raise

        try:
            attempt()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or not found:
                raise
            for where, (case, text) in found.items():
                out.bugs[where], out.texts[where] = case, text
        else:
            return


def place_of(error: BaseException) -> str:
    """What an error is and where in the package it was raised: bugs of one place are one bug."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, guard.Bug) and error.__cause__ is not None:
        frames = traceback.extract_tb(error.__cause__.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(SOURCE)] or list(frames)
    last = own[-1]
    if last.filename.startswith(str(CORPUS.parent)):
        return f"{type(error).__name__}: {str(error)[:60]}"
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.name}:{last.lineno}"


def keep(outcome: Outcome, folder: Path = CORPUS) -> list[Path]:
    """Write the cases that found bugs to the corpus."""
    paths = []
    for case in outcome.bugs.values():
        path = folder / outcome.name / hashlib.sha256(case).hexdigest()[:12]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case)
        paths.append(path)
    return paths


@contextmanager
def _limited_memory() -> Iterator[None]:
    """A case that asks for too much memory gets an error, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (guard.MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
