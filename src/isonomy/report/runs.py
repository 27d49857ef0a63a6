"""Runs grouped into methods: the same configuration with several seeds.

Runs share a row of a table if their label and their configuration, except for the seed, are the
same. Runs that share only a label are distinguished by the settings in which they differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isonomy.errors import RunError
from isonomy.metrics.names import find_metric, interval_of
from isonomy.runs.record import Record

CONSTANT = "constant prediction"
"""How tables and figures call the constant prediction."""

WORST = "*"
"""In place of an attribute: the one with the largest gap, or the worst loss."""

_NOT_SETTINGS = {"seed", "seeds", "label", "series", "output", "out", "folder"}
_MOST_SETTINGS = 3  # if runs differ in more settings, they are numbered


@dataclass(frozen=True)
class Method:
    """The runs of one method on one data set, one run per seed.

    Two kinds of runs are left out: `unfinished` ones, which stopped early although other runs of
    the method finished, and `repeated` ones, whose seed was run again later.
    """

    label: str
    data: str
    runs: tuple[Record, ...]
    unfinished: tuple[Record, ...] = ()
    repeated: tuple[Record, ...] = ()
    title: str = ""  # the label, with the data set if the report has several

    @property
    def finished(self) -> bool:
        """Whether every run in `runs` finished."""
        return all(run.complete for run in self.runs)

    def values(self, name: str) -> list[float]:
        """The metric of each run that has it; NaN if it is undefined in a run."""
        found = (value(run, name) for run in self.runs)
        return [at for at in found if at is not None]


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, the sample standard deviation, and the number of seeds."""

    mean: float
    spread: float | None
    n: int


def methods(records: Sequence[Record]) -> list[Method]:
    """The methods of a list of runs, in order of first occurrence. Raises RunError without runs."""
    if not records:
        raise RunError("no run to report on; give at least one run folder.")
    groups: dict[tuple[str, str, str], list[Record]] = {}
    same = _same_data(records)
    for record in records:
        key = (record.label, _text(_flat(record.config)), _data_identity(same(record)))
        groups.setdefault(key, []).append(record)

    labels = _distinguished(
        [
            (label, identity, {k: v for k, v in _flat(runs[0].config).items() if k[:5] != "data."})
            for (label, _, identity), runs in groups.items()
        ]
    )
    data: dict[str, Record] = {}
    for key, runs in groups.items():
        data.setdefault(key[2], same(runs[0]))
    named = _distinguished([(data_name(run), "", _data_settings(run)) for run in data.values()])
    data_names = dict(zip(data, named, strict=True))
    found = []
    for label, (key, runs) in zip(labels, groups.items(), strict=True):
        ended = [run for run in runs if run.complete]
        counted, repeated = _one_per_seed(ended or runs)
        name = data_names[key[2]]
        found.append(
            Method(
                label=label,
                data=name,
                runs=tuple(counted),
                unfinished=tuple(run for run in runs if ended and not run.complete),
                repeated=tuple(repeated),
                title=f"{label} on {name}" if len(data) > 1 and name else label,
            )
        )
    return found


def constant(found: Sequence[Method]) -> dict[str, float]:
    """The metrics of the constant prediction, means over the runs that have them."""
    each = [at for method in found for run in method.runs if (at := _constant(run))]
    names = dict.fromkeys(name for at in each for name in at)
    return {n: stat(number(at[n]) for at in each if n in at).mean for n in names}


def _constant(record: Record) -> Mapping[str, Any]:
    """What the last evaluation says about the prediction of one class for everyone."""
    for entry in reversed(record.rounds):
        if entry.get("constant"):
            return dict(entry["constant"].get("metrics") or {})
    return {}


def only_class(record: Record) -> str:
    """The class that the run's model predicts for every evaluated example; empty if several."""
    for entry in reversed(record.rounds):
        if entry.get("metrics"):
            return str(entry.get("only_class") or "")
    return ""


def value(record: Record, name: str) -> float | None:
    """A metric of the last evaluation, or a cost of the run; None if the run does not have it."""
    if name in record.metrics:
        return number(record.metrics[name])
    if name.startswith(f"group.{WORST}."):
        by = _by_attribute(record, name)
        return by[_worst(by, name)] if by else None
    if name == "seconds":
        return record.seconds or None
    if name in ("bytes", "bytes.down", "bytes.up"):
        each = [way for entry in record.rounds if (way := traffic(entry)) is not None]
        if not each:
            return None
        down, up = (sum(way[i] for way in each) for i in (0, 1))
        return {"bytes": down + up, "bytes.down": down, "bytes.up": up}[name]
    return None


