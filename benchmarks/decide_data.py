"""Decisions on public data, beside what users of other tools get on the same rows.

    python benchmarks/decide_data.py --folder runs/decisions [--acs states.parquet]

For each data set and each of three sets of requirements: the answer of `isonomy.decide`; plain
federated averaging without requirements (what a first Flower project trains); and two methods of
fairlearn on the pooled training rows, ExponentiatedGradient and ThresholdOptimizer, on a logistic
regression. All are verified on the same test rows with the same intervals. Trials are shared
between the sets of requirements, and a repeated command uses them again. With --acs, ACSIncome is
one more data set: ten states as tables of their own, as `isonomy init` reads them.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pyarrow import csv

import isonomy
from isonomy.cli.init import init
from isonomy.metrics import Counts
from isonomy.metrics.requirements import Cells, answers, read_requirement, read_target
from isonomy.runs.build import build
from isonomy.runs.finished import reopen

DATA: dict[str, dict[str, Any]] = {
    "adult": {"data": {"name": "adult", "clients": 10}, "attribute": "sex"},
    "compas": {"data": {"name": "compas", "clients": 10}, "attribute": "race"},
    "bank": {"data": {"name": "bank", "clients": 10}, "attribute": "age"},
    "german": {"data": {"name": "german", "clients": 5}, "attribute": "sex"},
    "credit_card": {"data": {"name": "credit_card", "clients": 10}, "attribute": "SEX"},
}
STATES = ("AK", "AL", "CO", "GA", "HI", "MT", "NJ", "NM", "PA", "SD")
ROWS = 3_000  # of each state
METHODS = ["fedavg", "local", "focus", "fedeba", "pffl", "fmtl", "hetpfl", "fedfb"]


def requirement_sets(attribute: str, constant: float) -> list[list[str]]:
    """Three typical requests; accuracies relative to that of a constant prediction."""
    return [
        [f"demographic_parity({attribute}) <= 0.05"],
        [
            f"equal_opportunity({attribute}) <= 0.1",
            f"worst_client_accuracy >= {constant - 0.1:.2f}",
        ],
        [f"demographic_parity({attribute}) <= 0.1", f"accuracy >= {constant + 0.02:.2f}"],
    ]


def acs_tables(source: Path, folder: Path) -> dict[str, Any]:
    """One CSV per state, and the table `data` that `isonomy init` writes for them."""
    table, stream = pq.read_table(source), np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for state in STATES:
        there = np.flatnonzero(pc.equal(table.column("STATE"), state).to_numpy())
        rows = table.take(np.sort(stream.permutation(there)[:ROWS])).drop_columns(["STATE"])
        csv.write_csv(rows, folder / f"{state}.csv")
    file = folder.parent / "acs_income.toml"
    if not file.exists():
        init(folder, to=file)
    found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["data"]
    return found | {"path": str(folder)}


def config_of(given: dict[str, Any]) -> isonomy.Config:
    """The config of a user without further knowledge."""
    return isonomy.make_config(
        data=given["data"],
        model={"name": "mlp", "hidden": [64]},
        rounds=10,
        local={"epochs": 1, "batch": 128, "lr": 0.1},
    )


def pooled_counts(federation, predicted: np.ndarray) -> Counts:
    """Counts of predictions on the test rows, client by client, from predictions in that order."""
    y = federation.y.numpy()
    rows = 1 + sum(len(a.levels) for a in federation.attributes)
    out = np.zeros((len(federation), rows, 2, 2), np.int64)
    start = 0
    for k in range(len(federation)):
        at = federation.rows(k, "test")
        own, label = predicted[start : start + at.stop - at.start], y[at]
        start += at.stop - at.start
        np.add.at(out, (k, 0, label, own), 1)
        first = 1
        for column, attribute in enumerate(federation.attributes):
            group = federation.groups[at, column].numpy()
            known = group >= 0
            np.add.at(out, (k, first + group[known], label[known], own[known]), 1)
            first += len(attribute.levels)
    return Counts(out, np.zeros(out.shape[:3]), federation.attributes)


def pooled(federation, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All clients' features, labels and groups of the first attribute."""
    rows = [federation.rows(k, split) for k in range(len(federation))]
    at = np.concatenate([np.arange(one.start, one.stop) for one in rows])
    x = federation.x[at].numpy().astype(np.float64)
    return x, federation.y[at].numpy(), federation.groups[at, 0].numpy()


