"""The contract of a post-processing method: options, and how its rule is fitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from isonomy.core.examples import Attribute
from isonomy.core.options import option
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.scores import Scores
from isonomy.postprocess.rule import About, Rule

NotionName = Literal["dp", "eo", "equalised_odds"]


@dataclass(frozen=True)
class Method(ABC):
    """Abstract. A final subclass is a frozen dataclass whose fields are the method's options."""

    name: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[Literal["scores", "decisions", "answers"]]
    """What clients report: histograms of scores, counts of decisions, or, with more than two
    classes, answers to several questions."""
    several_classes: ClassVar[bool] = False
    reveals: ClassVar[str]  # what the server learns of a client, in plain words

    attribute: str = option("", "protected attribute whose groups are compared (empty: the first)")
    notion: NotionName = option(
        "dp",
        "what is equal between groups: dp (positive rate), eo (true positive rate), or "
        "equalised_odds (true and false positive rate)",
    )
    budget: float = option(
        0.05, "largest gap between groups over all clients' examples; 1: any", ge=0, le=1
    )
    split: Literal["validation", "train"] = option(
        "validation", "each client's examples that the rule is fitted on"
    )

    @property
    def local(self) -> float | None:
        """The budget inside each client, if the method has one."""
        return getattr(self, "local_budget", None)

    @abstractmethod
    def fit(self, scores: Scores, seed: int = 0) -> Rule:
        """The rule for two classes, from the clients' histograms of scores."""

    def about(self, attributes: tuple[Attribute, ...], classes: int, seed: int) -> About:
        """What the rule is fitted for; raises ConfigError if there is no such attribute."""
        names = [each.name for each in attributes]
        if not names:
            raise ConfigError(
                f"postprocess '{self.name}' compares groups, but the data has no protected "
                "attribute; name one in data.protected, or remove postprocess."
            )
        if self.attribute and self.attribute not in names:
            raise ConfigError(
                f"postprocess.attribute: {unknown('protected attribute', self.attribute, names)}"
            )
        column = names.index(self.attribute or names[0])
        levels = attributes[column].levels
        if len(levels) < 2:
            raise ConfigError(
                f"postprocess.attribute: '{names[column]}' has only the group '{levels[0]}', so "
                "there is nothing to compare; choose another attribute."
            )
        return About(
            method=self.name,
            attribute=names[column],
            column=column,
            levels=levels,
            classes=classes,
            notion=self.notion,
            budget=self.budget,
            local_budget=self.local,
            seed=seed,
        )
