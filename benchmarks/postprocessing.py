"""Post-processing on ADULT: FedAvg with and without each rule, as in docs/postprocessing.md.

    python benchmarks/postprocessing.py --to runs/postprocessing

Trains FedAvg once for each seed, fits every rule to these models, and prints one table for each
notion: error and gap on test examples, as mean and standard deviation over the seeds. Folders that
exist already are not made again.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import isonomy
from isonomy.core.notions import find_notion

BUDGETS = (0.05, 0.02)
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "thresholds": ("thresholds", {}),
    "logofair": ("logofair", {}),
    "logofair, calibrate = none": ("logofair", {"calibrate": "none"}),
    "logofair, local budget": ("logofair", {"local_budget": ...}),
    "fedfact": ("fedfact", {}),
    "fair_lp": ("fair_lp", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("runs/postprocessing"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    plain = [
        trained(given.to / f"fedavg-{seed}", seed, given.rounds) for seed in range(given.seeds)
    ]
    for notion in ("dp", "eo", "equalised_odds"):
        metric = f"group.sex.{find_notion(notion).name}"
        print(
            f"\n{find_notion(notion).title}\n\n| rule | budget | error | gap | largest local gap |"
        )
        print("| --- | --- | --- | --- | --- |")
        print(f"| none | | {row([isonomy.load(folder)[0] for folder in plain], metric)} |")
        for label, (name, options) in METHODS.items():
            for budget in BUDGETS:
                runs = [fitted(folder, label, name, notion, budget, options) for folder in plain]
                print(f"| {label} | {budget:g} | {row(runs, metric)} |", flush=True)


def trained(folder: Path, seed: int, rounds: int) -> Path:
    """The run without a rule."""
    if not (folder / "summary.json").exists():
        config = isonomy.make_config(
            seed=seed,
            rounds=rounds,
            data={"name": "adult", "clients": 10},
            local={"lr": 0.05},
            evaluate={"every": rounds, "bootstrap": 0},
            excess={"clusters": "none"},
        )
        isonomy.run(config, folder, overwrite=True)
    return folder


def fitted(
    folder: Path, label: str, name: str, notion: str, budget: float, options: dict[str, object]
) -> isonomy.Record:
    """The run with a rule."""
    to = folder.with_name(f"{folder.name} {label} {notion} {budget:g}".replace(" ", "_"))
    if (to / "summary.json").exists():
        return isonomy.load(to)[0]
    own = {key: budget if value is ... else value for key, value in options.items()}
    return isonomy.postprocess_run(
        folder, to, name, overwrite=True, notion=notion, budget=budget, **own
    )


def row(records: list[isonomy.Record], metric: str) -> str:
    """Error, gap over all clients and largest gap inside a client, on test examples."""
    last = [max(record.clients["round"]) for record in records]
    local = [
        max(
            value
            for value, at in zip(record.clients[metric], record.clients["round"], strict=True)
            if at == end and value is not None and value == value
        )
        for record, end in zip(records, last, strict=True)
    ]
    error = [1 - record.metrics["accuracy"] for record in records]
    gap = [record.metrics[metric] for record in records]
    return " | ".join(spread(values) for values in (error, gap, local))


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


if __name__ == "__main__":
    main()
