"""Presets: a paper's experiment as data, with the paper's numbers beside ours."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from isonomy.config.overrides import merge
from isonomy.config.schema import parse
from isonomy.errors import ConfigError, unknown
from isonomy.report.tables import outcomes
from isonomy.runs.listener import Listener
from isonomy.runs.record import Record
from isonomy.studies.compare import Method, listed, run_all
from isonomy.studies.joined_fronts import joined
from isonomy.studies.numbers import number

FULL = "full"
_OF_SCALE = ("seeds", "methods", "settings", "text")
_OF_METHOD = ("label", "setting", "grid", "joined")


@dataclass(frozen=True)
class Scale:
    """How large a preset is run: changed keys, number of seeds, and a line on what differs.

    `methods` lists the labels to run, alone ("q-FFL") or with a setting ("q-FFL q = 1"), and
    `settings` the settings; empty means all of them.
    """

    name: str
    text: str
    seeds: int
    config: dict[str, Any]
    methods: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preset:
    """A paper's experiment.

    `methods` are tables of `label`, `setting` and changed keys; a table with a `grid` (options of
    the algorithm, each with a list of values) is expanded to all combinations, the points of one
    curve; with `joined = true` it stays one row, whose runs make one front (`joined_fronts`).
    `expected` are tables of method, setting, metric, value and an optional note: the
    numbers that the paper prints. In a file, `[[settings]]` with a `name` and changed keys are
    applied to each method, and `values` of an expected table gives one number per metric and
    setting. `pair` names two metrics, a mean and its deviation, that are shown together. `scales`
    are by name; `scale` is the default, one of them or "full". `curve` names a metric whose value
    after each evaluated round is kept with the results. Metrics can also be numbers of the verdict,
    or means over rounds of what the method recorded (`numbers`). `also` are further metrics that
    are kept with the results, for tables that name them.
    """

    name: str
    title: str
    paper: str
    text: str
    seeds: int
    metrics: tuple[str, ...]
    config: dict[str, Any]
    methods: tuple[dict[str, Any], ...]
    expected: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()
    scales: dict[str, Scale] = field(default_factory=dict)
    scale: str = FULL
    pair: tuple[str, str] | None = None
    curve: str | None = None
    also: tuple[str, ...] = ()


def presets() -> dict[str, Preset]:
    """All presets of the package, by name."""
    found = [_read(name, path.read_text(encoding="utf-8")) for name, path in _files().items()]
    return {preset.name: preset for preset in found if preset is not None}


def find(name: str) -> Preset:
    """A preset by name."""
    path = _files().get(name)
    preset = None if path is None else _read(name, path.read_text(encoding="utf-8"))
    if preset is None:
        raise ConfigError(unknown("preset", name, presets()))
    return preset


def reading(preset: Preset, path: Path) -> Preset:
    """The preset with its data read from this file or folder, as by the config's `data.path`."""
    given = merge(preset.config, {"data": {"path": str(path)}})
    return replace(preset, config=given)


def scaled(preset: Preset, name: str | None = None) -> Scale:
    """The named scale of a preset, or its default. "full" is the preset without changes."""
    name = name or preset.scale
    known = {FULL: Scale(FULL, "The preset without changes.", preset.seeds, {}), **preset.scales}
    if name not in known:
        raise ConfigError(unknown(f"scale of preset '{preset.name}'", name, known))
    return known[name]


