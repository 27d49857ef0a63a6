"""What was measured on the leaderboard: every method on several federations.

A federation is a results file (`isonomy.studies.results`); `benchmarks/leaderboard.py` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from isonomy.metrics.names import find_metric
from isonomy.studies.ranking import Ranking, nondominated, rank
from isonomy.studies.results.rows import Row
from isonomy.studies.results.rows import read as read_rows

PLAIN = ("accuracy", "client.accuracy.worst10", "client.accuracy.std", "faa")
OF_GROUPS = ("demographic_parity", "equal_opportunity", "max_loss")
NOTIONS = (*PLAIN, *OF_GROUPS)
CHOICES = "validation/combinations.json"  # in the folder of the leaderboard


@dataclass(frozen=True)
class Board:
    """The rows of all federations, and what follows from them."""

    rows: Mapping[str, Sequence[Row]]  # by federation
    choices: Sequence[Row] = ()  # combinations on validation examples; a setting is a federation

    def attribute(self, data: str) -> str | None:
        """The protected attribute that is shown."""
        for row in self.rows[data]:
            for name in row["metrics"]:
                if name.endswith(".demographic_parity"):
                    return str(name.split(".")[1])
        return None

    def metric(self, data: str, notion: str) -> str | None:
        """The metric of a notion in a federation; None if it has no groups."""
        if notion in PLAIN:
            return notion
        who = self.attribute(data)
        return None if who is None else f"group.{who}.{notion}"

    def values(self, data: str, notion: str) -> dict[str, dict[int, float]]:
        """The values of a notion, by method and seed, of methods with a value in every seed."""
        name = self.metric(data, notion)
        found: dict[str, dict[int, float]] = {}
        for row in self.rows[data]:
            own = found.setdefault(row["method"], {})
            if row["complete"] and name in row["metrics"]:
                own[row["seed"]] = row["metrics"][name]
        most = max((len(own) for own in found.values()), default=0)
        return {method: own for method, own in found.items() if own and len(own) == most}

    def means(self, data: str, notion: str) -> dict[str, float]:
        """The mean over seeds, by method."""
        return {method: fmean(own.values()) for method, own in self.values(data, notion).items()}

    def one_class(self, data: str) -> set[str]:
        """The methods that predict one class for everyone with some seed."""
        return {row["method"] for row in self.rows[data] if row.get("one_class")}

    def order(self, data: str, notion: str) -> list[str]:
        """The methods that predict more than one class, the best mean first."""
        sign = -1 if higher(notion) else 1
        means = self.means(data, notion)
        return sorted(means.keys() - self.one_class(data), key=lambda m: (sign * means[m], m))

    def ranking(self, notion: str) -> Ranking | None:
        """The ranks of the methods that were measured in every federation with the notion."""
        found: dict[str, dict[str, float]] = {}
        for data in self.rows:
            for method, value in self.means(data, notion).items():
                found.setdefault(method, {})[data] = value
        return rank(found, higher=higher(notion))

    def fronts(self, notion: str) -> dict[str, list[str]]:
        """By method, the federations where no other is better in accuracy and in the notion."""
        found: dict[str, list[str]] = {}
        for data in self.rows:
            first, second = self.means(data, "accuracy"), self.means(data, notion)
            sign = -1 if higher(notion) else 1
            useful = [m for m in first if m in second and m not in self.one_class(data)]
            for method in nondominated({m: (-first[m], sign * second[m]) for m in useful}):
                found.setdefault(method, []).append(data)
        return found


def read(folder: Path) -> Board:
    """The results files of a folder, and the validation values that chose the combination."""
    choices = tuple(read_rows(folder / CHOICES))
    return Board({path.stem: read_rows(path) for path in sorted(folder.glob("*.json"))}, choices)


def validation_ranks(choices: Sequence[Row]) -> dict[str, Ranking]:
    """By notion, the ranks of the combinations on validation examples, over federations."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in choices:
        for name, value in row["metrics"].items():
            notion = name if name in PLAIN else name.rpartition(".")[2]
            found.setdefault(notion, {}).setdefault(row["method"], {})[row["setting"]] = value
    made = {notion: rank(values, higher=higher(notion)) for notion, values in found.items()}
    return {notion: one for notion, one in made.items() if one is not None}


def choice(choices: Sequence[Row]) -> str | None:
    """The combination with the least mean rank over notions and federations; None without rows."""
    ranks = validation_ranks(choices)
    full = set.intersection(*(set(one.ranks) for one in ranks.values())) if ranks else set()
    means = {name: fmean(one.ranks[name] for one in ranks.values()) for name in full}
    return min(means, key=lambda name: (means[name], name)) if means else None


def higher(notion: str) -> bool:
    """Whether more of it is better."""
    name = notion if notion in PLAIN else f"group.sex.{notion}"
    return find_metric(name).better == "higher"


def title(notion: str) -> str:
    """The notion's name in tables."""
    if notion in PLAIN:
        return find_metric(notion).title
    return {"max_loss": "worst group loss"}.get(notion, notion.replace("_", "-") + " gap")
