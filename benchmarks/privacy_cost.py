"""What differential privacy costs: accuracy and fairness against epsilon, over seeds.

    python benchmarks/privacy_cost.py OUT.jsonl            all cases that OUT.jsonl does not have
    python benchmarks/privacy_cost.py OUT.jsonl --table    the tables, from OUT.jsonl

Client-level privacy, clients known to take part, all clients in every round. ADULT: 100 clients,
labels skewed (Dirichlet, 0.5), logistic regression; groups are sexes and races, and PFFL bounds the
losses of the sexes. Fashion-MNIST: 100 clients with two labels each, logistic regression; it has no
groups, so PFFL is not run on it. An epsilon of 0 stands for training without privacy, and an
infinite one for clipping alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from isonomy import api
from isonomy.config.schema import parse

CLIPPED = math.inf  # clips with next to no noise, for the effect of clipping alone
EPSILONS = (0.0, CLIPPED, 8.0, 2.0)
SEEDS = (0, 1, 2)
DATA: dict[str, dict[str, Any]] = {
    "adult": {
        "data": {
            "name": "adult",
            "clients": 100,
            "partition": {"name": "dirichlet", "beta": 0.5},
            "protected": ["sex", "race"],
        },
        "rounds": 20,
        "local": {"steps": 10, "batch": 32, "lr": 0.1},
    },
    "fashion_mnist": {
        "data": {"name": "fashion_mnist", "clients": 100, "partition": "shards"},
        "rounds": 20,
        "local": {"steps": 10, "batch": 32, "lr": 0.05},
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg", "weight": "equal"}},
    "fedeba": {"algorithm": {"name": "fedeba", "tau": 1.0}, "bounds": {"loss": 2.0}},
    "fmtl": {"algorithm": {"name": "fmtl", "lam": 1.0}},
    "pffl": {
        "algorithm": {"name": "pffl", "attributes": ["sex"]},
        "bounds": {"losses": 200.0, "count": 300.0},
        "only": "adult",
    },
}
SHOWN = {
    "adult": (
        "accuracy",
        "client.accuracy.worst10",
        "group.sex.demographic_parity",
        "group.sex.equal_opportunity",
    ),
    "fashion_mnist": ("accuracy", "client.accuracy.worst10", "client.accuracy.std"),
}

RACES = ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other")  # by size
LOST = {
    "adult": (
        "accuracy",
        "client.accuracy.worst10",
        "group.sex.balanced_accuracy.Male",
        "group.sex.balanced_accuracy.Female",
        *(f"group.race.balanced_accuracy.{race}" for race in RACES),
    ),
    "fashion_mnist": ("accuracy", "client.accuracy.worst10"),
}


def cases() -> list[tuple[str, str, float, int]]:
    out = []
    for seed, epsilon, data, method in itertools.product(SEEDS, EPSILONS, DATA, METHODS):
        if METHODS[method].get("only", data) == data:
            out.append((data, method, epsilon, seed))
    return out


def measured(data: str, method: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One run."""
    values: dict[str, Any] = {
        **DATA[data],
        "model": {"name": "logistic"},
        "algorithm": METHODS[method]["algorithm"],
        "seed": seed,
        "excess": "none",
        "front": {"rays": 0},
        "evaluate": {"every": 1000, "bootstrap": 0, "scores": "never"},
    }
    if epsilon:
        values["privacy"] = {
            "level": "client",
            **({"noise": 1e-3} if epsilon == CLIPPED else {"epsilon": epsilon}),
            "delta": 1e-3,  # 100 clients
            "clip": 0.3,
            "bounds": METHODS[method].get("bounds", {}),
            "allow": ["preprocessing", "evaluation"],
            "seed": seed,
        }
    begin = time.perf_counter()
    record = api.run(parse(values))
    found = record.facts.get("privacy", {})
    return {
        "data": data,
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "spent": found.get("epsilon"),
        "noise": found.get("noise_multiplier"),
        "seconds": round(time.perf_counter() - begin, 1),
        "metrics": {k: v for k, v in record.metrics.items() if ":" not in k},
    }


def table(rows: list[dict[str, Any]]) -> None:
    for data in DATA:
        shown = [n for n in SHOWN[data] if any(n in r["metrics"] for r in rows)]
        print(f"\n{data}\n\n| method | epsilon | noise | {' | '.join(shown)} | seeds |")
        print("|" + " --- |" * (len(shown) + 4))
        for method, epsilon in itertools.product(METHODS, EPSILONS):
            some = [
                r for r in rows if (r["data"], r["method"], r["epsilon"]) == (data, method, epsilon)
            ]
            if not some:
                continue
            cells = []
            for name in shown:
                values = [r["metrics"][name] for r in some]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{statistics.mean(values):.3f} ± {spread:.3f}")
            noise = f"{some[0]['noise']:.2f}" if epsilon else "0"
            text = {0.0: "none", CLIPPED: "clipping alone"}.get(epsilon, f"{epsilon:g}")
            print(f"| {method} | {text} | {noise} | {' | '.join(cells)} | {len(some)} |")


def lost(rows: list[dict[str, Any]]) -> None:
    """What each group and the worst clients lose, as differences between runs of the same seed."""
    found = {(r["data"], r["method"], r["epsilon"], r["seed"]): r["metrics"] for r in rows}
    for data, names in LOST.items():
        print(f"\n{data}: less than without privacy\n\n| method | epsilon | {' | '.join(names)} |")
        print("|" + " --- |" * (len(names) + 2))
        for method, epsilon in itertools.product(METHODS, EPSILONS[1:]):
            seeds = [s for s in SEEDS if (data, method, epsilon, s) in found]
            pairs = [(found[data, method, 0.0, s], found[data, method, epsilon, s]) for s in seeds]
            if len(pairs) < 2:
                continue
            cells = []
            for name in names:
                values = [plain[name] - private[name] for plain, private in pairs]
                cells.append(f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}")
            print(f"| {method} | {epsilon:g} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = []
    if given.out.exists():
        rows = [json.loads(line) for line in given.out.read_text().splitlines()]
    if given.table:
        table(rows)
        lost(rows)
        return
    done = {(r["data"], r["method"], r["epsilon"], r["seed"]) for r in rows}
    for case in cases():
        if case in done:
            continue
        row = measured(*case)
        with given.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*case, row["seconds"], file=sys.stderr)


if __name__ == "__main__":
    main()
