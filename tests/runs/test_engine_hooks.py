"""A run knows an engine only by its hooks, and reports to every listener."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import isonomy
from isonomy.config.schema import parse
from isonomy.engines.base import Fault
from isonomy.engines.loop import Loop
from isonomy.engines.registry import ENGINES, make
from isonomy.errors import ConfigError
from isonomy.runs.listener import Listener
from isonomy.runs.training import Stopped, resume, run

SMALL = {
    "rounds": 3,
    "data": {"name": "synthetic", "clients": 3, "examples": 120},
    "model": "logistic",
    "engine": "loop",
    "evaluate": {"every": 3, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 1},
}


class Hooked(Loop):
    """An engine that uses every hook."""

    made: ClassVar[list[Hooked]] = []

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.exchanges, self.rounds = 0, []
        self.made.append(self)

    def exchange(self, ask: Any) -> Any:
        self.exchanges += 1
        return super().exchange(ask)

    def take_notes(self) -> list[str]:
        return [f"{self.exchanges} exchanges"]

    def take_faults(self) -> list[Fault]:
        return [Fault(1, 0, "local", "it was slow")]

    def saved(self) -> dict[str, Any]:
        return {"exchanges": self.exchanges}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.exchanges = saved["exchanges"]

    def settled(self, round: int) -> None:
        self.rounds.append(round)


class Notes(Listener):
    def __init__(self, stop: int = 0) -> None:
        self.notes: list[str] = []
        self.rounds: list[int] = []
        self.stop = stop

    def round(self, done: int, rounds: int, metrics: Any) -> None:
        self.rounds.append(done)
        if done == self.stop:
            raise Stopped("enough", 15)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_run_uses_every_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "loop", Hooked)
    Hooked.made.clear()
    with pytest.raises(Stopped):
        run(parse(SMALL), tmp_path / "run", listeners=[Notes(stop=2)])
    assert Hooked.made[-1].rounds == [0, 1, 1]  # two checkpoints are kept
    notes = Notes()
    record = resume(tmp_path / "run", listeners=[notes])
    assert Hooked.made[-1].rounds == [1, 2]
    assert "4 exchanges" in notes.notes  # three rounds and an evaluation, two before the stop
    assert record.rounds[-1]["faults"] == [
        {"client": "client 1", "phase": "local", "why": "it was slow"}
    ]
    assert any("'client 1' was left out of 3 exchanges" in note for note in record.notes)


def test_every_listener_hears_of_a_run() -> None:
    class Raising(Listener):
        def round(self, done: int, rounds: int, metrics: Any) -> None:
            raise Stopped("enough", 15)

    first, last = Notes(), Notes()
    isonomy.run(parse(SMALL), listeners=[first, Listener(), last])
    assert first.rounds == last.rounds == [1, 2, 3]
    with pytest.raises(Stopped):
        isonomy.run(parse(SMALL), listeners=[first, Raising(), last])
    assert (first.rounds, last.rounds) == ([1, 2, 3, 1], [1, 2, 3])


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"engine\.name.*'lop'.*Did you mean 'loop'"):
        make("lop", None, None, seed=0, options=None)  # type: ignore[arg-type]


def test_no_engine_is_told_apart_by_its_class() -> None:
    source = Path(isonomy.__file__).parent
    asks = re.compile(r"(isinstance|hasattr|getattr)\([\w.]*engine\b")
    for package in ("runs", "studies", "federation", "deploy", "cli"):
        for file in sorted((source / package).rglob("*.py")):
            assert not asks.search(file.read_text()), file
