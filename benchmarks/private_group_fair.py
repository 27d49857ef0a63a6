"""PUFFLE and FedPF beside FedAvg on ADULT, with and without privacy, over seeds.

    python benchmarks/private_group_fair.py OUT.jsonl            all cases that it does not have
    python benchmarks/private_group_fair.py OUT.jsonl --table    the table, from OUT.jsonl

Ten clients that differ in their shares of labels (Dirichlet, 0.5), logistic regression, 15 rounds
of one local epoch with batches of 256, groups by sex, which is not a feature.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from isonomy import api
from isonomy.config.schema import parse

SEEDS = (0, 1, 2)
ROUNDS = 15
PUFFLE = {"name": "puffle", "target": 0.05, "alpha": 2.0}
CASES: dict[
    str, tuple[dict[str, Any], float]
] = {  # the algorithm, and epsilon of examples (0: none)
    "FedAvg": ({"name": "fedavg"}, 0.0),
    "PUFFLE": (PUFFLE, 0.0),
    "FedAvg, epsilon 4 of examples": ({"name": "fedavg"}, 4.0),
    "PUFFLE, epsilon 4 of examples": (PUFFLE, 4.0),
    "FedPF, true attributes": ({"name": "fedpf", "epsilon": float("inf")}, 0.0),
    "FedPF, epsilon 2 of attributes": ({"name": "fedpf", "epsilon": 2.0}, 0.0),
    "FedPF, epsilon 0.5 of attributes": ({"name": "fedpf", "epsilon": 0.5}, 0.0),
}
SHOWN = ("accuracy", "group.sex.demographic_parity", "group.sex.equalised_odds")


def measured(case: str, seed: int) -> dict[str, Any]:
    """One run."""
    algorithm, epsilon = CASES[case]
    values: dict[str, Any] = {
        "data": {"name": "adult", "clients": 10, "partition": {"name": "dirichlet", "beta": 0.5}},
        "model": {"name": "logistic"},
        "rounds": ROUNDS,
        "local": {"epochs": 1, "batch": 256, "lr": 0.5},
        "algorithm": algorithm,
        "seed": seed,
        "excess": "none",
        "evaluate": {"every": ROUNDS, "bootstrap": 0, "scores": "never"},
    }
    if epsilon:
        values["privacy"] = {
            "level": "example",
            "epsilon": epsilon,
            "delta": 1e-5,
            "clip": 1.0,
            "allow": ["preprocessing", "evaluation"],
            "seed": seed,
        }
    record = api.run(parse(values))
    found = record.facts.get("privacy", {})
    metrics = {name: record.metrics[name] for name in SHOWN}
    return {"case": case, "seed": seed, "spent": found.get("epsilon"), "metrics": metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    text = given.out.read_text() if given.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    done = {(row["case"], row["seed"]) for row in rows}
    for seed in SEEDS if not given.table else ():
        for case in CASES:
            if (case, seed) not in done:
                with given.out.open("a") as file:
                    file.write(json.dumps(measured(case, seed)) + "\n")
    if given.table:
        print(f"| method | {' | '.join(SHOWN)} | seeds |\n|" + " --- |" * (len(SHOWN) + 2))
        for case in CASES:
            some = [row["metrics"] for row in rows if row["case"] == case]
            cells = []
            for name in SHOWN if some else ():
                values = [one[name] for one in some]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{statistics.mean(values):.3f} ± {spread:.3f}")
            if some:
                print(f"| {case} | {' | '.join(cells)} | {len(some)} |")


if __name__ == "__main__":
    main()
