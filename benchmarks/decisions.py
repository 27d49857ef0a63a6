"""How often a decision is right, on data from a known generator, and what it costs in accuracy.

    python benchmarks/decisions.py --draws 100
    python benchmarks/decisions.py --draws 60 --epsilon 4 --methods fedavg,local --trials 1

Every draw makes the tables of five clients from a known population, draws requirements around what
is attainable, and asks `isonomy.decide`. The chosen model and every other candidate are then
measured on 100,000 examples of the population. Reported are

- how often a model was called "met" that does not meet the requirements in the population,
- how often there was a yes, of the draws in which some candidate meets them,
- the accuracy lost against an oracle that chooses among the same candidates by the population.

With `--epsilon`, every decision is differentially private within it (level `example`); of the
candidates with rules for their decisions, only a chosen one is measured on the population.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import isonomy
from isonomy.config.schema import parse
from isonomy.errors import ConfigError
from isonomy.metrics.requirements import Cells, read_requirement, read_target
from isonomy.runs.build import build
from isonomy.runs.finished import opened
from isonomy.runs.folder import RunFolder
from isonomy.studies.candidates import fitted_rule

CLIENTS, FEATURES, POPULATION = 5, 6, 20_000
SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}
BOUNDS = {  # drawn for each decision: some are easy, some hard, some impossible
    "demographic_parity(sex) <=": (0.03, 0.05, 0.08, 0.12, 0.2),
    "worst_client_accuracy >=": (0.6, 0.65, 0.7, 0.75),
    "equal_opportunity(sex) <=": (0.05, 0.1, 0.15),
}
REFUSED = {"yes": False, "wrong": False, "possible": False, "accuracy": None, "statuses": []}


def draw(rng: np.random.Generator, size: int, client: int) -> list[str]:
    """Examples of one client as rows of a table: features, sex and label."""
    sex = (rng.random(size) < 0.35 + 0.08 * client).astype(float)
    x = rng.normal(size=(size, FEATURES))
    x[:, 0] += 0.9 * sex  # a feature that tells the group
    x[:, 1] += 0.3 * (client - 2)
    score = x @ np.array([0.8, 0.9, -0.7, 0.4, 0.2 * (client - 2), 0.0]) + 0.4 * sex - 0.5
    y = rng.random(size) < 1 / (1 + np.exp(-1.3 * score))
    numbers = np.char.mod("%.5f", x)
    words = np.where(sex > 0, "male", "female")
    return [
        f"{','.join(row)},{word},{label:d}"
        for row, word, label in zip(numbers, words, y, strict=True)
    ]


def write_tables(rng: np.random.Generator, folder: Path, size: int) -> None:
    """Tables as a user has them, and the same with the population as test examples."""
    head = ",".join([*(f"x{j}" for j in range(FEATURES)), "sex", "y", "split"])
    for name in ("tables", "population"):
        (folder / name).mkdir()
    for k in range(CLIENTS):
        kept, test = [], []
        for split, share in SHARES.items():
            rows = [f"{row},{split}" for row in draw(rng, round(share * size), k)]
            (test if split == "test" else kept).extend(rows)
        everyone = [f"{row},test" for row in draw(rng, POPULATION, k)]
        for name, rows in (("tables", test), ("population", everyone)):
            text = "\n".join([head, *kept, *rows]) + "\n"
            (folder / name / f"client{k}.csv").write_text(text)


def config_of(folder: Path) -> isonomy.Config:
    """The config of a user who knows nothing of the generator."""
    return isonomy.make_config(
        data={"path": str(folder), "label": "y", "protected": ["sex"], "split": "split"},
        model={"name": "logistic"},
        rounds=8,
        local={"epochs": 1, "batch": 64, "lr": 0.3},
    )


def in_population(candidate, setting) -> Cells:
    """A candidate's counts on the population; a rule is the one fitted on validation examples."""
    values = RunFolder(candidate.folder).config().plain()
    values["data"]["path"] = setting["path"]
    there = opened(RunFolder(candidate.folder), build(parse(values)))
    there.engine.guard = None  # the population is not that of the private run
    if candidate.rule is None:
        rule = None
    elif there.setting.privacy is None:
        rule = fitted_rule(there, candidate.rule)
    else:
        rule = RunFolder(setting["with_rule"]).model().rule
    return Cells.of(there.counts("test", candidate.preference, rule))


