"""Presets: a paper's experiment as data, with the paper's numbers beside ours."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from isonomy.algorithms import registry
from isonomy.errors import ConfigError, unknown
from isonomy.experiments.compare import Method, run_all
from isonomy.experiments.run import Listener
from isonomy.experiments.schema import merge, parse


@dataclass(frozen=True)
class Preset:
    """A paper's experiment.

    `methods` are tables of `label`, `setting` and changed keys; `expected` are tables of method,
    setting, metric, value and an optional note: what the paper prints. A method with `optional`
    is run if there is an algorithm of that name.
    """

    name: str
    title: str
    paper: str
    text: str
    seeds: int
    metrics: tuple[str, ...]
    config: dict[str, Any]
    quick: dict[str, Any]
    methods: tuple[dict[str, Any], ...]
    expected: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()


def presets() -> dict[str, Preset]:
    """All presets that come with the package."""
    found = {}
    for entry in sorted(files("isonomy.experiments").joinpath("presets").iterdir(), key=str):
        if entry.name.endswith(".toml"):
            preset = _read(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8"))
            if preset is not None:
                found[preset.name] = preset
    return found


def find(name: str) -> Preset:
    """A preset by name."""
    known = presets()
    if name not in known:
        raise ConfigError(unknown("preset", name, known))
    return known[name]


def methods_of(preset: Preset, *, quick: bool = False) -> list[Method]:
    """The preset's methods, as a comparison runs them."""
    base = merge(preset.config, preset.quick) if quick else preset.config
    chosen = []
    for table in _tables(preset):
        changes = {k: v for k, v in table.items() if k not in ("label", "setting", "optional")}
        config = parse(merge(base, changes), where=f"preset {preset.name}")
        chosen.append(Method.of(config, f"{table['label']} {table.get('setting', '')}".strip()))
    return chosen


def reproduce(
    preset: Preset,
    folder: Path | str,
    *,
    seeds: int | None = None,
    quick: bool = False,
    listener: Listener | None = None,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Run a preset; one row for each method, setting and metric."""
    chosen = methods_of(preset, quick=quick)
    count = (1 if quick else preset.seeds) if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"--seeds {count}: give at least 1.")
    records = run_all(chosen, list(range(count)), folder, listener=listener, overwrite=overwrite)
    rows = []
    for table, method in zip(_tables(preset), chosen, strict=True):
        ours = [r for r in records if r.label == method.label]
        for metric in preset.metrics:
            values = [r.metrics[metric] for r in ours if metric in r.metrics]
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
                    "note": printed[0].get("note", "") if printed else "",
                }
            )
    return rows


def _tables(preset: Preset) -> list[dict[str, Any]]:
    """The methods, without the optional ones of which there is no algorithm."""
    return [t for t in preset.methods if not t.get("optional") or _name(t) in registry()]


def _name(table: dict[str, Any]) -> str:
    algorithm = table["algorithm"]
    return str(algorithm["name"] if isinstance(algorithm, dict) else algorithm)


def _matches(expected: dict[str, Any], table: dict[str, Any], metric: str) -> bool:
    there = (expected["method"], expected.get("setting", ""), expected["metric"])
    return there == (table["label"], table.get("setting", ""), metric)


def _read(name: str, text: str) -> Preset | None:
    values = tomllib.loads(text)
    if "preset" not in values:
        return None  # a plain config, such as the quickstart's
    head = values["preset"]
    return Preset(
        name=name,
        title=head["title"],
        paper=head["paper"],
        text=head["text"].strip(),
        seeds=head.get("seeds", 3),
        metrics=tuple(head["metrics"]),
        config=values["config"],
        quick=values.get("quick", {}),
        methods=tuple(values["methods"]),
        expected=tuple(values.get("expected", ())),
        notes=tuple(head.get("notes", ())),
    )
