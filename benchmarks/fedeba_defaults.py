"""Settings of FedEBA+ against FedAvg on validation data: how its defaults were chosen.

    python benchmarks/fedeba_defaults.py adult --methods fedavg tau=1,alpha=0 tau=0.3,alpha=0
    python benchmarks/fedeba_defaults.py vehicle --path mytrain.json --seeds 0 1 2

Prints mean and variance (times 10,000) of the clients' validation accuracies after the last round,
for each seed. A method is fedavg, or options of fedeba.
"""

from __future__ import annotations

import argparse
from typing import Any

import isonomy
from isonomy.config.overrides import toml_value
from isonomy.config.schema import parse

TURNED = {"name": "rotations", "degrees": [0.0, 90.0, 180.0], "counts": [7, 2, 1]}
DATA: dict[str, dict[str, Any]] = {
    "adult": {
        "rounds": 60,
        "data": {
            "name": "adult",
            "clients": 20,
            "partition": {"name": "dirichlet", "beta": 0.5},
            "fractions": [0.6, 0.2, 0.2],
        },
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"epochs": 1, "batch": 100, "lr": 0.1},
        "cohort": {"size": 10},
    },
    "rotated": {
        "rounds": 60,
        "data": {
            "name": "mnist",
            "clients": 10,
            "examples": 10_000,
            "partition": TURNED,
            "validation": 0.15,
        },
        "model": {"name": "mlp", "hidden": [100]},
        "local": {"epochs": 1, "batch": 50, "lr": 0.1},
    },
    "vehicle": {
        "rounds": 200,
        "data": {"name": "vehicle", "fractions": [0.6, 0.2, 0.2]},
        "model": {"name": "logistic"},
        "local": {"epochs": 1, "batch": 16, "lr": 0.05},
        "cohort": {"size": 10},
    },
    "fashion": {
        "rounds": 60,
        "data": {
            "name": "fashion_mnist",
            "clients": 100,
            "examples": 20_000,
            "partition": {"name": "shards", "each": 2},
            "validation": 0.15,
        },
        "model": {"name": "mlp", "hidden": [200, 200]},
        "local": {
            "epochs": 1,
            "batch": 20,
            "lr": 0.1,
            "schedule": "exponential",
            "decay": 0.99,
        },
        "cohort": {"size": 10},
    },
}


def algorithm(text: str) -> dict[str, Any]:
    """`fedavg`, or `tau=1,alpha=0` as options of fedeba."""
    if text == "fedavg":
        return {"name": "fedavg", "weight": "equal"}
    pairs = (pair.split("=") for pair in text.split(","))
    return {"name": "fedeba", **{name: toml_value(value) for name, value in pairs}}


def main() -> None:
    """Run the methods and print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=DATA)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "tau=1,alpha=0"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--path", help="the file of the data set, if it cannot be downloaded")
    given = parser.parse_args()
    config = dict(DATA[given.data])
    if given.path:
        config["data"] = {**config["data"], "path": given.path}
    config["evaluate"] = {"every": config["rounds"], "split": "validation", "bootstrap": 0}
    config["excess"] = {"clusters": "none"}
    for method in given.methods:
        for seed in given.seeds:
            chosen = {**config, "algorithm": algorithm(method), "seed": seed}
            record = isonomy.run(parse(chosen))
            mean = record.metrics["client.accuracy.mean"]
            variance = 1e4 * record.metrics["client.accuracy.variance"]
            print(f"{given.data}  {method}  seed {seed}: {mean:.3f}; {variance:.0f}", flush=True)


if __name__ == "__main__":
    main()