def one(
    seed: int, size: int, methods: list[str], trials: int, epsilon: float | None
) -> dict[str, object]:
    """One decision, and what the population says about it."""
    rng = np.random.default_rng(seed)
    wanted = rng.choice(list(BOUNDS), size=2, replace=False)
    required = [f"{name} {rng.choice(BOUNDS[name])}" for name in sorted(wanted)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_tables(rng, folder, size)
        try:
            found = isonomy.decide(
                config_of(folder / "tables"),
                folder / "decision",
                require=required if epsilon is None else [*required, f"epsilon <= {epsilon}"],
                methods=methods,
                trials=trials,
            )
        except ConfigError as error:  # the noise is too large for any model
            if epsilon is None or "not even a perfect model" not in str(error):
                raise
            return {"seed": seed, "required": required, "refused": str(error)} | REFUSED
        wishes = [read_requirement(text, ["sex"]) for text in required]
        accuracy = read_target("accuracy", ["sex"])
        setting = {"path": str(folder / "population")}
        setting["with_rule"] = str(folder / "decision" / "with-rule")
        chosen, best, yes = found.selection.chosen, None, False
        for judged in found.selection.judged:
            if epsilon is not None and judged.candidate.rule and judged is not chosen:
                continue
            cells = in_population(judged.candidate, setting)
            right = all(wish.holds(wish.target.value(cells)) for wish in wishes)
            value = accuracy.value(cells)
            if judged is chosen:
                truly, mine = right, value
            if right and (best is None or value > best):
                best = value
        yes = found.outcome == "met"
        return {
            "seed": seed,
            "required": required,
            "yes": yes,
            "wrong": yes and not truly,
            "possible": best is not None,
            "chosen": None if chosen is None else chosen.candidate.name,
            "accuracy": mine if yes else None,
            "oracle": best,
            "statuses": [answer.status for answer in found.answers],
            "epsilon": (found.facts["privacy"] or {}).get("epsilon"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--size", type=int, default=3000, help="rows of each client")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--methods", default="fedavg,fedfb,equifl,local")
    parser.add_argument("--epsilon", type=float, help="bound of a private decision")
    parser.add_argument("--json", type=Path, help="also write one line per draw to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, started = [], time.monotonic()
    for seed in range(given.first, given.first + given.draws):
        rows.append(one(seed, given.size, given.methods.split(","), given.trials, given.epsilon))
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    report(rows, time.monotonic() - started)


def report(rows: list[dict], seconds: float) -> None:
    """Print what the draws say."""
    yes = [row for row in rows if row["yes"]]
    possible = [row for row in rows if row["possible"]]
    lost = [row["oracle"] - row["accuracy"] for row in yes if row["oracle"] is not None]
    wrong = sum(row["wrong"] for row in rows)
    print(f"{len(rows)} draws in {seconds:.0f} s")
    if refused := sum("refused" in row for row in rows):
        print(f"refused before training, because the noise is too large: {refused}")
    print(f"yes: {len(yes)}, of which wrong: {wrong} ({wrong / len(rows):.1%} of all draws)")
    print(f"some candidate meets the requirements in the population: {len(possible)}")
    print(f"of these answered yes: {sum(row['yes'] for row in possible)}")
    if lost:
        print(f"accuracy lost against the oracle: mean {np.mean(lost):.4f}, most {max(lost):.4f}")


if __name__ == "__main__":
    main()
