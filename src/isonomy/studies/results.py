"""Results of presets as data, and the tables of the documentation that are made from them.

`isonomy reproduce PRESET --results FOLDER` keeps one row per method, setting and seed in
FOLDER/PRESET.json. A page of the documentation marks where a table belongs:

    <!-- results: pffl-adult metrics=accuracy,group.sex.max_loss -->
    <!-- end of results -->

(`layout=grid`: one row per method and one column per setting, of the preset's mean and deviation;
`layout=rounds` and `layout=swings`: the preset's `curve` after each round, and how it changes;
`layout=surrogates`: FAA against the surrogate's length; `against=METHOD`: differences from a method
with their p-values), and a sentence on a lead, with its paired test (`at SCALE` after it names a
scale):

    <!-- lead: focus-synthetic faa of "FOCUS models found" against "FedAvg equal weights" -->
    <!-- end of lead -->

`python -m isonomy.studies.results PAGES RESULTS` writes what is between the marks.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from isonomy.errors import ConfigError, DataError
from isonomy.metrics.names import find_metric
from isonomy.report import robustness_grid
from isonomy.report.tables.best import p_value
from isonomy.report.tables.cells import ABSENT, Cell, Column, digits_for, shown
from isonomy.report.tables.table import Table
from isonomy.runs.files import write_atomically
from isonomy.runs.record import Record
from isonomy.studies.reproduce import Preset, find, members, scaled, with_joined

Row = dict[str, Any]

_KEY = ("scale", "method", "setting", "seed")
_BLOCK = re.compile(
    r"<!-- (?P<kind>results|lead): (?P<spec>.*?) -->\n(?P<body>.*?)<!-- end of (?P=kind) -->",
    re.DOTALL,
)
_LEAD = re.compile(
    r'^(?P<preset>\S+) (?P<metric>\S+) of "(?P<ours>[^"]+)" against "(?P<other>[^"]+)"'
    r"(?: at (?P<scale>\S+))?$"
)


# --- rows ----------------------------------------------------------------------------------------


def rows_of(preset: Preset, scale: str, records: Sequence[Record]) -> list[Row]:
    """One row per run of a preset: its metrics, verdict, seconds, versions and commit."""
    tables = {f"{t['label']} {t.get('setting', '')}".strip(): t for t in preset.methods}
    rows = []
    for record in with_joined(preset, records):
        table = tables.get(record.label)
        if table is None:
            continue
        found = {name: record.metrics.get(name) for name in preset.metrics}
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
                **({"runs": len(members(table))} if table.get("joined") else {}),
            }
        )
    return rows


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

    Returns the number of rows in the file.
    """
    known = {tuple(row[key] for key in _KEY): row for row in read(path)}
    known |= {tuple(row[key] for key in _KEY): row for row in rows}
    order = [known[key] for key in sorted(known)]
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False, sort_keys=True) for row in order)
    text = f'{{\n "preset": {json.dumps(preset)},\n "rows": [\n{lines}\n ]\n}}\n'
    write_atomically(path, text.encode())
    return len(order)


# --- tables --------------------------------------------------------------------------------------


def table(preset: Preset, rows: Sequence[Row], *, names: Sequence[str] = ()) -> Table:
    """One row per method and setting that was run: the paper's number and ours for each metric.

    `names` chooses metrics; empty means all of the preset's.
    """
    names = names or preset.metrics
    printed = {
        (e["method"], e.get("setting", ""), e["metric"]): e["value"] for e in preset.expected
    }
    judged = any(row["verdict"] for row in rows)
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    for name in names:
        title = find_metric(name).title
        if any(key[2] == name for key in printed):
            heads.append(Column(f"{name} paper", f"{title}, paper", text=True))
        heads.append(Column(name, f"{title}, ours" if printed else title, text=True))
    heads.append(Column("seeds", "seeds", digits=0))
    if judged:
        heads.append(Column("verdict", "verdict", text=True))
    body = []
    for entry in preset.methods:
        method, setting = entry["label"], entry.get("setting", "")
        own = [r for r in rows if (r["method"], r["setting"]) == (method, setting)]
        done = [r for r in own if r["complete"]]
        if not own:
            continue
        cells = [Cell(method), Cell(setting)]
        for name in names:
            values = [v for r in done if (v := r["metrics"].get(name)) is not None]
            if any(key[2] == name for key in printed):
                at = printed.get((method, setting, name))
                cells.append(Cell(ABSENT if at is None else f"{at:g}"))
            cells.append(Cell(_mean(values)))
        lost = len(own) - len(done)
        note = f"({lost} diverged)" if lost else ""
        cells.append(Cell(float(len(done)), note=note))
        if judged:
            cells.append(Cell(_counted([r["verdict"] for r in done])))
        body.append(tuple(cells))
    return Table("", tuple(heads), tuple(body))


