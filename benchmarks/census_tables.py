"""Tables that look like ACSIncome, generated: one CSV per state, with income, sex and race.

    python benchmarks/census_tables.py FOLDER       8 states, 157,842 rows in total

Eight columns of a person (age, class of worker, schooling, marital status, occupation, hours, sex,
race) are drawn so that schooling, occupation and hours depend on age, sex and race, and whether the
income is above 50,000 depends on all but sex and race directly. Gaps between groups and a
difference between states follow. The distribution is ours; only the form is that of ACSIncome.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

STATES = ("CA", "TX", "FL", "NY", "PA", "IL", "OH", "GA")
SHARES = (0.3, 0.2, 0.14, 0.12, 0.08, 0.07, 0.05, 0.04)
COLUMNS = ("age", "worker", "schooling", "marital", "occupation", "hours", "sex", "race", "income")


def people(count: int, state: int, seed: int = 0) -> list[list[str]]:
    """The rows of a state."""
    rng = np.random.default_rng([seed, state])
    sex = rng.integers(0, 2, count)  # 1: female
    race = rng.choice(4, count, p=np.roll([0.62, 0.13, 0.1, 0.15], state % 2))
    age = rng.gamma(6, 7, count).clip(17, 90).astype(int)
    schooling = (
        (rng.normal(17, 3.5, count) + 0.5 * sex - 1.5 * (race == 1) - 2.0 * (race == 3))
        .clip(1, 24)
        .astype(int)
    )
    occupation = (
        (rng.normal(6, 3, count) + 0.6 * (schooling - 17) - 1.4 * sex)
        .round()
        .clip(0, 14)
        .astype(int)
    )
    hours = (rng.normal(41, 10, count) - 5 * sex + 0.4 * (occupation - 6)).clip(1, 99).astype(int)
    marital = rng.choice(5, count, p=[0.5, 0.05, 0.12, 0.03, 0.3])
    worker = rng.choice(7, count, p=[0.65, 0.08, 0.08, 0.05, 0.03, 0.06, 0.05])
    logit = (
        -1.1
        + 0.25 * (schooling - 17)
        + 0.16 * (occupation - 6)
        + 0.06 * (hours - 38)
        + 0.045 * (np.minimum(age, 55) - 38)
        - 0.002 * (age - 50) ** 2 / 5
        + 0.5 * (marital == 0)
        + 0.3 * np.sin(worker + state)
        + 0.15 * (state - 3)
    )
    rich = rng.random(count) < 1 / (1 + np.exp(-1.3 * logit))
    named = (
        age.astype(str), np.char.add("w", worker.astype(str)), schooling.astype(str),
        np.char.add("m", marital.astype(str)), np.char.add("o", occupation.astype(str)),
        hours.astype(str), np.where(sex == 1, "female", "male"),
        np.char.add("r", race.astype(str)), np.where(rich, ">50K", "<=50K"),
    )  # fmt: skip
    return np.stack([column.astype(str) for column in named], 1).tolist()


def write(folder: Path, rows: int = 157842, seed: int = 0) -> Path:
    """One CSV per state, unless the folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = [round(rows * share) for share in SHARES]
    counts[0] += rows - sum(counts)
    for i, (state, count) in enumerate(zip(STATES, counts, strict=True)):
        path = folder / f"{state}.csv"
        if not path.exists():
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([list(COLUMNS), *people(count, i, seed)])
    return folder


def config(folder: Path) -> dict[str, object]:
    """The config's data section."""
    return {
        "path": str(folder),
        "label": "income",
        "positive": ">50K",
        "protected": ["sex", "race"],
        "categorical": ["worker", "marital", "occupation"],
    }


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
