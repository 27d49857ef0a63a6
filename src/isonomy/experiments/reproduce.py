"""Presets: a paper's experiment as data, with the paper's numbers beside ours."""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from isonomy.errors import ConfigError, unknown
from isonomy.experiments.compare import Method, run_all
from isonomy.experiments.run import Listener
from isonomy.experiments.schema import merge, parse


@dataclass(frozen=True)
class Preset:
    """A paper's experiment.

    `methods` are tables of `label`, `setting` and changed keys; one with a `grid` (an algorithm's
    option to a list of values) stands for all combinations, points of one curve. `expected` are
    tables of method, setting, metric, value and an optional note: what the paper prints.
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
    for table in preset.methods:
        changes = {k: v for k, v in table.items() if k not in ("label", "setting", "grid")}
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
    for table, method in zip(preset.methods, chosen, strict=True):
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


def _matches(expected: dict[str, Any], table: dict[str, Any], metric: str) -> bool:
    there = (expected["method"], expected.get("setting", ""), expected["metric"])
    return there == (table["label"], table.get("setting", ""), metric)


def _expanded(table: dict[str, Any]) -> list[dict[str, Any]]:
    """A method with a grid as its combinations; any other as it is."""
    if "grid" not in table:
        return [table]
    out = []
    for values in itertools.product(*table["grid"].values()):
        chosen = dict(zip(table["grid"], values, strict=True))
        said = ", ".join(f"{key}={value}" for key, value in chosen.items())
        setting = ", ".join(part for part in (table.get("setting", ""), said) if part)
        inner = merge(table, {"algorithm": chosen, "setting": setting})
        inner["series"] = " ".join(p for p in (table["label"], table.get("setting", "")) if p)
        out.append(inner)
    return out


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
        methods=tuple(one for table in values["methods"] for one in _expanded(table)),
        expected=tuple(values.get("expected", ())),
        notes=tuple(head.get("notes", ())),
    )
