"""The candidates of a trial: its model, points of its front, rules for its decisions."""

from __future__ import annotations

from typing import Any

from isonomy.config.schema import Config
from isonomy.core.capabilities import LearnsFront
from isonomy.metrics import Counts
from isonomy.runs.finished import FinishedRun, reopen
from isonomy.runs.front import preferences_of
from isonomy.studies.selection import Candidate

RAYS = 100  # preferences of a front, minus one


def of_trial(folder: str, method: str, trial: int, settings: dict[str, Any]) -> list[Candidate]:
    """The candidates of a finished trial, with their counts on validation examples."""
    run = reopen(folder)
    algorithm = run.setting.algorithm
    if isinstance(algorithm, LearnsFront):
        preferences = preferences_of(run.setting.config, algorithm, RAYS)
        counts = run.front_counts("validation", preferences)
        return [
            Candidate(method, settings, folder, one, trial, preference=tuple(at.tolist()))
            for at, one in zip(preferences, counts, strict=True)
        ]
    return [Candidate(method, settings, folder, run.counts("validation"), trial)]


def test_counts(run: FinishedRun, candidate: Candidate) -> Counts:
    """The chosen candidate's counts on the test examples."""
    return run.counts("test", candidate.preference)


def settings_of(config: Config, default: Config) -> dict[str, Any]:
    """What a trial's config has that the method's default has not: names and values."""
    found: dict[str, Any] = {}
    for table in ("algorithm", "local"):
        own, usual = config.plain()[table], default.plain()[table]
        found |= {f"{table}.{k}": v for k, v in own.items() if usual.get(k) != v}
    return found