def grid(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and one column per setting: the mean and deviation of the `pair`."""
    assert preset.pair is not None
    found: list[Row] = []
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in rows if (r["method"], r["setting"]) == at]
        for metric in preset.pair if own else ():
            done = [r["metrics"].get(metric) for r in own if r["complete"]]
            values = [value for value in done if value is not None]
            found.append(
                {
                    "method": at[0],
                    "setting": at[1],
                    "metric": metric,
                    "ours": fmean(values) if values else None,
                    "spread": stdev(values) if len(values) > 1 else None,
                }
            )
    made = robustness_grid.grid(found, preset.pair, spreads=True)
    return Table("", made.columns, made.rows, made.footnotes)


def rounds(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and setting: the mean over seeds of the `curve` after each round."""
    found = _curves(preset, rows)
    count = max((len(one) for curves in found.values() for one in curves), default=0)
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(str(t + 1), str(t + 1)) for t in range(count)]
    body = []
    for (method, setting), curves in found.items():
        means = [
            fmean(values) if (values := [one[t] for one in curves if t < len(one)]) else None
            for t in range(count)
        ]
        body.append((Cell(method), Cell(setting), *(Cell(mean) for mean in means)))
    return Table("", tuple(heads), tuple(body))


def swings(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and setting: extremes of the `curve`, and its changes between rounds."""
    names = ("smallest", "largest", "mean over rounds", "mean change", "largest change")
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(name, name) for name in names]
    heads += [Column("last", "last round", text=True), Column("seeds", "seeds", digits=0)]
    body = []
    for (method, setting), curves in _curves(preset, rows).items():
        values = [value for one in curves for value in one]
        changes = [abs(b - a) for one in curves for a, b in pairwise(one)]
        numbers: list[float | None] = [min(values), max(values), fmean(values)]
        numbers += [fmean(changes), max(changes)] if changes else [None, None]
        last = Cell(_mean([one[-1] for one in curves]))
        seeds = Cell(float(len(curves)))
        body.append((Cell(method), Cell(setting), *(Cell(n) for n in numbers), last, seeds))
    return Table("", tuple(heads), tuple(body))


def surrogates(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and setting: FAA against surrogates of a fixed number of steps.

    The last column has FAA as it is reported, against the surrogate chosen on held-out examples.
    """
    known = [r for r in rows if r["complete"] and r.get("excess")]
    lengths = sorted({n for r in known for n in r["excess"]["lengths"]})
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(str(n), f"{n:,} steps") for n in lengths]
    heads += [Column("faa", "chosen", text=True), Column("seeds", "seeds", digits=0)]
    body = []
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in known if (r["method"], r["setting"]) == at]
        if not own:
            continue
        found = [
            dict(zip(r["excess"]["lengths"], r["excess"]["by_length"], strict=True)) for r in own
        ]
        cells = []
        for n in lengths:
            values = [v for one in found if (v := one.get(n)) is not None]
            cells.append(Cell(fmean(values) if len(values) == len(own) else None))
        chosen = [v for r in own if (v := r["metrics"].get("faa")) is not None]
        ends = (Cell(_mean(chosen)), Cell(float(len(own))))
        body.append((Cell(at[0]), Cell(at[1]), *cells, *ends))
    return Table("", tuple(heads), tuple(body))