def worst_attribute(records: Sequence[Record], name: str) -> str:
    """The attribute that is worst in the mean over runs; empty unless the name asks for it."""
    if not name.startswith(f"group.{WORST}."):
        return ""
    pages = [_by_attribute(record, name) for record in records]
    means = {
        attribute: stat(page[attribute] for page in pages if attribute in page).mean
        for attribute in dict.fromkeys(a for page in pages for a in page)
    }
    return _worst(means, name) if means else ""


def _by_attribute(record: Record, name: str) -> dict[str, float]:
    """The metric of each protected attribute that has it, without NaN unless all are NaN."""
    kind = name.removeprefix(f"group.{WORST}.")
    found = {
        attribute: number(record.metrics[key])
        for attribute in attributes([record])
        if (key := f"group.{attribute}.{kind}") in record.metrics
    }
    return {a: v for a, v in found.items() if not math.isnan(v)} or found


def _worst(each: Mapping[str, float], name: str) -> str:
    way = find_metric(name).better
    return (min if way == "higher" else max)(each, key=lambda attribute: each[attribute])


def traffic(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    """The bytes sent down and up in a round, from its `down` and `up` or those of `traffic`."""
    inner = entry.get("traffic", entry)
    if not isinstance(inner, Mapping):
        return None
    for down, up in (("down", "up"), ("bytes_down", "bytes_up")):
        if down in inner or up in inner:
            return float(inner.get(down) or 0), float(inner.get(up) or 0)
    return None


def number(at: object) -> float:
    """A number read from a file, in which NaN may have become null."""
    try:
        return float(at)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def stat(values: Iterable[float]) -> Stat:
    """Mean and sample standard deviation (divided by n - 1) of the values that are defined."""
    at = np.array([v for v in values if not math.isnan(v)], dtype=np.float64)
    if not len(at):
        return Stat(math.nan, None, 0)
    if not np.isfinite(at).all():
        inf = at[~np.isfinite(at)]
        return Stat(float(inf[0]) if len(set(inf.tolist())) == 1 else math.nan, None, len(at))
    return Stat(float(at.mean()), float(at.std(ddof=1)) if len(at) > 1 else None, len(at))


def interval(record: Record, name: str) -> tuple[float, float] | None:
    """The ends of the metric's interval, if the run has both and they are finite."""
    if name.startswith(f"group.{WORST}."):
        name = name.replace(WORST, worst_attribute([record], name), 1)
    low, high = (number(record.metrics.get(f"{name}:{end}")) for end in ("low", "high"))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def metric_names(pages: Iterable[Mapping[str, object]]) -> list[str]:
    """Every metric that any of the dictionaries has, without the ends of intervals."""
    found: dict[str, None] = {}
    for page in pages:
        for name in page:
            if interval_of(name) not in page:
                found.setdefault(name)
    return list(found)


def attributes(records: Iterable[Record]) -> list[str]:
    """The protected attributes whose groups some run compares, in order."""
    found = (find_metric(name) for name in metric_names(r.metrics for r in records))
    return list(dict.fromkeys(m.attribute for m in found if m.attribute and m.compares_groups))


def worst_first(records: Sequence[Record], kind: str) -> list[str]:
    """The protected attributes by the mean of a metric between their groups, the worst first."""

    def size(attribute: str) -> float:
        values = (value(record, f"group.{attribute}.{kind}") for record in records)
        mean = stat(at for at in values if at is not None).mean
        return -mean if math.isfinite(mean) else math.inf

    return sorted(attributes(records), key=size)


def last_round(record: Record) -> int | None:
    """The number of the run's last round."""
    rounds = [int(entry["round"]) for entry in record.rounds if "round" in entry]
    return max(rounds, default=None)


def planned(record: Record) -> int | None:
    """The number of rounds in the configuration, at its top level or one level below."""
    for holder in (record.config, *record.config.values()):
        if isinstance(holder, Mapping) and isinstance(holder.get("rounds"), int):
            return int(holder["rounds"])
    return None


def state(record: Record) -> str:
    """What became of a run that did not finish; empty for one that did."""
    if record.complete:
        return ""
    diverged = record.facts.get("diverged")
    if isinstance(diverged, Mapping):
        where = diverged.get("round")
        return f"diverged{f' in round {where}' if where else ''}: {diverged.get('cure')}"
    done, of = last_round(record) or 0, planned(record)
    return f"{done} of {of} rounds" if of else f"unfinished, {done} rounds"


def data_name(record: Record) -> str:
    """The name of the data set; empty if the run does not contain it."""
    for holder in (record.facts.get("data"), record.config.get("data")):
        if isinstance(holder, str):
            return holder
        if isinstance(holder, Mapping):
            for key in ("source", "name", "dataset", "path"):
                if isinstance(holder.get(key), str) and holder[key]:
                    return str(holder[key])
    return ""


def attack(record: Record) -> str:
    """A short description of the attack on a run; empty if there was none."""
    given = record.config.get("attack")
    if not isinstance(given, Mapping) or given.get("name", "none") == "none":
        return ""
    text = str(given["name"])
    if given.get("labels", "none") != "none":
        text += f", labels {given['labels']}"
    listed = given.get("clients")
    if isinstance(listed, Sequence):
        return f"{text}, {len(listed)} clients malicious"
    if given.get("fraction") == 0:
        return ""
    return f"{text}, {100 * number(given.get('fraction', math.nan)):g} % malicious"


def last_clients(record: Record) -> dict[str, list[Any]]:
    """The columns of `clients` at the last evaluation, on the test split if there is one.

    If the run was attacked, only the rows of benign clients.
    """
    columns = record.clients
    length = min((len(column) for column in columns.values()), default=0)
    keep = list(range(length))
    if "split" in columns:
        splits = [str(columns["split"][i]) for i in keep]
        wanted = "test" if "test" in splits else (splits[-1] if splits else "")
        keep = [i for i in keep if splits[i] == wanted]
    if "round" in columns and keep:
        last = max(int(columns["round"][i]) for i in keep)
        keep = [i for i in keep if int(columns["round"][i]) == last]
    if "malicious" in columns:
        keep = [i for i in keep if not columns["malicious"][i]]
    return {name: [column[i] for i in keep] for name, column in columns.items()}


def left_out(record: Record) -> list[str]:
    """The names of the clients without examples in the evaluated split."""
    at = last_clients(record)
    if "size" not in at:
        return []
    return [
        client_name(at, i) for i, size in enumerate(at["size"]) if size is None or float(size) == 0
    ]


def client_name(columns: Mapping[str, Sequence[object]], i: int) -> str:
    """The name of the client in a row of `clients`, or its number."""
    if "name" in columns and columns["name"][i] not in (None, ""):
        return str(columns["name"][i])
    return f"client {columns['client'][i]}" if "client" in columns else f"client {i}"


def _one_per_seed(runs: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The last run of each seed, in order of the seeds' first occurrence; and the others."""
    last = {run.seed: run for run in runs}
    counted = list(last.values())
    return counted, [run for run in runs if not any(run is kept for kept in counted)]


def _flat(tree: object, prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted names and texts, without seeds, labels and paths."""
    if not isinstance(tree, Mapping):
        return {prefix: tree if isinstance(tree, str) else json.dumps(tree, default=str)}
    found: dict[str, str] = {}
    for key, inner in tree.items():
        if str(key) not in _NOT_SETTINGS:
            found |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


def _data_settings(record: Record) -> dict[str, str]:
    found = _flat({"data": record.config.get("data", {})})
    facts = record.facts.get("data")
    if isinstance(facts, Mapping):
        groups = facts.get("groups")
        found["attributes"] = ", ".join(map(str, groups)) if isinstance(groups, Mapping) else ""
    return found


def _same_data(records: Sequence[Record]) -> Callable[[Record], Record]:
    """A function that gives a run with the same data whose data are described.

    A run that did not finish has no description of its data; they are those of a finished run with
    the same settings of data.
    """
    described: dict[str, Record] = {}
    for record in records:
        if isinstance(record.facts.get("data"), Mapping):
            described.setdefault(_text(_flat({"data": record.config.get("data", {})})), record)

    def find(record: Record) -> Record:
        if "data" in record.facts or record.complete:
            return record
        return described.get(_text(_flat({"data": record.config.get("data", {})})), record)

    return find


def _data_identity(record: Record) -> str:
    return _text({"name": data_name(record), **_data_settings(record)})


def _text(flat: Mapping[str, str]) -> str:
    return json.dumps(flat, sort_keys=True)


def _distinguished(names: Sequence[tuple[str, str, Mapping[str, str]]]) -> list[str]:
    """Each name; a name that occurs more than once in a place gets the settings that differ."""
    found = []
    for i, (name, place, settings) in enumerate(names):
        same = [j for j, (again, where, _) in enumerate(names) if (again, where) == (name, place)]
        if len(same) == 1:
            found.append(name)
            continue
        keys = [
            key
            for key in dict.fromkeys(key for j in same for key in names[j][2])
            if len({names[j][2].get(key) for j in same}) > 1
        ]
        if 0 < len(keys) <= _MOST_SETTINGS:
            shown = ", ".join(f"{key.split('.')[-1]}={settings.get(key, 'unset')}" for key in keys)
        else:
            shown = str(same.index(i) + 1)
        found.append(f"{name} ({shown})".strip())
    return found