def methods_of(
    preset: Preset,
    scale: str | None = None,
    only: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> list[Method]:
    """The preset's methods at a scale, ready for `run_all`; `only` and `settings` choose some."""
    chosen = scaled(preset, scale)
    base = merge(preset.config, chosen.config)
    out = []
    for selected in _selected(preset, chosen, only, settings):
        for table in members(selected):
            changes = {k: v for k, v in table.items() if k not in _OF_METHOD}
            config = parse(merge(base, changes), where=f"preset {preset.name}")
            out.append(Method.of(config, _label(table)))
    return out


def seeds_of(
    preset: Preset, scale: str | None = None, seeds: int | Sequence[int] | None = None
) -> list[int]:
    """The seeds: those listed, or a number of them, by default the scale's."""
    return listed("seeds", scaled(preset, scale).seeds if seeds is None else seeds)


def reproduce(
    preset: Preset,
    folder: Path | str,
    *,
    seeds: int | Sequence[int] | None = None,
    scale: str | None = None,
    only: Sequence[str] = (),
    settings: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    overwrite: bool = False,
    jobs: int = 1,
    finished: Callable[[Record], None] | None = None,
) -> list[dict[str, Any]]:
    """Run a preset at a scale; returns one row per method, setting and metric.

    `only` names methods by their label, or by label and setting, and `settings` are settings; by
    default all are run. `finished` is called with the record of each run when that ends.
    """
    chosen = methods_of(preset, scale, only, settings)
    which = seeds_of(preset, scale, seeds)
    made = run_all(
        chosen,
        which,
        folder,
        listeners=listeners,
        overwrite=overwrite,
        jobs=jobs,
        finished=finished,
    )
    records = with_joined(preset, made)
    rows = []
    for table in _selected(preset, scaled(preset, scale), only, settings):
        ours = [r for r in records if r.label == _label(table) and r.complete]
        lost = len(which) - len(ours)  # runs that diverged
        for metric in preset.metrics:
            values = [value for r in ours if (value := number(r, metric)) is not None]
            printed = [e for e in preset.expected if _matches(e, table, metric)]
            rows.append(
                {
                    "preset": preset.name,
                    "method": table["label"],
                    "setting": table.get("setting", ""),
                    "metric": metric,
                    "paper": printed[0]["value"] if printed else None,
                    "ours": fmean(values) if values else None,
                    "spread": stdev(values) if len(values) > 1 else None,
                    "seeds": len(values),
                    "verdict": outcomes(ours),
                    "note": "; ".join(
                        text
                        for text in (
                            printed[0].get("note", "") if printed else "",
                            f"{lost} of {len(which)} runs diverged" if lost else "",
                        )
                        if text
                    ),
                }
            )
    return rows


def with_joined(preset: Preset, records: Sequence[Record]) -> list[Record]:
    """The records, with those that a row of the preset joins to one front replaced by that row's.

    A row is left out for a seed in which some of its runs are missing.
    """
    out = list(records)
    for table in preset.methods:
        if not table.get("joined"):
            continue
        labels = run_labels(table)
        found: dict[int, dict[str, Record]] = {}
        for one in out:
            if one.label in labels:
                found.setdefault(one.seed, {})[one.label] = one
        out = [one for one in out if one.label not in labels]
        out += [
            joined(_label(table), [runs[label] for label in labels])
            for _, runs in sorted(found.items())
            if len(runs) == len(labels)
        ]
    return out


def members(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of the runs that make a row: several if they are joined to one front."""
    return _combinations(table) if table.get("joined") else [table]


def run_labels(table: dict[str, Any]) -> list[str]:
    """The labels of the runs that make a row."""
    return [_label(member) for member in members(table)]


def _label(table: dict[str, Any]) -> str:
    return f"{table['label']} {table.get('setting', '')}".strip()


def _selected(
    preset: Preset, scale: Scale, only: Sequence[str] = (), settings: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The tables of the methods that a scale runs, or of those that are chosen among them."""
    kept, under = set(scale.methods), scale.settings
    found = [
        t
        for t in preset.methods
        if (not kept or {t["label"], _label(t)} & kept)
        and (not under or t.get("setting", "") in under)
    ]
    names = {name.lower(): name for t in found for name in (t["label"], _label(t))}
    for name in only:
        if name.lower() not in names:
            raise ConfigError(_unknown_method(preset, name, list(names.values())))
    known = {t.get("setting", "").lower(): t.get("setting", "") for t in found}
    for name in settings:
        if name.lower() not in known:
            raise ConfigError(unknown(f"setting of preset '{preset.name}'", name, known.values()))
    wanted, kept_settings = {name.lower() for name in only}, {name.lower() for name in settings}
    chosen = [
        t
        for t in found
        if (not wanted or {t["label"].lower(), _label(t).lower()} & wanted)
        and (not kept_settings or t.get("setting", "").lower() in kept_settings)
    ]
    if not chosen:
        raise ConfigError(
            f"preset '{preset.name}' has none of these methods with one of these settings; "
            f"`isonomy show {preset.name}` lists them."
        )
    return chosen


def _unknown_method(preset: Preset, name: str, known: list[str]) -> str:
    """The error for a method that a preset does not have, with the names that contain the text."""
    alike = [one for one in known if name.lower() in one.lower()]
    if alike:
        return (
            f"preset '{preset.name}' has no method '{name}'; did you mean "
            f"{' or '.join(repr(one) for one in alike[:5])}?"
        )
    return unknown(f"method of preset '{preset.name}'", name, known)


def _matches(expected: dict[str, Any], table: dict[str, Any], metric: str) -> bool:
    there = (expected["method"], expected.get("setting", ""), expected["metric"])
    return there == (table["label"], table.get("setting", ""), metric)


def _expanded(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a method's grid; one without a grid, or whose grid is joined, is unchanged."""
    return [table] if "grid" not in table or table.get("joined") else _combinations(table)


def _combinations(table: dict[str, Any]) -> list[dict[str, Any]]:
    """A method at every combination of its grid's values."""
    out = []
    for values in itertools.product(*table["grid"].values()):
        chosen = dict(zip(table["grid"], values, strict=True))
        shown = ", ".join(f"{key}={value}" for key, value in chosen.items())
        setting = ", ".join(part for part in (table.get("setting", ""), shown) if part)
        inner = merge(table, {"algorithm": chosen, "setting": setting})
        inner["series"] = " ".join(p for p in (table["label"], table.get("setting", "")) if p)
        out.append(inner)
    return out


def _files() -> dict[str, Traversable]:
    """The package's presets and plain configs, by name."""
    entries = sorted(files("isonomy.config").joinpath("presets").iterdir(), key=str)
    return {e.name.removesuffix(".toml"): e for e in entries if e.name.endswith(".toml")}


def _read(name: str, text: str) -> Preset | None:
    values = tomllib.loads(text)
    if "preset" not in values:
        return None  # a plain config, such as quickstart
    head = values["preset"]
    metrics = tuple(head["metrics"])
    return Preset(
        name=name,
        title=head["title"],
        paper=head["paper"],
        text=head["text"].strip(),
        seeds=head.get("seeds", 3),
        metrics=metrics,
        config=values["config"],
        methods=tuple(
            one
            for table in _crossed(values["methods"], values.get("settings", []))
            for one in _expanded(table)
        ),
        expected=tuple(_printed(values.get("expected", []), metrics)),
        notes=tuple(head.get("notes", ())),
        scales={key: _scale(key, table, head) for key, table in values.get("scale", {}).items()},
        scale=head.get("scale", FULL),
        pair=tuple(head["pair"]) if "pair" in head else None,
        curve=head.get("curve"),
        also=tuple(head.get("also", ())),
    )


def _scale(name: str, table: dict[str, Any], head: dict[str, Any]) -> Scale:
    return Scale(
        name=name,
        text=table["text"],
        seeds=table.get("seeds", head.get("seeds", 3)),
        config={k: v for k, v in table.items() if k not in _OF_SCALE},
        methods=tuple(table.get("methods", ())),
        settings=tuple(table.get("settings", ())),
    )


def _crossed(
    methods: list[dict[str, Any]], settings: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Each method under each setting, except methods with their own setting."""
    if not settings:
        yield from methods
        return
    for setting in settings:
        changes = {k: v for k, v in setting.items() if k != "name"}
        for method in methods:
            if "setting" not in method:
                yield {**merge(changes, method), "setting": setting["name"]}
    yield from (method for method in methods if "setting" in method)


def _printed(expected: list[dict[str, Any]], metrics: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The numbers that the paper prints, one per table."""
    for table in expected:
        if "values" not in table:
            yield table
            continue
        for setting, numbers in table["values"].items():
            for metric, value in zip(metrics, numbers, strict=True):
                yield {
                    "method": table["method"],
                    "setting": setting,
                    "metric": metric,
                    "value": value,
                }