def differences(
    preset: Preset, rows: Sequence[Row], against: str, *, names: Sequence[str] = ()
) -> Table:
    """One row per method and setting: each metric minus that of another method, with its p-value.

    `against` is a label, with its setting or alone; alone, it is the method of that label with
    the row's own setting, if there is one. Seeds that both have are paired.
    """
    names = names or preset.metrics
    keys = [(entry["label"], entry.get("setting", "")) for entry in preset.methods]
    body = []
    for key in keys:
        other = next((k for k in keys if _label(*k) == against or k == (against, key[1])), None)
        if other is None:
            continue
        cells, seeds = [], set()
        for name in names:
            mine, theirs = _values(rows, key, name), _values(rows, other, name)
            both = sorted(mine.keys() & theirs.keys())
            gaps = [mine[seed] - theirs[seed] for seed in both]
            text = f"{_difference(gaps)}; p = {p_value(gaps):.2g}" if len(gaps) > 1 else ABSENT
            cells.append(Cell(text))
            seeds |= set(both)
        if key != other and len(seeds) > 1:
            body.append((Cell(key[0]), Cell(key[1]), *cells, Cell(float(len(seeds)))))
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(name, find_metric(name).title, text=True) for name in names]
    heads += [Column("seeds", "seeds", digits=0)]
    note = (
        f"Differences from {against} over paired seeds, with two-sided paired t tests; p-values "
        "are not corrected for the number of rows."
    )
    return Table("", tuple(heads), tuple(body), (note,))


def _label(method: str, setting: str) -> str:
    return f"{method} {setting}".strip()


def _values(rows: Sequence[Row], key: tuple[str, str], metric: str) -> dict[int, float]:
    """The metric of a method and setting by seed, of complete runs that have it."""
    return {
        row["seed"]: row["metrics"][metric]
        for row in rows
        if (row["method"], row["setting"]) == key
        and row["complete"]
        and row["metrics"].get(metric) is not None
    }


def _difference(gaps: Sequence[float]) -> str:
    digits = digits_for([fmean(gaps)], [stdev(gaps)])
    at = Cell(fmean(gaps), spread=stdev(gaps), digits=digits, signed=True)
    return shown(at, Column("", ""))


def _curves(preset: Preset, rows: Sequence[Row]) -> dict[tuple[str, str], list[list[float]]]:
    """The curves of the complete runs of each method and setting, in the preset's order."""
    out = {}
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in rows if (r["method"], r["setting"]) == at and r["complete"]]
        if curves := [r["curve"] for r in own if r.get("curve")]:
            out[at] = curves
    return out


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ABSENT
    spread = stdev(values) if len(values) > 1 else None
    digits = digits_for([fmean(values)], [spread])
    return shown(Cell(fmean(values), spread=spread, digits=digits), Column("", ""))


def _counted(statuses: Sequence[str | None]) -> str:
    found = [s for s in dict.fromkeys(statuses) if s]
    return ", ".join(f"{s} {statuses.count(s)}" for s in found)


def lead(rows: Sequence[Row], metric: str, ours: str, other: str) -> str:
    """A sentence on the difference of two methods over the seeds that both have, with its test."""

    def values(label: str) -> dict[int, float]:
        keys = {(r["method"], r["setting"]) for r in rows}
        found = [_values(rows, key, metric) for key in sorted(keys) if _label(*key) == label]
        if not any(found):
            raise ConfigError(f"no results of '{label}' with metric '{metric}'; run it first.")
        return next(filter(None, found))

    mine, theirs = values(ours), values(other)
    seeds = sorted(mine.keys() & theirs.keys())
    gaps = [mine[s] - theirs[s] for s in seeds]
    if len(gaps) < 2:
        raise ConfigError(
            f"'{ours}' and '{other}' have {len(gaps)} seeds in common; run two or more."
        )
    return (
        f"{find_metric(metric).title} of {ours} minus that of {other}: {_difference(gaps)} "
        f"over {len(gaps)} paired seeds, p = {p_value(gaps):.2g} (two-sided paired t test)."
    )


_LAYOUTS: dict[str, Callable[[Preset, Sequence[Row]], Table]] = {
    "grid": grid,
    "rounds": rounds,
    "swings": swings,
    "surrogates": surrogates,
}


# --- pages ---------------------------------------------------------------------------------------


