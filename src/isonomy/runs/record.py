"""A run as plain values, as reports read it; independent of the engine that ran it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, repr=False)
class Record:
    """One run, finished or stopped early.

    `rounds` has one entry per round with its traffic, and for evaluated rounds
    {"round": t, "metrics": {name: value}}; if the models predict one class for every example, also
    `only_class`, and in the last round `constant`, the metrics of such a prediction. `clients` has
    columns of equal length: round, client, name, split, size, accuracy, loss, and the gaps between
    groups inside that client. `metrics` are those of the last evaluation. `front` has columns too:
    split, client (-1: all clients together), preference.0, ..., and the coordinates of the point.
    `excess` are the values of an `isonomy.runs.excess.ExcessRisk`, and empty if it was not
    measured.
    """

    label: str
    seed: int
    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    clients: dict[str, list[Any]]
    metrics: dict[str, float]
    seconds: float = 0.0
    complete: bool = True
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # about the data, versions, command
    front: dict[str, list[Any]] = field(default_factory=dict)
    excess: dict[str, Any] = field(default_factory=dict)
    verdict: dict[str, Any] | None = None  # by the method: `status`, `text` and `facts`

    def to_frame(
        self,
        by: Literal["run", "round", "client", "group"] = "round",
        *,
        to: Literal["pandas", "polars", "arrow"] = "pandas",
    ) -> Any:
        """The run as a frame: by rounds, clients, groups or as one row; see `isonomy.frame`."""
        import isonomy

        return isonomy.frame(self, by, to=to)

    def figures(self) -> Any:
        """The run's figures, which a notebook shows; see `isonomy.figures`."""
        import isonomy

        return isonomy.figures(self)

    def __repr__(self) -> str:
        """One line: the method, how far the run came, and its first metrics."""
        done = max((int(line.get("round", 0)) for line in self.rounds), default=0)
        state = "complete" if self.complete else "unfinished"
        shown = [n for n in ("accuracy", "loss") if n in self.metrics] or list(self.metrics)[:2]
        numbers = "".join(f", {name}={self.metrics[name]:.4g}" for name in shown)
        return f"Record({self.label!r}, seed={self.seed}, rounds={done}, {state}{numbers})"
