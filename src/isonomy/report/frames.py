"""Results as frames: one row per run, round, client or group, for pandas, polars or arrow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from isonomy.core.nested import flat
from isonomy.core.values import values_of
from isonomy.errors import ConfigError, missing_extra, unknown
from isonomy.metrics.names import find_metric, interval_of
from isonomy.runs.record import Record

By = Literal["run", "round", "client", "group"]
To = Literal["pandas", "polars", "arrow"]
Row = dict[str, Any]
Columns = dict[str, list[Any]]


def frame(records: Sequence[Record], by: By = "run", to: To = "pandas") -> Any:
    """The results of runs as a frame; see `isonomy.frame`."""
    if by not in _ROWS:
        raise ConfigError(unknown("value of by", str(by), _ROWS))
    if to not in ("pandas", "polars", "arrow"):
        raise ConfigError(unknown("kind of frame", str(to), ("pandas", "polars", "arrow")))
    made = _table([row for record in records for row in _ROWS[by](record)])
    if by == "run" and len(records) > 1:
        made = _with_settings(made, records)
    if to == "arrow":
        return _package("pyarrow", "arrow").table(made)
    return _package(to, to).DataFrame(made)


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        others = [other for other in ("pandas", "polars", "arrow") if other != extra]
        advice = missing_extra(f"a frame of {name}", name, extra).removesuffix(".")
        asked = " or ".join(f"to='{other}'" for other in others)
        raise ConfigError(f"{advice}, or ask for {asked}.") from None


def _of(record: Record) -> Row:
    return {"label": record.label, "seed": record.seed}


def _runs(record: Record) -> Iterable[Row]:
    done = max((int(line.get("round", 0)) for line in record.rounds), default=0)
    traffic = {
        name: sum(int(line.get(name, 0)) for line in record.rounds)
        for name in ("bytes_down", "bytes_up")
    }
    yield {
        **_of(record),
        "data": record.config.get("data", {}).get("name"),
        "algorithm": record.config.get("algorithm", {}).get("name"),
        "rounds": done,
        "complete": record.complete,
        "seconds": record.seconds,
        "verdict": None if record.verdict is None else record.verdict.get("status"),
        **traffic,
        **record.metrics,
    }


def _rounds(record: Record) -> Iterable[Row]:
    for line in record.rounds:
        plain = {name: value for name, value in line.items() if isinstance(value, int | float)}
        yield {**_of(record), **plain, **(line.get("metrics") or {})}


def _clients(record: Record) -> Iterable[Row]:
    columns = record.clients
    for i in range(len(columns.get("round", ()))):
        yield {**_of(record), **{name: values[i] for name, values in columns.items()}}


def _groups(record: Record) -> Iterable[Row]:
    """One row per evaluated round, protected attribute and group, with the metrics of the group."""
    for line in record.rounds:
        rows: dict[tuple[str, str], Row] = {}
        for name, value in (line.get("metrics") or {}).items():
            metric = find_metric(interval_of(name) or name)
            if metric.attribute is None or metric.level is None:
                continue
            at = (metric.attribute, metric.level)
            column = metric.kind + (f":{name.rpartition(':')[2]}" if interval_of(name) else "")
            rows.setdefault(at, {})[column] = value
        for (attribute, level), found in rows.items():
            named = {"round": line["round"], "attribute": attribute, "group": level}
            yield {**_of(record), **named, **found}


_ROWS: Mapping[str, Callable[[Record], Iterable[Row]]] = {
    "run": _runs,
    "round": _rounds,
    "client": _clients,
    "group": _groups,
}


def _table(rows: Sequence[Row]) -> Columns:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: numbers, truths or texts; None is a missing value."""
    try:
        return values_of(values).listed()
    except ValueError:  # of several types
        return [None if value is None else str(value) for value in values]


def _with_settings(table: Columns, records: Sequence[Record]) -> Columns:
    """The table with the keys of the configs that differ between runs, after the seed."""
    settings = [_texts(flat(record.config)) for record in records]
    names = list(dict.fromkeys(name for one in settings for name in one))
    differ: Columns = {}
    for name in names:
        values = [one.get(name) for one in settings]
        if name in ("seed", "label", "series") or all(value == values[0] for value in values):
            continue
        differ[f"config.{name}"] = _column(values)
    first = {name: table[name] for name in list(table)[:2]}
    return {**first, **differ, **table}


def _texts(settings: Row) -> Row:
    """Settings with lists as texts, which a column can hold."""
    return {name: str(v) if isinstance(v, list) else v for name, v in settings.items()}
