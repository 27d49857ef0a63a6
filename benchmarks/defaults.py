"""Do the defaults work? Every algorithm on six data sets, with what `isonomy init` writes.

    python benchmarks/defaults.py tables FOLDER --acs states.parquet
    python benchmarks/defaults.py run FOLDER
    python benchmarks/defaults.py show FOLDER [--to docs/defaults.md]

`tables` writes each data set as one file per client, with the rows of a label divided over clients
by a Dirichlet distribution, and the census by state. `run` calls `isonomy init` on them, changes
only the number of rounds and what MENDED says, and trains every algorithm with its defaults, with
three seeds, which also divide the rows into training, validation and test examples. It appends one
line per run to FOLDER/results.jsonl, and a run that is there already is not repeated.
`show` prints accuracy on test examples against the constant predictor and against FedAvg; a method
fails if it diverges or if it is below the constant predictor. Defaults are chosen on validation
examples (`show --split validation`).
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from isonomy import algorithms
from isonomy.cli.init import init
from isonomy.config.overrides import merge, parse_override
from isonomy.config.schema import Config, parse
from isonomy.data.download import fetch
from isonomy.errors import IsonomyError
from isonomy.runs import build, training
from isonomy.runs.evaluate import evaluate

ROUNDS = 12
ROWS = 6_000
CLIENTS = 10
SEEDS = range(3)
STATES = ("AK", "AL", "CO", "GA", "HI", "MT", "NJ", "NM", "PA", "SD")
LABELS = {
    "adult": "income",
    "bank": "y",
    "compas": "two_year_recid",
    "credit_card": "default.payment.next.month",
    "german": "risk",
}
UNKNOWN = {  # columns that are known only after the label
    "bank": ["duration"],
    "compas": ["is_recid", "score_text", "days_b_screening_arrest"],
}
MENDED: dict[str, dict[str, Any]] = {}  # what a person who reads the config would correct
SPLITS = ("validation", "test")
SLACK = 0.005  # below the constant predictor by at most this: the same, up to a few rows


def write_tables(folder: Path, acs: Path | None) -> None:
    """Write each data set as a folder of tables, one per client."""
    stream = np.random.default_rng(0)
    for name, label in LABELS.items():
        module = import_module(f"isonomy.data.datasets.{name}")
        parsed = module.parse([file.path for file in fetch.fetch(*module.FILES)])
        table = pa.table(parsed.listed())
        table = table.drop_columns([c for c in UNKNOWN.get(name, []) if c in table.column_names])
        table = table.take(stream.permutation(len(table))[:ROWS])
        _write(folder / name, table, _skewed(table.column(label).to_pylist(), stream))
    if acs is not None:
        table = pq.read_table(acs)
        rows, owners = [], []
        for k, state in enumerate(STATES):
            there = np.flatnonzero(pc.equal(table.column("STATE"), state).to_numpy())
            rows.append(stream.permutation(there)[: 200 + 100 * k])
            owners += [k] * len(rows[-1])
        table = table.drop_columns(["STATE"]).take(np.concatenate(rows))
        _write(folder / "acs", table, np.array(owners))


def _skewed(labels: list[Any], stream: np.random.Generator) -> np.ndarray:
    """Each row's client: Dirichlet shares of every label, and at least 40 rows per client."""
    values = np.array([str(label) for label in labels])
    while True:
        owners = np.zeros(len(values), dtype=int)
        for value in sorted(set(values)):
            at = np.flatnonzero(values == value)
            owners[at] = stream.choice(CLIENTS, len(at), p=stream.dirichlet([2.0] * CLIENTS))
        if np.bincount(owners, minlength=CLIENTS).min() >= 40:
            return owners


