"""A run's record: read from its folder, or put together in memory."""

from __future__ import annotations

import math
from typing import Any

from isonomy.config.schema import AlgorithmConfig, Config, DefenceConfig, PostprocessConfig
from isonomy.core.values import Coded, Frame, Plain, Values
from isonomy.runs.folder import RunFolder, reading
from isonomy.runs.record import Record


def method_label(config: Config) -> str:
    """The config's label, or the algorithm and the defence with the options they were given."""
    if config.label:
        return config.label
    label = _with_options(config.algorithm)
    if config.defence.name != "none":
        label += f" + {_with_options(config.defence)}"
    if config.postprocess.name != "none":
        label += f" + {_with_options(config.postprocess)}"
    return label


def _with_options(table: AlgorithmConfig | DefenceConfig | PostprocessConfig) -> str:
    options = ", ".join(f"{k}={v}" for k, v in table.options.items())
    return table.name + (f" ({options})" if options else "")


def record(place: RunFolder) -> Record:
    """The record of the run in a folder."""
    config = place.config()
    table = place.clients()
    summary = place.summary()
    rounds = place.lines("rounds.jsonl")
    with reading(place.path / "timing.jsonl"):
        seconds = float(sum(line["seconds"] for line in place.lines("timing.jsonl")))
    with reading(place.path / "rounds.jsonl"):
        measured = last_metrics(rounds)
    with reading(place.path / "summary.json"):
        metrics = with_nan(dict(summary.get("metrics") or measured))
        notes = tuple(str(note) for note in summary.get("notes", ()))
        facts = dict(summary.get("facts", {}))
    diverged = place.diverged()
    if diverged:
        metrics, facts = {}, {"diverged": diverged}
    return Record(
        label=method_label(config),
        seed=config.seed,
        config=config.plain(),
        rounds=rounds,
        clients=_columns(table) if table is not None else {},
        metrics=metrics,
        seconds=seconds,
        complete=place.complete,
        notes=notes,
        facts=facts,
        front=place.front(),
        excess=place.excess(),
        verdict=place.verdict(),
    )


LONG = 1 << 18  # rows above which a column is an array, because a list needs much more memory


def listed(column: Any) -> Any:
    """An array as a list, as columns are stored; a long one as it is."""
    return column if len(column) > LONG else column.tolist()


def _columns(table: Frame) -> dict[str, Any]:
    if len(table) <= LONG:
        return dict(table.listed())
    return {name: _long(values) for name, values in table.columns.items()}


def _long(values: Values) -> Any:
    if isinstance(values, Plain):
        return values.numbers()
    return values.objects() if isinstance(values, Coded) else values.listed()


def last_metrics(lines: list[dict[str, Any]]) -> dict[str, float | None]:
    """The metrics of the last round that was evaluated; empty if none was."""
    measured = [line["metrics"] for line in lines if line.get("metrics")]
    return dict(measured[-1]) if measured else {}


def with_nan(metrics: dict[str, float | None]) -> dict[str, float]:
    """Metrics with NaN for None, which stands for it in JSON."""
    return {k: math.nan if v is None else float(v) for k, v in metrics.items()}


def joined(tables: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of several tables, one below the other; empty tables are left out."""
    tables = [table for table in tables if table]
    return {k: [v for table in tables for v in table[k]] for k in tables[0]} if tables else {}
