"""The kinds of entries of the registry of metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from isonomy.metrics.client import Better
from isonomy.metrics.counts import Floats, Tally

Over = Literal["clients", "examples", "run"]
"""What is averaged or compared: each client counts once, each example counts once, or each run."""


@dataclass(frozen=True)
class Single:
    """A metric with a fixed name, and the function that computes it (None: read from the run)."""

    title: str
    meaning: str
    better: Better | None
    over: Over | None
    compute: Callable[..., object] | None


@dataclass(frozen=True)
class TallyMetric:
    """A metric that is computed from a `Tally`, which says whose examples they are."""

    title: str
    meaning: str  # continues "Over all clients' examples together, "
    better: Better | None
    compute: Callable[[Tally], Floats]
    regression: bool = False  # True if it is also defined for regression
    binary: bool = False  # True if it is defined for two classes only
    needs: str | None = None  # the entry of `Tally.values` that it is computed from

    def defined(self, tally: Tally) -> bool:
        """Whether it is defined for the classes of a tally, and what it needs was measured."""
        if self.needs is not None:
            return self.needs in tally.values
        return tally.classes == 2 if self.binary else tally.classes > 1 or self.regression


@dataclass(frozen=True)
class Value:
    """A value of any set of examples: of everyone, of each group, and of each client.

    `compute` gives it for every row of a tally, [..., 1 + L]; None: it is read from `Tally.values`,
    where it is if its statistics were measured.
    """

    title: str
    meaning: str  # continues "Over all clients' examples together, "
    better: Better
    compute: Callable[[Tally], Floats] | None = None
    partial: bool = False  # True if it may be undefined for a client that has examples

    def rows(self, name: str) -> Callable[[Tally], Floats]:
        """The function that gives the value of every row."""
        return self.compute or (lambda tally: tally.values[name])


@dataclass(frozen=True)
class ClientValue:
    """A value of each client on its own examples: of everyone's row of each client's tally.

    If it is `partial`, it may be undefined for a client that has examples, such as the AUC for a
    client with examples of one class only; summaries leave this client out.
    """

    metric: TallyMetric
    partial: bool = False

    @property
    def title(self) -> str:
        """The value's title."""
        return self.metric.title

    @property
    def better(self) -> Better:
        """Which direction is better."""
        return self.metric.better or "higher"


@dataclass(frozen=True)
class ClientSummary:
    """A summary of a per-client value over clients.

    `better` is None if the direction is that of the value itself.
    """

    title: str
    meaning: str
    better: Better | None
    compute: Callable[[Floats, Better], Floats]