def filled(text: str, folder: Path) -> str:
    """A page with the contents of its marks made anew from the results in `folder`."""
    return _BLOCK.sub(lambda found: _block(found, folder), text)


def _block(found: re.Match[str], folder: Path) -> str:
    kind, spec = found["kind"], found["spec"]
    made = _table_of(spec, folder) if kind == "results" else _lead_of(spec, folder)
    return f"<!-- {kind}: {spec} -->\n{made}\n<!-- end of {kind} -->"


def _table_of(spec: str, folder: Path) -> str:
    name, *words = shlex.split(spec)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    known = {"scale", "metrics", "methods", "settings", "layout", "against"}
    layout, against = options.get("layout"), options.get("against")
    if not set(options) <= known or len(options) < len(words) or layout not in (None, *_LAYOUTS):
        raise ConfigError(
            f"results: {spec}: give metrics=..., methods=..., settings=..., scale=..., against=... "
            f"or layout={', '.join(_LAYOUTS)} after the name of the preset."
        )
    if against is not None and layout is not None:
        raise ConfigError(f"results: {spec}: give layout=... or against=..., not both.")
    preset, rows = _rows(name, options.get("scale"), folder)
    if layout == "grid" and (preset.pair is None or {"metrics", "methods"} & set(options)):
        raise ConfigError(
            f"results: {spec}: a grid is of all methods of a preset with a `pair`; choose settings."
        )
    if layout in ("rounds", "swings") and (preset.curve is None or "metrics" in options):
        raise ConfigError(f"results: {spec}: layout={layout} is of a preset with a `curve`.")
    if layout == "surrogates" and ("faa" not in preset.metrics or "metrics" in options):
        raise ConfigError(f"results: {spec}: layout=surrogates is of a preset with FAA.")
    chosen = {key: options.get(key, "").split(";" if key != "metrics" else ",") for key in options}
    methods, settings = chosen.get("methods", ()), chosen.get("settings", ())
    everyone = rows
    rows = [
        row
        for row in rows
        if (not methods or row["method"] in methods)
        and (not settings or row["setting"] in settings)
    ]
    if against is not None:
        own = {(row["method"], row["setting"]) for row in rows}
        other = [r for r in everyone if against in (r["method"], _label(r["method"], r["setting"]))]
        both = [*rows, *(r for r in other if (r["method"], r["setting"]) not in own)]
        made = differences(preset, both, against, names=chosen.get("metrics", ()))
        if not made.rows:
            raise ConfigError(f"results: {spec}: no row has two seeds in common with '{against}'.")
        return "\n" + made.markdown()
    if layout is None:
        made = table(preset, rows, names=chosen.get("metrics", ()))
    else:
        made = _LAYOUTS[layout](preset, rows)
    return "\n" + made.markdown() + "\n" + origin(rows) + "\n"


def _lead_of(spec: str, folder: Path) -> str:
    found = _LEAD.match(spec)
    if found is None:
        raise ConfigError(f'lead: {spec}: write PRESET METRIC of "METHOD" against "METHOD".')
    _, rows = _rows(found["preset"], found["scale"], folder)
    return lead(rows, found["metric"], found["ours"], found["other"])


def _rows(name: str, scale: str | None, folder: Path) -> tuple[Preset, list[Row]]:
    preset = find(name)
    wanted = scaled(preset, scale).name
    return preset, [row for row in read(folder / f"{name}.json") if row["scale"] == wanted]


def origin(rows: Sequence[Row]) -> str:
    """Where the numbers of a table are from: commits, versions and the time that the runs took.

    A commit with + had changes that were not committed.
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
    return f"*{'; '.join(p for p in parts if p)}. ± is the standard deviation over seeds.*"


def main(arguments: Sequence[str]) -> int:
    """Write the generated parts of all pages below a folder again; returns the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m isonomy.studies.results PAGES RESULTS\n")
        return 2
    pages, folder = map(Path, arguments)
    changed: Mapping[Path, str] = {
        page: new
        for page in sorted(pages.rglob("*.md"))
        if (new := filled(text := page.read_text(encoding="utf-8"), folder)) != text
    }
    for page, text in changed.items():
        write_atomically(page, text.encode())
        sys.stdout.write(f"{page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
