"""The results of tuning: trials, the best of every method, and a config to compare them with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.config.overrides import merge
from isonomy.config.schema import Config, parse
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.names import parse as parse_metric
from isonomy.report.tables import Cell, Column, Table
from isonomy.studies.search import Trial, costs_of, front_of

_OF_A_TRIAL = ("label", "series", "algorithm", "compare", "versions")


@dataclass(frozen=True)
class Tuned:
    """What `isonomy.tune` returns: equally many trials of every method.

    `trials` has one row per trial. With one objective, `best` is the trial with the best value.
    With several it is, of the trials that no other trial of the method beats in all objectives, the
    one nearest to the best value of each objective; every objective counts in units of its range
    over such trials of all methods.
    """

    config: Config
    methods: Mapping[str, Config]  # by label: the config that the method started from
    objectives: Sequence[str]
    seeds: Sequence[int]
    trials: Sequence[Trial]
    folder: Path | None = None

    def of(self, method: str) -> list[Trial]:
        """The trials of a method, in their order."""
        if method not in self.methods:
            raise ConfigError(unknown("method", method, self.methods))
        return [trial for trial in self.trials if trial.method == method]

    def default(self, method: str) -> Trial:
        """The method's first trial, with the hyper-parameters that it has without tuning."""
        return self.of(method)[0]

    def front(self, method: str) -> list[Trial]:
        """The complete trials that no other trial of the method beats in all objectives."""
        return front_of(self.of(method), self.objectives)

    def best(self, method: str) -> Trial:
        """The method's best trial; raises ConfigError if none is complete."""
        front = self.front(method)
        if not front:
            first = next((t.why for t in self.of(method) if t.why), "none was run")
            raise ConfigError(f"no trial of '{method}' is complete; the first reason is: {first}")
        fronts = [row for name in self.methods for row in self.front(name)]
        costs = [costs_of(row, self.objectives) for row in fronts]
        least = [min(column) for column in zip(*costs, strict=True)]
        width = [max(column) - min(column) or 1.0 for column in zip(*costs, strict=True)]

        def distance(trial: Trial) -> float:
            parts = zip(costs_of(trial, self.objectives), least, width, strict=True)
            return math.fsum(((cost - low) / wide) ** 2 for cost, low, wide in parts)

        return min(front, key=distance)  # the earliest, if several are equal

    @property
    def usable(self) -> list[str]:
        """The methods with a complete trial."""
        return [name for name in self.methods if self.front(name)]

    # --- output ---------------------------------------------------------------------------------

    def tuned_config(self) -> Config:
        """The config whose `compare.methods` are the methods with their best hyper-parameters."""
        base = self.config.plain()
        evaluate = base["evaluate"]
        if evaluate["split"] == "validation":
            base["evaluate"] = {**evaluate, "split": "test"}
        entries = [_entry(base, self.methods[name], self.best(name)) for name in self.usable]
        base["compare"] = {**base["compare"], "methods": entries}
        base.pop("versions", None)
        return parse(base, where="tuned.toml")

    def plain(self) -> dict[str, Any]:
        """Everything as values of JSON."""
        return {
            "objectives": list(self.objectives),
            "split": "validation",
            "seeds": list(self.seeds),
            "rounds": self.config.rounds,
            "best": {name: self.best(name).plain() for name in self.usable},
            "trials": [trial.plain() for trial in self.trials],
        }

    def table(self) -> Table:
        """One row per method: its trials, the default's values, the best values and where."""
        metrics = [parse_metric(name) for name in self.objectives]
        columns = [
            Column("method", "method", text=True),
            *(Column(state, state, digits=0) for state in ("complete", "pruned", "failed")),
        ]
        for metric in metrics:
            for which in ("default", "tuned"):
                title = f"{metric.title}, {which}"
                columns.append(
                    Column(title, title, metric.meaning(), metric.better, metric.scope, digits=4)
                )
        columns.append(Column("hyper-parameters", "hyper-parameters", text=True))
        rows = tuple(self._cells(name) for name in self.methods)
        counts = {len(self.of(name)) for name in self.methods}
        title = (
            f"Tuned on validation examples: {max(counts, default=0)} trials per method, "
            f"{self.config.rounds} rounds each"
        )
        return Table(title, tuple(columns), rows, tuple(self._footnotes()))

    def _cells(self, method: str) -> tuple[Cell, ...]:
        rows = self.of(method)
        best = self.best(method) if method in self.usable else None
        cells = [Cell(method)]
        for state in ("complete", "pruned", "failed"):
            cells.append(Cell(float(sum(row.state == state for row in rows))))
        for name in self.objectives:
            cells.append(Cell(self.default(method).values.get(name)))
            cells.append(Cell(None if best is None else best.values[name]))
        cells.append(Cell("" if best is None else parameter_text(best)))
        return tuple(cells)

    def _footnotes(self) -> list[str]:
        found = [f"{name}: {parse_metric(name).meaning()}" for name in self.objectives]
        if len(self.seeds) > 1:
            found.append(f"Values are means over the seeds {', '.join(map(str, self.seeds))}.")
        if len(self.objectives) > 1:
            found.append(
                "Of the trials that no other beats in all objectives, the one nearest to the best "
                "value of each, in units of its range over all methods."
            )
        for trial in self.trials:
            if trial.state == "failed":
                found.append(f"{trial.method}, trial {trial.number}, failed: {trial.why}")
        return found


def parameter_text(trial: Trial) -> str:
    """The hyper-parameters of a trial in one line; 'default' marks those of the first trial."""
    values = ", ".join(
        f"{key.removeprefix('algorithm.').removeprefix('local.')}="
        + (f"{value:.3g}" if isinstance(value, float) else str(value))
        for key, value in trial.parameters.items()
    )
    return f"{values} (default)" if trial.default else values


def _entry(base: Mapping[str, Any], config: Config, trial: Trial) -> dict[str, Any]:
    """A method for `compare.methods`: what differs from the base, with the trial's values."""
    changed = config.plain()
    for key, value in trial.parameters.items():
        table, _, name = key.partition(".")
        if value is not None and not (trial.default and name not in changed[table]):
            changed = merge(changed, {table: {name: value}})
    rest = {key: value for key, value in changed.items() if key not in _OF_A_TRIAL}
    return {
        "label": trial.method,
        "algorithm": changed["algorithm"],
        **_different(base, rest),
    }


def _different(base: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The keys whose values differ, table by table."""
    found: dict[str, Any] = {}
    for key, value in new.items():
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            same_name = value.get("name") == old.get("name")
            inner = _different(old, value) if same_name else value
            if inner:
                found[key] = inner
        elif value != old:
            found[key] = value
    return found
