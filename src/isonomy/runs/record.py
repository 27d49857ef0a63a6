"""What a report is made of: runs as plain values, whoever ran them and wherever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """One finished (or stopped) run.

    `rounds` holds, for each evaluated round, {"round": t, "metrics": {name: value}} and for every
    round its traffic. `clients` are columns of equal length: round, client, name, split, size,
    accuracy, loss and the group gaps on that client. `metrics` are those of the last evaluation.
    `front` has columns too: split, client (-1: all together), preference.0, ..., and the point.
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
    facts: dict[str, Any] = field(default_factory=dict)  # data description, versions, and the like
    front: dict[str, list[Any]] = field(default_factory=dict)
    verdict: dict[str, Any] | None = None  # the method's own: `status`, `text` and `facts`
