"""Notions of group fairness: demographic parity, equal opportunity, equalised odds.

Each notion is defined here once. Metrics, training objectives, blocks and algorithms look it up by
its code (in options, such as `notion = "dp"`) or by its full name (in metric names, such as
`group.sex.demographic_parity`).

A notion compares one or more rates between groups. A rate is the share of examples predicted
positive among all examples of a group (`given` None) or among those with a given label. Equalised
odds compares two rates: among the examples with label 1 and among those with label 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isonomy.errors import ConfigError, unknown

NotionCode = Literal["dp", "eo"]
"""The notions that an option can select: those that compare a single rate."""


@dataclass(frozen=True)
class Notion:
    """A definition of fairness between the groups of one protected attribute.

    `given` lists the rates that are compared, each by the label of the examples it is taken over;
    None stands for examples of any label.
    """

    code: str
    name: str
    title: str
    meaning: str
    given: tuple[int | None, ...]

    @property
    def overall_name(self) -> str:
        """The metric name of the largest distance between a group's rate and everyone's."""
        return f"{self.name}_overall"

    @property
    def label(self) -> int | None:
        """The label of the examples that the notion compares; None if it compares all examples.

        Raises ValueError for a notion that compares several rates.
        """
        if len(self.given) != 1:
            raise ValueError(
                f"{self.title} compares {len(self.given)} rates; use one of "
                f"{', '.join(SINGLE_RATE)}, which compare one."
            )
        return self.given[0]

    def restrict(self, weight: Tensor, y: Tensor) -> Tensor:
        """The examples' weights, set to 0 for the examples that the notion does not compare."""
        label = self.label
        return weight if label is None else weight * (y == label).to(weight.dtype)

    def compared(self, cells: Tensor, dim: int = 0) -> Tensor:
        """The part of sums by label that the notion compares; `dim` is the axis of labels 0 and 1.

        The axis stays, with length 2 (all examples) or 1 (examples with one label), so a sum over
        it gives the sums by group.
        """
        label = self.label
        return cells if label is None else cells.narrow(dim, label, 1)


NOTIONS: dict[str, Notion] = {
    notion.code: notion
    for notion in (
        Notion(
            "dp",
            "demographic_parity",
            "demographic parity",
            "Groups are predicted positive at the same rate, among all their examples.",
            (None,),
        ),
        Notion(
            "eo",
            "equal_opportunity",
            "equal opportunity",
            "Groups have the same true positive rate: the share predicted positive among their "
            "examples with label 1.",
            (1,),
        ),
        Notion(
            "equalised_odds",
            "equalised_odds",
            "equalised odds",
            "Groups have the same true positive rate and the same false positive rate: the shares "
            "predicted positive among their examples with label 1 and with label 0.",
            (1, 0),
        ),
    )
}
"""Every notion by its code."""

SINGLE_RATE: tuple[str, ...] = tuple(c for c, notion in NOTIONS.items() if len(notion.given) == 1)
"""Codes of the notions that compare a single rate; objectives and fronts can use these."""


def find_notion(word: str) -> Notion:
    """The notion with this code or full name.

    Raises ConfigError if there is none.

    >>> find_notion("dp").name, find_notion("equal_opportunity").code
    ('demographic_parity', 'eo')
    """
    if word in NOTIONS:
        return NOTIONS[word]
    for notion in NOTIONS.values():
        if word == notion.name:
            return notion
    known = dict.fromkeys(
        name for notion in NOTIONS.values() for name in (notion.code, notion.name)
    )
    raise ConfigError(unknown("notion of group fairness", word, known))


def gap_to_everyone(rate: Tensor, everyone: Tensor, defined: Tensor) -> Tensor:
    """The largest distance between a group's rate and everyone's.

    The maximum is over all entries where `defined` is true; 0 if there are none.
    """
    return torch.where(defined, (rate - everyone).abs(), 0.0).amax()


@dataclass(frozen=True)
class Objective:
    """What a preference weighs or a front measures: the error, or a gap between groups."""

    notion: Notion | None  # None: the error
    attribute: str = ""  # the protected attribute; empty for the error, or if not given

    @property
    def name(self) -> str:
        """The name in options: `error`, `dp`, `eo.sex`."""
        if self.notion is None:
            return "error"
        return f"{self.notion.code}.{self.attribute}" if self.attribute else self.notion.code

    @property
    def metric(self) -> str:
        """The name of the metric that measures it: `error`, `group.sex.equal_opportunity_overall`.

        Raises ValueError if the attribute is not known yet.
        """
        if self.notion is None:
            return "error"
        if not self.attribute:
            raise ValueError(f"objective '{self.name}' has no attribute; call find_objectives.")
        return f"group.{self.attribute}.{self.notion.overall_name}"


def read_objective(name: str) -> Objective:
    """Parse the name of an objective: `error`, or a notion with or without an attribute.

    Raises ConfigError for an unknown name.

    >>> read_objective("eo.sex").attribute, read_objective("error").notion
    ('sex', None)
    """
    code, _, attribute = name.partition(".")
    if name == "error":
        return Objective(None)
    if code not in SINGLE_RATE:
        raise ConfigError(unknown("objective", name, ["error", *SINGLE_RATE]))
    return Objective(NOTIONS[code], attribute)


def find_objectives(names: Sequence[str], attributes: Sequence[str]) -> tuple[Objective, ...]:
    """Parse the names of objectives; one without an attribute gets the first of `attributes`.

    Raises ConfigError for an unknown name or attribute, and if there are no groups to compare.

    >>> [each.name for each in find_objectives(["error", "dp"], ["sex", "race"])]
    ['error', 'dp.sex']
    """
    found = []
    for name in names:
        objective = read_objective(name)
        attribute = objective.attribute
        if objective.notion is not None:
            if not attributes:
                raise ConfigError(
                    f"objective '{name}' compares groups, but the data has no protected "
                    "attribute; name one in data.protected, or choose another algorithm."
                )
            if attribute and attribute not in attributes:
                raise ConfigError(
                    f"objective '{name}': {unknown('attribute', attribute, attributes)}"
                )
            objective = Objective(objective.notion, attribute or attributes[0])
        found.append(objective)
    return tuple(found)
