"""What a model says about itself: its options, what it accepts, how it is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from isonomy.core.task import Loss
from isonomy.errors import ConfigError, unknown

Shape = tuple[int, ...]
"""The shape of one row of data: (features,) or (channels, height, width)."""

Kind = str | tuple[str, ...]
"""What an option holds: one of the KINDS, or the words to choose from."""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _wholes(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(_whole(item) for item in value)


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "whole": (_whole, "a whole number above 0"),
    "odd": (lambda value: _whole(value) and value % 2 == 1, "an odd whole number"),
    "widths": (_wholes, "a list of whole numbers above 0"),
    "pair": (lambda value: _wholes(value) and len(value) == 2, "two whole numbers above 0"),
}


@dataclass(frozen=True)
class Option:
    """One option of a model: its default, what it means, what it may hold."""

    default: Any
    meaning: str
    kind: Kind

    @property
    def holds(self) -> str:
        """What the option may hold, in words."""
        if isinstance(self.kind, tuple):
            return "one of " + ", ".join(self.kind)
        return KINDS[self.kind][1]

    def allows(self, value: Any) -> bool:
        """Whether the option may hold this value."""
        if isinstance(self.kind, tuple):
            return value in self.kind
        return KINDS[self.kind][0](value)


@dataclass(frozen=True)
class Entry:
    """One model of the registry.

    `build(shape, outputs, **options)` makes a fresh network with torch's own initialisation.
    `losses` are the losses it trains with; the first one that fits the data is the default.
    """

    build: Callable[..., nn.Module]
    description: str
    options: Mapping[str, Option]
    losses: tuple[Loss, ...]
    images: bool = False

    @property
    def accepts(self) -> str:
        """The rows and labels that the model takes, in words."""
        rows = "images [channels, height, width]" if self.images else "rows of any shape, flattened"
        labels = {
            "cross_entropy": "two or more classes",
            "logistic": "two classes",
            "hinge": "two classes",
            "squared": "a number to predict",
        }
        words = list(dict.fromkeys(labels[loss] for loss in self.losses))
        if "two or more classes" in words and "two classes" in words:
            words.remove("two classes")
        return f"{rows}; {' or '.join(words)}"

    def complete(self, model: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options with the defaults of the others, or one sentence on what is wrong."""
        for name, value in given.items():
            if name not in self.options:
                raise ConfigError(unknown(f"option of model '{model}'", name, self.options))
            if not self.options[name].allows(value):
                raise ConfigError(
                    f"model '{model}': {name} = {value!r} is not {self.options[name].holds}; "
                    f"the default is {self.options[name].default!r}."
                )
        return {name: given.get(name, option.default) for name, option in self.options.items()}


def options(build: Callable[..., nn.Module], **meanings: tuple[Kind, str]) -> dict[str, Option]:
    """The options of a build function: defaults from its signature, the rest from `meanings`."""
    signature = inspect.signature(build).parameters
    return {
        name: Option(signature[name].default, meaning, kind)
        for name, (kind, meaning) in meanings.items()
    }
