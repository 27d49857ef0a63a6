"""Listeners receive the progress of a run."""

from __future__ import annotations

from collections.abc import Sequence


class Listener:
    """Receives the progress of runs. Subclass it and override what you need.

    Pass listeners to `isonomy.run(..., listeners=[...])`. An exception that a listener raises ends
    the run, which can be resumed from its last checkpoint.
    """

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts, or resumes with `done` of its `rounds` completed."""

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round ends; `metrics` are None if it was not evaluated."""

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete; `seconds` is its duration if it was made in another process."""

    def note(self, text: str) -> None:
        """A sentence that the user should read."""


class Listeners(Listener):
    """Passes every report to several listeners, in their order."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self.listeners = tuple(listeners)

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts."""
        for listener in self.listeners:
            listener.begin(label, seed, done, rounds)

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round ends."""
        for listener in self.listeners:
            listener.round(done, rounds, metrics)

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete."""
        for listener in self.listeners:
            listener.end(label, seconds)

    def note(self, text: str) -> None:
        """A sentence that the user should read."""
        for listener in self.listeners:
            listener.note(text)
