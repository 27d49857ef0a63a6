"""All methods on nine federations, each tuned with the same budget, on every notion of fairness.

    python benchmarks/leaderboard.py run [--acs states.parquet] [--data adult ...] [--methods ...]
    python benchmarks/leaderboard.py choose [--acs states.parquet] [--data adult ...]
    python benchmarks/leaderboard.py show

`run` tunes every method on validation examples (the same number of trials and rounds for each),
trains the best trial with three seeds (ten on the small tables), measures it on test examples, and
adds the rows to results/leaderboard/DATA.json. A method that is there already is not repeated, so
the command can be stopped and started again, and several can run side by side on different data.
`choose` tunes combinations of a training method and a post-processing rule, on validation examples
only, and adds them to results/leaderboard/validation; `run` then also measures the best of them.
`show` writes docs/leaderboard.md and its picture from these files.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from isonomy import algorithms, api
from isonomy.config.schema import Config
from isonomy.errors import ConfigError, DataError, TrainingError
from isonomy.runs.build import federation_of, versions
from isonomy.runs.checkout import commit
from isonomy.runs.training import run
from isonomy.studies import board, compare, leaderboard, results
from isonomy.studies.tune import tune
from isonomy.studies.tuned import Tuned

ROOT = Path(__file__).resolve().parent.parent
TRIALS = 5
SEEDS = range(3)
MORE_SEEDS = {"german": range(10), "compas": range(10)}  # small tables, on which runs differ more
TUNED_WITH = 100  # the seed of the trials, which no measured run has
SPLIT = 0  # the seed of split and clients, the same in all runs: no trial sees a test example
# The combinations: training methods with high ranks or personal models, and rules for two classes.
TRAINED_BY = ("finetune", "ewc", "fmtl", "apfl", "fedma", "fairfed", "equifl", "fedavg")
RULES = ("thresholds", "logofair")
UNEVEN = {"name": "dirichlet", "by": "group", "beta": 0.5}
TABLE: dict[str, Any] = {
    "rounds": 15,
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 1, "batch": 128, "lr": 0.1},
    "excess": {"clusters": "own", "steps": 300},
}
IMAGES: dict[str, Any] = {
    "rounds": 30,
    "model": {"name": "mlp", "hidden": [64]},
    "local": {"epochs": 1, "batch": 50, "lr": 0.1},
    "excess": {"clusters": "auto", "steps": 500},
}


def tabular(name: str) -> dict[str, Any]:
    """Ten clients with different shares of the groups."""
    return {**TABLE, "data": {"name": name, "clients": 10, "partition": UNEVEN, "seed": SPLIT}}


def images(name: str, partition: dict[str, Any]) -> dict[str, Any]:
    """A tenth of the images."""
    data = {"name": name, "examples": 7000, "validation": 0.1, "partition": partition}
    return {**IMAGES, "data": {**data, "seed": SPLIT}}


def federations(acs: Path | None) -> dict[str, dict[str, Any]]:
    """The config of each federation; that of the census needs its file."""
    turned = {"name": "rotations", "degrees": [0.0, 90.0, 180.0], "counts": [7, 2, 1]}
    found = {name: tabular(name) for name in ("german", "compas", "adult", "bank", "credit_card")}
    if acs is not None:
        found["acs"] = {
            **TABLE,
            "data": {
                "name": "acs", "task": "income", "protected": ["SEX"], "path": str(acs),
                "density": 0.02, "rare": 200, "seed": SPLIT,
            },
        }  # fmt: skip
    mixed = {"name": "dirichlet", "beta": 0.3}
    found["fashion_mnist"] = images("fashion_mnist", {**mixed})
    found["fashion_mnist"]["data"]["clients"] = 20
    found["rotated_mnist"] = images("mnist", turned)
    found["cifar10"] = images("cifar10", {**mixed})
    found["cifar10"]["data"]["clients"] = 20
    return found


def combined(algorithm: str, rule: str) -> tuple[str, dict[str, Any]]:
    """The label and the config of a rule after a training method."""
    after = {"algorithm": {"name": algorithm}, "postprocess": {"name": rule}}
    return f"{algorithm} + {rule}", after


def entries(*, groups: bool, chosen: str | None) -> dict[str, dict[str, Any]]:
    """Every method by its label: the algorithms, post-processing after FedAvg, and the choice."""
    found: dict[str, dict[str, Any]] = {
        name: {"algorithm": {"name": name}} for name in algorithms.registry()
    }
    for name in ("logofair", "fedfact", "fair_lp", "thresholds") if groups else ():
        label, after = combined("fedavg", name)
        found[label] = after
    if groups and chosen is not None:
        label, after = combined(*chosen.split(" + "))
        found[label] = after
    return found


def config_of(values: Mapping[str, Any], label: str) -> Config:
    """The config of a method's trials."""
    rest = {"label": label, "evaluate": {"every": values["rounds"], "bootstrap": 0}}
    return api.make_config(**{**values, **rest, "seed": TUNED_WITH})


def tune_method(base: Config, attribute: str | None) -> Tuned:
    """The trials of a method, on validation examples."""
    wanted = ["accuracy", "client.accuracy.worst10"]
    if attribute is not None:
        wanted.append(f"group.{attribute}.demographic_parity")
    apart = {"excess": api.make_config(excess={"clusters": "none"}).excess}
    return tune(base.model_copy(update=apart), trials=TRIALS, objectives=wanted)


