"""Many runs side by side: methods times seeds, or a grid of values. Each is a run of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.config.overrides import merge, parse_override, toml_value
from isonomy.config.schema import Config, parse
from isonomy.errors import ConfigError, RunError, TrainingError
from isonomy.runs.build import effective
from isonomy.runs.folder import RunFolder
from isonomy.runs.record import Record
from isonomy.runs.training import Listener, method_label, record
from isonomy.studies.parallel import Plan, at_once, run_or_resume


@dataclass(frozen=True)
class Method:
    """One row of a comparison: a config with its label, to be run with each seed."""

    label: str
    config: Config

    @classmethod
    def of(cls, config: Config, label: str | None = None) -> Method:
        """The method of a config, under its own label or the one given."""
        name = label or method_label(config)
        return cls(name, config.model_copy(update={"label": name}))


def methods(config: Config) -> list[Method]:
    """The comparison's methods (the config's own algorithm if it names none)."""
    base = _base(config)
    if not config.compare.methods:
        return [Method.of(parse(base), method_label(config))]
    out = []
    for i, changes in enumerate(config.compare.methods):
        made = parse(merge(base, changes), where=f"compare.methods[{i}]")
        out.append(Method.of(made))
    _distinct(out)
    return out


def seeds(config: Config) -> list[int]:
    """The comparison's seeds: a number of them from the config's own, or a list."""
    return listed("compare.seeds", config.compare.seeds, config.seed)


def listed(name: str, wanted: int | Sequence[int], first: int = 0) -> list[int]:
    """Seeds, given how many from the first, or which."""
    found = [first + i for i in range(wanted)] if isinstance(wanted, int) else list(wanted)
    if not found or len(set(found)) != len(found) or min(found) < 0:
        raise ConfigError(
            f"{name} = {wanted}: give a positive number of seeds, or a list of different "
            "whole numbers from 0."
        )
    return found


def grid(config: Config, axes: list[str]) -> list[Method]:
    """All combinations of `key=v1,v2,...`, for each of the comparison's methods."""
    if not axes:
        raise ConfigError("a sweep needs at least one axis, e.g. algorithm.mu=0,0.1,1.")
    parsed = [_axis(text) for text in axes]
    out = []
    many = len(config.compare.methods) > 1
    for method in methods(config):
        for values in itertools.product(*(vs for _, vs in parsed)):
            changed: dict[str, Any] = method.config.plain()
            words = []
            for (key, _), value in zip(parsed, values, strict=True):
                nested: Any = value
                for part in reversed(key.split(".")):
                    nested = {part: nested}
                changed = merge(changed, nested)
                words.append(f"{key.removeprefix('algorithm.')}={value}")
            label = ", ".join(words)
            label = (
                f"{method.label}, {label}" if many else f"{method.config.algorithm.name} {label}"
            )
            changed["series"] = method.label if many else method.config.algorithm.name
            out.append(Method.of(parse(changed, where="sweep"), label))
    _distinct(out)
    return out


def run_all(
    chosen: list[Method],
    which: list[int],
    folder: Path | str,
    *,
    listener: Listener | None = None,
    overwrite: bool = False,
    jobs: int = 1,
) -> list[Record]:
    """Run every method with every seed below `folder`; what is there already is used again.

    With `jobs` above 1, so many runs are made at once, each in a process of its own. A run that
    diverges is told and left out, so that it does not cost the others; if none is left its error
    is raised.
    """
    folder = Path(folder)
    listener = listener or Listener()
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs}: give how many runs to make at once, from 1.")
    plans: list[Plan] = []
    for method in chosen:
        for seed in which:
            config = effective(method.config.model_copy(update={"seed": seed}), listener.note)
            place = RunFolder(folder / slug(method.label) / f"seed-{seed}")
            if place.exists and not overwrite and not _same(place.config(), config):
                raise RunError(
                    f"'{place.path}' holds a run with another config; choose another folder with "
                    "--to, or replace it with --overwrite."
                )
            plans.append((config, place, overwrite))
    errors = _several(plans, jobs, listener) if jobs > 1 else _in_turn(plans, listener)
    out, diverged = [], []
    for (config, place, _), error in zip(plans, errors, strict=True):
        if error is None:
            out.append(record(place))
        else:
            diverged.append(error)
            listener.note(f"{config.label}, seed {config.seed}, is left out: {error}")
    if diverged and not out:
        raise diverged[0]
    return out


def _in_turn(plans: list[Plan], listener: Listener) -> Iterator[TrainingError | None]:
    """One run after the other; the error of each that diverges."""
    for plan in plans:
        try:
            run_or_resume(plan, listener)
        except TrainingError as error:
            yield error
        else:
            yield None


def _several(plans: list[Plan], jobs: int, listener: Listener) -> Iterator[TrainingError | None]:
    """Several runs at once; the error of each that diverges."""
    ready = [place.complete and not overwrite for _, place, overwrite in plans]
    made = at_once([plan for plan, done in zip(plans, ready, strict=True) if not done], jobs)
    for done in ready:
        if done:
            yield None
        else:
            told = next(made)
            told.repeat(listener)
            yield told.error


def slug(label: str) -> str:
    """A label as a folder's name.

    >>> slug("FedProx (mu=0.1)")
    'fedprox-mu-0.1'
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"


def _base(config: Config) -> dict[str, Any]:
    values = config.plain()
    for key in ("compare", "versions", "label"):
        values.pop(key, None)
    return values


def _same(a: Config, b: Config) -> bool:
    return _base(a) == _base(b)


def _distinct(found: list[Method]) -> None:
    names = [slug(m.label) for m in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"two methods are called '{twice[0]}'; give each its own label.")


def _axis(text: str) -> tuple[str, list[Any]]:
    """`algorithm.mu=0,0.1,1` as a key and its values."""
    (key, _, values) = text.partition("=")
    parse_override(f"{key}=0")
    listed = toml_value(f"[{values}]")
    if isinstance(listed, str):
        listed = [toml_value(v.strip()) for v in values.split(",")]
    if not listed or listed == [""]:
        raise ConfigError(f"'{text}' names no values; write key=v1,v2,..., e.g. local.lr=0.01,0.1.")
    return key.strip(), list(listed)
