"""The roles of columns: label, protected, feature, split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from isonomy.data.tables.columns import MISSING
from isonomy.errors import ConfigError, did_you_mean

MANY = 100  # largest number of groups of a column of numbers


@dataclass(frozen=True)
class Roles:
    """What the user states about the columns; the rest is found from the data.

    `protected` names columns, or intersections such as "sex*race". `bins` divides a protected
    column of numbers into groups: edges, or a number of equally large groups. `positive` is the
    label that becomes class 1. `features` are all other columns unless named; protected columns
    are not used as features unless `keep_protected` is set.
    """

    label: str
    protected: tuple[str, ...] = ()
    bins: Mapping[str, Sequence[float] | int] = field(default_factory=dict)
    positive: str = ""
    task: Literal["auto", "classification", "regression"] = "auto"
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep_protected: bool = False
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    split: str = ""
    missing: tuple[str, ...] = MISSING
    impute: Literal["mean", "median", "zero"] = "mean"
    indicate: bool = False
    scale: Literal["standard", "minmax", "none"] = "standard"
    rare: int = 10

    def __post_init__(self) -> None:
        if not self.label:
            raise ConfigError("no label is set; set data.label to the column to predict.")
        for name, kinds in (
            ("task", ("auto", "classification", "regression")),
            ("impute", ("mean", "median", "zero")),
            ("scale", ("standard", "minmax", "none")),
        ):
            if getattr(self, name) not in kinds:
                raise ConfigError(
                    f"{name} is '{getattr(self, name)}'; set it to one of {', '.join(kinds)}."
                )
        if self.rare < 1:
            raise ConfigError(f"rare is {self.rare}; set it to 1 or more.")
        if len(set(self.protected)) < len(self.protected):
            raise ConfigError(f"protected is {list(self.protected)}; name every attribute once.")
        for attribute in self.protected:
            names = parts(attribute)
            if not all(names) or len(set(names)) < len(names):
                raise ConfigError(
                    f"protected contains '{attribute}'; name a column, or different columns joined "
                    "by *, such as 'sex*race'."
                )
        for name, edges in self.bins.items():
            self._check_bins(name, edges)
        for name in self.numeric:
            if name in self.categorical:
                raise ConfigError(f"column '{name}' is both numeric and categorical; choose one.")
        if self.label in (*self.protected_columns, *self.features, *self.drop, self.split):
            raise ConfigError(
                f"column '{self.label}' is the label and cannot also be protected, a feature, "
                "dropped or the split; remove it there."
            )
        for name in self.protected_columns:
            if name in self.drop:
                raise ConfigError(
                    f"column '{name}' is protected and dropped; protected columns are not used as "
                    "features anyway, so remove it from drop."
                )
        for name in self.features:
            if name in self.drop:
                raise ConfigError(f"column '{name}' is a feature and dropped; choose one.")
            if name in self.protected_columns and not self.keep_protected:
                raise ConfigError(
                    f"column '{name}' is protected and listed in features; set keep_protected = "
                    "true, or remove it from features."
                )
        if self.split and self.split in (*self.features, *self.protected_columns):
            raise ConfigError(
                f"column '{self.split}' is the split and cannot also be a feature or protected; "
                "remove it there."
            )

    def _check_bins(self, name: str, edges: Sequence[float] | int) -> None:
        if name not in self.protected_columns:
            raise ConfigError(
                f"bins names '{name}', which is not protected; protected columns are "
                f"{', '.join(self.protected_columns) or 'none'}."
            )
        if isinstance(edges, int):
            if isinstance(edges, bool) or not 2 <= edges <= MANY:
                raise ConfigError(f"bins of '{name}' is {edges}; set it to 2 to {MANY} groups.")
            return
        numbers = isinstance(edges, list | tuple) and all(
            isinstance(e, int | float) and not isinstance(e, bool) and abs(e) < 1e300 for e in edges
        )
        if not numbers or not edges or list(edges) != sorted(set(edges)):
            raise ConfigError(
                f"bins of '{name}' is {edges!r}; give edges in ascending order, such as [25, 60], "
                "or a number of equally large groups."
            )

    @property
    def protected_columns(self) -> tuple[str, ...]:
        """The columns that protected attributes consist of, each once."""
        return tuple(dict.fromkeys(p for name in self.protected for p in parts(name)))

    def named(self) -> tuple[str, ...]:
        """Return every column that has a role."""
        every = (
            self.label,
            *self.protected_columns,
            *self.features,
            *self.drop,
            *self.numeric,
            *self.categorical,
            self.split,
        )
        return tuple(dict.fromkeys(name for name in every if name))

    def check(self, known: Iterable[str], clients: int) -> None:
        """Raise ConfigError if a named column is in none of the clients' tables."""
        known = list(known)
        for name in self.named():
            if name not in known:
                lacks = "the table has no" if clients == 1 else "no client has a"
                star = [a for a in self.protected if a in known and name in parts(a)]
                raise ConfigError(
                    f"{lacks} column '{name}'; the columns are {listed(known)}."
                    f"{did_you_mean(name, known)}"
                    if not star
                    else f"column '{star[0]}' cannot be protected under this name, because * joins "
                    "two columns; rename it."
                )


def parts(attribute: str) -> list[str]:
    """Return the columns of an attribute: "sex*race" has two."""
    return [part.strip() for part in attribute.split("*")]


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join names for a sentence; long lists are shortened."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
