"""Comparisons: several methods, each with several seeds. Every combination is a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.config.overrides import merge
from isonomy.config.schema import Config, parse
from isonomy.errors import ConfigError, RunError, TrainingError
from isonomy.runs.build import effective
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener, Listeners
from isonomy.runs.record import Record
from isonomy.runs.results import method_label, record
from isonomy.runs.signals import Stopped
from isonomy.studies.parallel import Plan, share_runs


@dataclass(frozen=True)
class Method:
    """One row of a comparison: a config and its label, run once with each seed."""

    label: str
    config: Config

    @classmethod
    def of(cls, config: Config, label: str | None = None) -> Method:
        """The method of a config, with the config's label or the given one."""
        name = label or method_label(config)
        return cls(name, config.model_copy(update={"label": name}))


def methods(config: Config) -> list[Method]:
    """The methods in the config's `compare` table, or its own algorithm if there are none."""
    base = _base(config)
    if not config.compare.methods:
        return [Method.of(parse(base), method_label(config))]
    out = []
    for i, changes in enumerate(config.compare.methods):
        made = parse(merge(base, changes), where=f"compare.methods[{i}]")
        out.append(Method.of(made))
    check_labels(out)
    return out


def seeds(config: Config) -> list[int]:
    """The comparison's seeds: a list, or so many from the config's own seed on."""
    return listed("compare.seeds", config.compare.seeds, config.seed)


def listed(name: str, wanted: int | Sequence[int], first: int = 0) -> list[int]:
    """The seeds that are listed, or so many from `first` on."""
    found = [first + i for i in range(wanted)] if isinstance(wanted, int) else list(wanted)
    if not found or len(set(found)) != len(found) or min(found) < 0:
        raise ConfigError(
            f"{name} = {wanted}: give a positive number of seeds, or a list of different "
            "whole numbers from 0."
        )
    return found


def run_all(
    chosen: list[Method],
    which: list[int],
    folder: Path | str,
    *,
    listeners: Sequence[Listener] = (),
    overwrite: bool = False,
    jobs: int = 1,
    finished: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Run every method with every seed in subfolders of `folder`; complete runs are used again.

    With `jobs` above 1, so many runs are made at once, each in its own process. Several processes
    that do this with the same folder, also on several hosts, share the runs. A run that diverges
    is reported, and its record has no metrics and says where it diverged (`facts["diverged"]`); if
    all runs diverge, the first one's error is raised. `finished` is called with the record of each
    run as soon as it is complete or has diverged. Raises Stopped, with the comparison's folder, if
    it is interrupted.
    """
    folder = Path(folder)
    listener = Listeners(listeners)
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs}: give the number of runs to make at once, at least 1.")
    plans: list[Plan] = []
    for method in chosen:
        for seed in which:
            config = effective(method.config.model_copy(update={"seed": seed}), listener.note)
            place = RunFolder(folder / slug(method.label) / f"seed-{seed}")
            again = overwrite
            if place.exists and not overwrite and not _same(place.config(), config):
                again = place.diverged() is not None
            if place.exists and not again and not _same(place.config(), config):
                other = _other(place.config(), config)
                raise RunError(
                    f"'{place.path}' holds a run with {other}; choose another folder with "
                    "--to, or replace it with --overwrite."
                )
            plans.append(Plan(config, place, again))
    errors: dict[int, TrainingError | None] = {}
    try:
        for i, error in share_runs(plans, jobs, listener):
            errors[i] = error
            if error is not None:
                of = plans[i].config
                listener.note(f"{of.label}, seed {of.seed}, diverged: {error}")
            if finished is not None:
                finished(record(plans[i].place))
    except Stopped as stop:
        at = f"{len(errors)} of {len(plans)} runs"
        text = f"the comparison in '{folder}' was stopped after {at}; {stop.where}"
        raise Stopped(text.rstrip("; ") + ".", stop.number, stop.where) from None
    out = [record(plan.place) for plan in plans]
    diverged = [error for _, error in sorted(errors.items()) if error is not None]
    if diverged and len(diverged) == len(out):
        raise diverged[0]
    return out


def slug(label: str) -> str:
    """A label as the name of a folder.

    >>> slug("FedProx (mu=0.1)")
    'fedprox-mu-0.1'
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"


def _base(config: Config) -> dict[str, Any]:
    values = config.plain()
    for key in ("compare", "decide", "versions", "label"):
        values.pop(key, None)
    return values


def _same(a: Config, b: Config) -> bool:
    return _without_trackers(a) == _without_trackers(b)


def _without_trackers(config: Config) -> dict[str, Any]:
    return {key: value for key, value in _base(config).items() if key != "track"}


def _other(a: Config, b: Config) -> str:
    """What differs between two configs, for a sentence."""
    plain = [_without_trackers(one) for one in (a, b)]
    digests = [one["data"].pop("digest", None) for one in plain]
    return "other data" if None not in digests and plain[0] == plain[1] else "another config"


def check_labels(found: list[Method]) -> None:
    """Raise ConfigError if two methods would have the same folder."""
    names = [slug(m.label) for m in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"two methods have the label '{twice[0]}'; give each its own label.")