def run_method(
    values: Mapping[str, Any], label: str, attribute: str | None, seeds: Sequence[int]
) -> list[results.Row]:
    """Tune a method, train it with every seed, and measure it on test examples."""
    began = time.perf_counter()
    base = config_of(values, label)
    try:
        found = tune_method(base, attribute)
        best = found.best(label)
        (tuned,) = compare.methods(found.tuned_config())
        final = tuned.config.model_copy(update={"excess": base.excess})
    except (ConfigError, DataError, TrainingError) as error:
        return [_row(label, 0, base, {}, str(error), time.perf_counter() - began)]
    searched = (time.perf_counter() - began) / len(seeds)
    rows = []
    for seed in seeds:
        start = time.perf_counter()
        try:
            record = run(final.model_copy(update={"seed": seed}))
            metrics, why, last = dict(record.metrics), "", record.rounds[-1]
        except TrainingError as error:
            metrics, why, last = {}, str(error), {}
        row = _row(label, seed, final, metrics, why, time.perf_counter() - start + searched)
        row |= {"tuned": dict(best.parameters), "default": best.default}
        rows.append(row | {"one_class": last.get("only_class") is not None})
        if label == "fedavg" and "constant" in last:
            known = {k: v for k, v in last["constant"]["metrics"].items() if v is not None}
            constant = _row("constant", seed, final, known, "", 0.0)
            rows.append(constant | {"one_class": True})
    return rows


def _row(
    label: str, seed: int, config: Config, metrics: dict[str, float], why: str, seconds: float
) -> results.Row:
    kept = {
        name: float(f"{value:.6g}")
        for name, value in metrics.items()
        if name in board.PLAIN or name.rpartition(".")[2] in board.OF_GROUPS
    }
    return {
        "scale": "full",
        "method": label,
        "setting": "",
        "seed": seed,
        "metrics": kept,
        "verdict": None,
        "why": why,
        "complete": bool(kept),
        "seconds": round(seconds, 1),
        "versions": {key: text for key, text in versions().items() if key in ("isonomy", "torch")},
        "commit": commit(),
        "rounds": config.rounds,
        "trials": TRIALS,
    }


def attribute_of(values: Mapping[str, Any]) -> str | None:
    """The first protected attribute of a federation."""
    data = federation_of(api.make_config(**values))
    return data.attributes[0].name if data.attributes else None


def run_all(asked: Mapping[str, dict[str, Any]], names: Sequence[str], folder: Path) -> None:
    """Run what is missing; the groups of a federation are those of its first attribute."""
    chosen = board.choice(results.read(choices(folder)))
    for name, values in asked.items():
        attribute = attribute_of(values)
        path = folder / f"{name}.json"
        for label, changes in entries(groups=attribute is not None, chosen=chosen).items():
            done = {row["method"] for row in results.read(path)}
            if label in done or (names and label not in names):
                continue
            seeds = MORE_SEEDS.get(name, SEEDS)
            rows = run_method({**values, **changes}, label, attribute, seeds)
            results.keep(path, name, rows)
            accuracy = [r["metrics"]["accuracy"] for r in rows if r["complete"]]
            shown = f"{fmean(accuracy):.4f}" if accuracy else rows[0]["why"]
            spent = sum(row["seconds"] for row in rows)
            print(f"{name:14s} {label:22s} {shown}  {spent:.0f} s", flush=True)


def choices(folder: Path) -> Path:
    """The file of the combinations' validation values."""
    return folder / board.CHOICES


def choose_all(asked: Mapping[str, dict[str, Any]], folder: Path) -> None:
    """Tune the combinations that are missing; only validation examples are read."""
    path = choices(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, values in asked.items():
        attribute = attribute_of(values)
        if attribute is None:
            continue
        for label, changes in (combined(*pair) for pair in product(TRAINED_BY, RULES)):
            done = {(row["method"], row["setting"]) for row in results.read(path)}
            if (label, name) in done:
                continue
            began = time.perf_counter()
            base = config_of({**values, **changes}, label)
            try:
                best, why = tune_method(base, attribute).best(label).values, ""
            except (ConfigError, DataError, TrainingError) as error:
                best, why = {}, str(error)
            row = _row(label, TUNED_WITH, base, dict(best), why, time.perf_counter() - began)
            results.keep(path, "combinations", [row | {"setting": name}])
            print(f"{name:14s} {label:22s} {best or why}", flush=True)


def main() -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("do", choices=("run", "choose", "show"))
    parser.add_argument("--acs", type=Path, help="the census as one Parquet file with STATE")
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "leaderboard")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "leaderboard.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.do != "show":
        known = federations(given.acs)
        given.results.mkdir(parents=True, exist_ok=True)
        asked = {n: known[n] for n in given.data or known}
        if given.do == "run":
            run_all(asked, given.methods, given.results)
        else:
            choose_all(asked, given.results)
        return
    found = board.read(given.results)
    given.to.write_text(leaderboard.page(found), encoding="utf-8")
    picture = given.to.parent / "pictures" / "leaderboard.svg"
    picture.write_text(leaderboard.picture(found), encoding="utf-8")


if __name__ == "__main__":
    main()
