"""The run of one trial: every seed of its config, and what became of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isonomy.config.schema import Config
from isonomy.errors import ConfigError, TrainingError
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener, Listeners
from isonomy.runs.record import Record
from isonomy.runs.results import record
from isonomy.runs.training import run
from isonomy.studies.compare import seeds
from isonomy.studies.parallel import Plan, Report, run_or_resume
from isonomy.studies.pruning import Pruned, Pruning


@dataclass(frozen=True)
class TrialJob:
    """A trial that is to be run: its config, its folder (None: in memory), its pruning."""

    config: Config
    folder: Path | None
    pruning: Pruning


@dataclass(frozen=True)
class Outcome:
    """What became of a trial: its metrics, means over seeds, or why there are none.

    `curve` are the values of the first objective by round, with the first seed.
    """

    values: Mapping[str, float] | None = None
    failed: str | None = None
    pruned: str | None = None
    curve: Mapping[int, float] = field(default_factory=dict)


def run_trial(job: TrialJob, listener: Listener) -> Outcome:
    """Run a trial with every seed, or continue what its folder holds of it.

    It is pruned by the run of the first seed. If a run diverges, the trial has failed.
    """
    found: list[Record] = []
    for seed in seeds(job.config):
        config = job.config.model_copy(update={"seed": seed})
        place = None if job.folder is None else RunFolder(job.folder / f"seed-{seed}")
        watching: list[Listener] = [listener]
        if not found:
            watching.append(job.pruning)
        try:
            if not found and place is not None and place.exists and not place.complete:
                for line in place.lines("rounds.jsonl"):  # those before an interruption
                    job.pruning.round(line["round"], config.rounds, line.get("metrics"))
            found.append(_run(config, place, Listeners(watching)))
        except Pruned as pruned:
            listener.end(str(config.label))
            return Outcome(pruned=pruned.why, curve=dict(job.pruning.curve))
        except (TrainingError, ConfigError) as error:
            return Outcome(failed=str(error))
    names = set.intersection(*(set(one.metrics) for one in found))
    means = {name: _mean(one.metrics[name] for one in found) for name in sorted(names)}
    return Outcome(values=means, curve=_curve(job, found[0].rounds))


def run_in_process(job: TrialJob) -> tuple[Outcome, Report]:
    """Run a trial in another process; the report is replayed in the one that asked for it."""
    report, start = Report(), time.monotonic()
    outcome = run_trial(job, report)
    report.seconds = time.monotonic() - start
    return outcome, report


def _run(config: Config, place: RunFolder | None, listener: Listener) -> Record:
    if place is None:
        return run(config, listeners=[listener])
    run_or_resume(Plan(config, place), listener)
    return record(place)


def _curve(job: TrialJob, lines: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """The first objective by round, as far as it was measured and is finite."""
    name = job.pruning.objective
    values = {line["round"]: (line.get("metrics") or {}).get(name) for line in lines}
    return {r: v for r, v in values.items() if v is not None and math.isfinite(v)}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
