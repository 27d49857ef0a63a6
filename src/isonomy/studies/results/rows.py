"""Rows of results: one per run of a preset, kept in FOLDER/PRESET.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isonomy.errors import DataError
from isonomy.runs.files import locked, write_atomically
from isonomy.runs.record import Record
from isonomy.studies.joined_fronts import together
from isonomy.studies.numbers import number
from isonomy.studies.reproduce import Preset, members, with_joined

Row = dict[str, Any]

_POINTS = 40  # of a front, at most; those between them are left out
_KEY = ("scale", "method", "setting", "seed")


def rows_of(preset: Preset, scale: str, records: Sequence[Record]) -> list[Row]:
    """One row per run of a preset: its metrics, verdict, seconds, versions and commit.

    A run that diverged is a row without metrics; one that was interrupted is left out.
    """
    tables = {f"{t['label']} {t.get('setting', '')}".strip(): t for t in preset.methods}
    rows = []
    for record in with_joined(preset, records):
        table = tables.get(record.label)
        if table is None or not (record.complete or record.facts.get("diverged")):
            continue
        found = {name: number(record, name) for name in (*preset.metrics, *preset.also)}
        rows.append(
            {
                "scale": scale,
                "method": table["label"],
                "setting": table.get("setting", ""),
                "seed": record.seed,
                "metrics": {
                    name: None if value is None or value != value else float(f"{value:.6g}")
                    for name, value in found.items()
                },
                "verdict": None if record.verdict is None else record.verdict.get("status"),
                "complete": record.complete,
                "seconds": round(record.seconds, 1),
                "versions": {
                    name: text
                    for name, text in (record.facts.get("versions") or {}).items()
                    if name in ("isonomy", "torch", "python")
                },
                "commit": record.facts.get("commit", ""),
                **({"curve": _curve(record, preset.curve)} if preset.curve else {}),
                **({"excess": _excess(record)} if record.excess else {}),
                **({"front": front} if (front := _front(preset, record)) else {}),
                **({"runs": len(members(table))} if table.get("joined") else {}),
            }
        )
    return rows


def _front(preset: Preset, record: Record) -> list[list[float]]:
    """Points of the global front, of the first seed only, so that the file stays small."""
    if "hv.global" not in preset.metrics or record.seed != 0 or not record.complete:
        return []
    found = together(record)
    step = max(1, -(-len(found) // _POINTS))
    kept = [*found[:-1:step], *found[-1:]]
    return [[float(f"{value:.4g}") for value in at] for at in kept]


def _excess(record: Record) -> dict[str, list[Any]]:
    """Each client's cluster, excess risk and standard error, and FAA by the surrogate's length."""
    short = {
        name: [None if at is None else float(f"{at:.3g}") for at in record.excess[name]]
        for name in ("excess", "error", "by_length")
    }
    return {**short, **{name: list(record.excess[name]) for name in ("clusters", "lengths")}}


def _curve(record: Record, metric: str) -> list[float]:
    """The metric after each round that was evaluated."""
    values = [line["metrics"].get(metric) for line in record.rounds if line.get("metrics")]
    return [float(f"{value:.4g}") for value in values if value is not None]


def read(path: Path) -> list[Row]:
    """The rows of a results file, or none if there is no file."""
    if not path.exists():
        return []
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a file of results; remove it, or restore it from version control."
        ) from error
    return rows


def keep(path: Path, preset: str, rows: Iterable[Row]) -> int:
    """Add rows to a results file; a row of the same method, setting, scale and seed is replaced.

    Several processes may do this at the same time. Returns the number of rows in the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent, wait=True):
        known = {tuple(row[key] for key in _KEY): row for row in read(path)}
        known |= {tuple(row[key] for key in _KEY): row for row in rows}
        order = [known[key] for key in sorted(known)]
        lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) for row in order]
        body = ",\n".join(f"  {line}" for line in lines)
        text = f'{{\n "preset": {json.dumps(preset)},\n "rows": [\n{body}\n ]\n}}\n'
        write_atomically(path, text.encode())
    return len(order)


def origin(rows: Sequence[Row], spread: str = "the standard deviation over seeds") -> str:
    """Where the numbers of a table are from: commits, versions and the time that the runs took.

    `spread` is what ± means; empty if there is none. A commit with + had changes that were not
    committed.
    """
    if not rows:
        return "Not run yet."
    commits = sorted({row["commit"] for row in rows if row["commit"]})
    torch = sorted({row["versions"].get("torch", "") for row in rows} - {""})
    hours = sum(row["seconds"] for row in rows) / 3600
    spent = f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
    made = sum(row.get("runs", 1) for row in rows)
    parts = [f"{made} runs, {spent} in all", f"torch {', '.join(torch)}" if torch else ""]
    parts.append(f"commit {', '.join(commits)}" if commits else "")
    meaning = f" ± is {spread}." if spread else ""
    return f"*{'; '.join(p for p in parts if p)}.{meaning}*"
