"""How much an equal tuning budget changes a ranking of methods, on test examples.

    python benchmarks/tuning.py run FOLDER [--data adult] [--seeds 0 1 2]
    python benchmarks/tuning.py show FOLDER

For each data set and seed, every method is tuned with the same number of trials on validation
examples; the default and the tuned method are then measured once on test examples, with the same
seed. `run` writes one line per data set and seed to FOLDER/results.jsonl and skips what is there.
`show` prints one table per data set: means over seeds, ranks before and after, and how many pairs
of methods change their order.
"""

from __future__ import annotations

import argparse
import json
import logging
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import isonomy
from isonomy.config.schema import parse

METHODS = ("fedavg", "fedprox", "q_fedavg", "fedeba", "fmtl", "fedfb", "fairfed")
TRIALS = 10
DATA: dict[str, tuple[dict[str, Any], str]] = {
    "adult": ({"name": "adult", "partition": "uneven", "clients": 10}, "sex"),
    "compas": ({"name": "compas", "partition": "uneven", "clients": 10}, "sex"),
}


def config_of(name: str, seed: int) -> isonomy.Config:
    """Logistic regression, 10 rounds."""
    return isonomy.make_config(
        data=DATA[name][0],
        model={"name": "logistic"},
        rounds=10,
        local={"epochs": 1, "batch": 128, "lr": 0.1},
        seed=seed,
        evaluate={"every": 10, "bootstrap": 0},
        excess={"clusters": "none"},
        compare={"methods": [{"algorithm": name} for name in METHODS]},
    )


def on_test(config: isonomy.Config, seed: int, names: list[str]) -> dict[str, dict[str, float]]:
    """The metrics of each method on test examples."""
    out = {}
    for method in isonomy.methods(config):
        values = method.config.plain()
        values["evaluate"] = {**values["evaluate"], "split": "test"}
        record = isonomy.run(parse({**values, "seed": seed}))
        out[method.config.algorithm.name] = {name: record.metrics[name] for name in names}
    return out


def measure(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """One tuning of all methods, and both rankings."""
    config = config_of(name, seed)
    objectives = ["accuracy", f"group.{DATA[name][1]}.demographic_parity"]
    place = folder / f"{name}-{seed}"
    tuned = isonomy.tune(config, METHODS, place, trials=TRIALS, objectives=objectives)
    return {
        "data": name,
        "seed": seed,
        "objectives": objectives,
        "default": on_test(config, seed, objectives),
        "tuned": on_test(tuned.tuned_config(), seed, objectives),
    }


def show(lines: list[dict[str, Any]]) -> None:
    """Print the tables."""
    for name in dict.fromkeys(line["data"] for line in lines):
        own = [line for line in lines if line["data"] == name]
        objectives = own[0]["objectives"]
        print(f"\n{name}, seeds {', '.join(str(line['seed']) for line in own)}\n")
        pairs = [(f"{o.split('.')[-1]}, default", "tuned") for o in objectives]
        print("| method | " + " | ".join(f"{a} | {b} | rank" for a, b in pairs))
        mean: dict[tuple[str, str, str], float] = {}
        for when in ("default", "tuned"):
            for method in METHODS:
                for o in objectives:
                    mean[when, method, o] = fmean(line[when][method][o] for line in own)
        ranks = {}
        for when in ("default", "tuned"):
            for o in objectives:
                sign = -1 if o == "accuracy" else 1
                order = sorted(METHODS, key=lambda m: sign * mean[when, m, o])
                ranks |= {(when, m, o): order.index(m) + 1 for m in order}
        for m in METHODS:
            cells = []
            for o in objectives:
                for when in ("default", "tuned"):
                    values = [line[when][m][o] for line in own]
                    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
                    cells.append(f"{mean[when, m, o]:.3f}{spread}")
                cells.append(f"{ranks['default', m, o]} to {ranks['tuned', m, o]}")
            print(f"| {m} | " + " | ".join(cells) + " |")
        for o in objectives:
            moved = sum(ranks["default", m, o] != ranks["tuned", m, o] for m in METHODS)
            couples = list(combinations(METHODS, 2))
            turned = sum(
                (ranks["default", a, o] < ranks["default", b, o])
                != (ranks["tuned", a, o] < ranks["tuned", b, o])
                for a, b in couples
            )
            print(
                f"{o}: {moved} of {len(METHODS)} methods, {turned} of {len(couples)} pairs change"
            )


def main() -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=("run", "show"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "results.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    if given.do == "run":
        for seed in given.seeds:
            for name in given.data:
                if any((line["data"], line["seed"]) == (name, seed) for line in lines):
                    continue
                lines.append(measure(name, seed, given.folder))
                with file.open("a") as stream:
                    stream.write(json.dumps(lines[-1]) + "\n")
                print(name, seed, "done", flush=True)
    show(lines)


if __name__ == "__main__":
    main()