def fairlearn_predictions(federation, required: list[str]) -> dict[str, np.ndarray]:
    """What two methods of fairlearn predict for the test rows, trained on all training rows."""
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import (
        DemographicParity,
        ExponentiatedGradient,
        TruePositiveRateParity,
    )
    from sklearn.linear_model import LogisticRegression

    x, y, z = pooled(federation, "train")
    test_x, _, test_z = pooled(federation, "test")
    parity = required[0].startswith("demographic_parity")
    bound = float(required[0].split()[-1])
    kind = DemographicParity if parity else TruePositiveRateParity
    reduced = ExponentiatedGradient(
        LogisticRegression(max_iter=300), kind(difference_bound=bound), max_iter=20
    )
    reduced.fit(x, y, sensitive_features=z)
    name = "demographic_parity" if parity else "true_positive_rate_parity"
    moved = ThresholdOptimizer(
        estimator=LogisticRegression(max_iter=300),
        constraints=name,
        prefit=False,
        predict_method="predict_proba",
    )
    moved.fit(x, y, sensitive_features=z)
    return {
        "fairlearn ExponentiatedGradient, pooled rows": reduced.predict(test_x, random_state=0),
        "fairlearn ThresholdOptimizer, pooled rows": moved.predict(
            test_x, sensitive_features=test_z, random_state=0
        ),
    }


def row(name: str, who: str, counts: Counts | None, required: list[str], attributes) -> str:
    """A line of the table."""
    if counts is None:
        return f"| {name} | {'; '.join(required)} | {who} | no | | |"
    found = answers([read_requirement(text, attributes) for text in required], counts)
    value = read_target("accuracy", attributes).value(Cells.of(counts))
    shown = "; ".join(f"{one.value:.3f} {one.status}" for one in found)
    every = "yes" if all(one.status == "met" for one in found) else "no"
    return f"| {name} | {'; '.join(required)} | {who} | {every} | {value:.3f} | {shown} |"


def study(name: str, given: dict[str, Any], folder: Path, jobs: int) -> list[str]:
    """The lines of one data set."""
    config = config_of(given)
    federation = build(config).federation
    attributes = [a.name for a in federation.attributes]
    labels = pooled(federation, "train")[1]
    constant = max(labels.mean(), 1 - labels.mean())
    out = []
    for required in requirement_sets(given["attribute"], float(constant)):
        found = isonomy.decide(
            config, folder / name, require=required, methods=METHODS, trials=1, jobs=jobs
        )
        counts = None
        who = "decide: none found"
        if found.answers:
            who = f"decide: {found.facts['chosen']['name']}"
            counts = _counts(found)
        out.append(row(name, who, counts, required, attributes))
        plain = next(
            one.candidate
            for one in found.selection.judged
            if one.candidate.method == "FedAvg" and one.candidate.rule is None
        )
        out.append(row(name, "FedAvg", reopen(plain.folder).counts("test"), required, attributes))
        for who, predicted in fairlearn_predictions(federation, required).items():
            there = pooled_counts(federation, np.asarray(predicted).astype(np.int64))
            out.append(row(name, who, there, required, attributes))
        print("\n".join(out[-4:]), flush=True)
    return out


def _counts(found) -> Counts:
    """The chosen model's counts on the test examples."""
    from isonomy.studies.candidates import final_run, test_counts

    candidate = found.selection.chosen.candidate
    return test_counts(reopen(final_run(candidate, found.folder / "with-rule")), candidate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/decisions"))
    parser.add_argument("--acs", type=Path, help="a table of ACSIncome with the column STATE")
    parser.add_argument("--only", help="one data set")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = dict(DATA)
    if given.acs:
        table = acs_tables(given.acs, given.folder / "acs_tables")
        data["acs_income"] = {"data": table, "attribute": "SEX"}
    print("| data | requirements | model | all met | accuracy | measured on test |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, one in data.items():
        if given.only in (None, name):
            study(name, one, given.folder, given.jobs)


if __name__ == "__main__":
    main()
