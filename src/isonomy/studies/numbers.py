"""Numbers of a run that a preset names: metrics, facts of the verdict, and means over rounds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from isonomy.runs.record import Record

VERDICT = "verdict"  # the first part of the name of a number of the verdict
ROUNDS = "rounds"  # and of what the algorithm recorded in its rounds
MALICIOUS = "malicious"  # the last part, if it is of malicious clients only


def number(record: Record, name: str) -> float | None:
    """A number of a run by its name; None if the run does not have it.

    `verdict.NAME` is a number among the facts of the verdict. `rounds.NAME` is the mean over rounds
    of a number that the algorithm recorded (`cohort.record`); of an entry with a number per client
    it is the mean over rounds and clients, and `rounds.NAME.malicious` over the malicious clients
    alone. Every other name is a metric.
    """
    kind, _, rest = name.partition(".")
    if kind == ROUNDS:
        return _over_rounds(record, rest)
    if kind != VERDICT:
        return record.metrics.get(name)
    found = (record.verdict or {}).get("facts", {}).get(rest)
    return float(found) if isinstance(found, (int, float)) else None


def _over_rounds(record: Record, name: str) -> float | None:
    name, _, whose = name.partition(".")
    if whose not in ("", MALICIOUS):
        return None
    bad = _malicious(record) if whose else {}
    values: list[Any] = []
    for entry in (line.get("recorded", {}).get(name) for line in record.rounds):
        if not whose:
            values += entry.values() if isinstance(entry, Mapping) else [entry]
        elif isinstance(entry, Mapping):
            if not entry.keys() <= bad.keys():
                return None  # it is not known which of them are malicious
            values += [value for client, value in entry.items() if bad[client]]
    known = [float(value) for value in values if isinstance(value, (int, float))]
    return fmean(known) if known else None


def _malicious(record: Record) -> dict[str, bool]:
    """Which clients are malicious, of those that were evaluated in a run with an attack."""
    columns = record.clients
    if MALICIOUS not in columns:
        return {}
    pairs = zip(columns["client"], columns[MALICIOUS], strict=True)
    return {str(client): bool(bad) for client, bad in pairs}
