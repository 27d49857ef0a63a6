"""The description of a model: how it is built, its options, and the data it accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from torch import nn

from isonomy.core.options import Option
from isonomy.core.task import Loss

Shape = tuple[int, ...]
"""The shape of one row of data: (features,) or (channels, height, width)."""

LABELS: dict[Loss, str] = {
    "cross_entropy": "two or more classes",
    "logistic": "two classes",
    "hinge": "two classes",
    "squared": "a number to predict",
}
"""The labels that each loss needs, in words."""


@dataclass(frozen=True)
class Entry:
    """One model of the registry.

    `build(shape, outputs, **options)` returns a new network with torch's own initialisation.
    `losses` are the losses it trains with; the first one that fits the data is the default.
    `images` is true for a model that needs rows of the shape (channels, height, width).
    """

    build: Callable[..., nn.Module]
    description: str
    options: Mapping[str, Option]
    losses: tuple[Loss, ...]
    images: bool = False

    @property
    def accepts(self) -> str:
        """The rows and labels that the model accepts, in words."""
        rows = "images [channels, height, width]" if self.images else "rows of any shape, flattened"
        words = list(dict.fromkeys(LABELS[loss] for loss in self.losses))
        if "two or more classes" in words and "two classes" in words:
            words.remove("two classes")
        return f"{rows}; {' or '.join(words)}"


def options(build: Callable[..., nn.Module], **about: dict[str, Any]) -> dict[str, Option]:
    """The options of a build function.

    The defaults and types are those of its signature; `about` has the meaning of each option, and
    its limits or choices.
    """
    defaults, types = inspect.signature(build).parameters, get_type_hints(build)
    return {
        name: Option(default=defaults[name].default, type=types[name], **other)
        for name, other in about.items()
    }