def _write(folder: Path, table: pa.Table, owners: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(owners.max() + 1):
        pq.write_table(table.take(np.flatnonzero(owners == k)), folder / f"client{k}.parquet")


def base(folder: Path, name: str) -> dict[str, Any]:
    """What `init` writes for the tables, with few rounds and without what costs time only."""
    file = folder / f"{name}.toml"
    if not file.exists():
        init(folder / name, to=file)
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    values["data"]["path"] = str(folder / name)
    values["data"] |= MENDED.get(name, {})
    values.pop("compare")
    return values | {
        "rounds": ROUNDS,
        "evaluate": {"every": ROUNDS, "bootstrap": 0},
        "excess": {"clusters": "none"},
        "front": {"rays": 50},
    }


def run_one(values: dict[str, Any]) -> dict[str, Any]:
    """Train, and measure on both splits; if training fails, the message."""
    begin = time.perf_counter()
    measured: dict[str, dict[str, float | None]] = {}
    config = parse(values)

    def both(setting: Any, now: Any, *, last: bool) -> Any:
        for split in SPLITS if last else ():
            other = setting.config.evaluate.model_copy(update={"split": split})
            asked = replace(setting, config=setting.config.model_copy(update={"evaluate": other}))
            measured[split] = evaluate(asked, now, last=True).metrics or {}
        return evaluate(setting, now, last=last)

    training.evaluate = both  # type: ignore[attr-defined]
    out: dict[str, Any] = {}
    try:
        record = training.run(config)
        out["verdict"] = None if record.verdict is None else record.verdict["status"]
        out["notes"] = [note for note in record.notes if "local" in note.lower()]
    except IsonomyError as error:
        out["error"] = str(error)
    for split, metrics in measured.items():
        kept = [
            key
            for key in metrics
            if key in ("accuracy", "client.accuracy.worst10") or key.endswith(".demographic_parity")
        ]
        out[split] = {key: metrics[key] for key in kept}
        out[split]["constant"] = constant(config, split)
    return out | {"seconds": round(time.perf_counter() - begin, 1)}


def constant(config: Config, split: str) -> float:
    """The accuracy of the class that is most frequent in training, for all clients."""
    data = build.federation_of(config)
    parts = {
        s: torch.cat([data.y[data.rows(k, s)] for k in range(len(data))])
        for s in (*SPLITS, "train")
    }
    most = parts["train"].bincount().argmax()
    return float((parts[split] == most).double().mean())


Key = tuple[str, str, str, int]  # data, algorithm, changed keys, seed


def run_all(
    folder: Path, data: list[str], names: list[str], note: str, extra: dict[str, Any]
) -> None:
    """Run what is not in the results yet."""
    for name in data:
        values = base(folder, name)
        for algorithm, seed in product(names, SEEDS):
            if (name, algorithm, note, seed) in results(folder):
                continue
            chosen = {"algorithm": {"name": algorithm}, "seed": seed}
            line = run_one(merge(values | chosen, extra))
            line = {"data": name, "algorithm": algorithm, "note": note, "seed": seed, **line}
            with (folder / "results.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
            shown = line.get("error") or line["validation"]["accuracy"]
            print(name, algorithm, note, seed, shown, f"{line['seconds']} s", flush=True)


def results(folder: Path) -> dict[Key, dict[str, Any]]:
    """The latest line of each run."""
    file = folder / "results.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return {(one["data"], one["algorithm"], one["note"], one["seed"]): one for one in lines}


EXPLAINED: dict[str, str] = {  # why a method fails, for those that do
    "fedlf": (
        "88 % of BANK's rows have one label, and clients have different shares of it. To make "
        "their losses equal, FedLF predicts the rare label more often, which costs accuracy: in "
        "the two seeds that are more than a point below the constant, its balanced accuracy is .60 "
        "and .69, where the constant has .5. Most other methods predict the frequent label for "
        "everyone after 12 rounds."
    ),
}
INTRODUCTION = """\
# Do the defaults work?

Every algorithm, with what `isonomy init` writes for six data sets and with no option set. This page
is written by `benchmarks/defaults.py`, which can be interrupted and continued:

    python benchmarks/defaults.py tables FOLDER --acs states.parquet
    python benchmarks/defaults.py run FOLDER
    python benchmarks/defaults.py show FOLDER --to docs/defaults.md

{size} Each number is accuracy on test examples minus that of the constant predictor (the most
frequent class of the training examples), in percentage points: the mean over {seeds} seeds, and the
standard deviation. A seed also divides the rows into training, validation and test examples; German
has only about 200 test examples. **below** marks a mean that is below the constant by more than
{slack:g} points, **diverged** a method without a result with some seed; a method that is not made
for a data set refuses it, with the reason below the table.
Defaults and recommended local work were chosen on validation examples.

Some methods recommend their own local work, which is used for keys that the config does not set
(`isonomy show NAME` prints it, and the notes of a run state it): {recommended}.
"""


def page(folder: Path, data: list[str], names: list[str], split: str) -> str:
    """The table and what it means, as Markdown."""
    found = results(folder)
    made = [
        f"{name} {algorithms.make(name).recommended_work()}"
        for name in names
        if algorithms.make(name).recommended_work()
    ]
    size = (
        f"{ROUNDS} rounds; at most {ROWS:,} rows of each data set, divided among {CLIENTS} clients "
        "with different shares of the labels; the census (`acs`) has ten states as clients."
    )
    facts = {"size": size, "slack": 100 * SLACK, "seeds": len(SEEDS)}
    lines = [INTRODUCTION.format(**facts, recommended="; ".join(made))]
    lines.append("| algorithm | " + " | ".join(data) + " |")
    lines.append("| --- |" + " ---: |" * len(data))
    constants = [[line[split]["constant"] for line in _lines(found, d, "fedavg")] for d in data]
    majority = " | ".join(f"{100 * fmean(own):.1f}" for own in constants)
    lines.append(f"| accuracy of the constant | {majority} |")
    failed: dict[str, list[str]] = {}
    for name in names:
        cells = []
        for one in data:
            text, bad = _cell(_lines(found, one, name), split)
            cells.append(text)
            if bad:
                failed.setdefault(name, []).append(one)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", _failures(failed, found, split)]
    refused = {
        f"`{name}` refuses {one}: {line['error']}"
        for (one, name, note, _), line in found.items()
        if name in names
        and one in data
        and not note
        and "diverged" not in line.get("error", "diverged")
    }
    for text in sorted(refused):
        lines += ["", text]
    return "\n".join(lines) + "\n"


def _lines(found: dict[Key, dict[str, Any]], data: str, name: str, note: str = "") -> list[Any]:
    """The runs of a method on a data set, of all seeds; empty unless all were made."""
    lines = [found.get((data, name, note, seed)) for seed in SEEDS]
    return [] if None in lines else lines


def _cell(lines: list[dict[str, Any]], split: str) -> tuple[str, bool]:
    """One entry of the table, and whether it is a failure."""
    if not lines:
        return "not run", False
    errors = [line["error"] for line in lines if "error" in line]
    if errors:
        bad = any("diverged" in error for error in errors)
        return ("**diverged**" if bad else "refused"), bad
    above = [100 * (line[split]["accuracy"] - line[split]["constant"]) for line in lines]
    bad = fmean(above) < -100 * SLACK - 1e-9  # one of 200 rows is exactly the slack
    return f"{fmean(above):+.1f} ± {stdev(above):.1f}" + (" **below**" if bad else ""), bad


def _failures(failed: dict[str, list[str]], found: dict[Key, dict[str, Any]], split: str) -> str:
    """What failed, why, and what was measured with the setting that works."""
    if not failed:
        return "No method fails."
    out = []
    for name, where in failed.items():
        text = (
            f"**{name}** fails on {', '.join(where)}. {EXPLAINED.get(name, 'Not explained yet.')}"
        )
        tried = {(d, note) for d, algorithm, note, _ in found if algorithm == name and note}
        for data, note in sorted(tried):
            text += f" With `{note}` on {data}: {_cell(_lines(found, data, name, note), split)[0]}."
        out.append(text)
    return "\n\n".join(out)


def main() -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=("tables", "run", "show"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--acs", type=Path, help="the census as one Parquet file with STATE")
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--algorithms", nargs="+")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--to", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.do == "tables":
        write_tables(given.folder, given.acs)
        return
    there = sorted(path.name for path in given.folder.iterdir() if path.is_dir())
    data, names = given.data or there, given.algorithms or list(algorithms.registry())
    if given.do == "run":
        extra: dict[str, Any] = {}
        for text in given.set:
            extra = merge(extra, parse_override(text))
        run_all(given.folder, data, names, " ".join(given.set), extra)
        return
    text = page(given.folder, data, names, given.split)
    print(text) if given.to is None else given.to.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
