"""A verdict: what a method states about its own model when training is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from isonomy.core.examples import Attribute
from isonomy.core.task import Task

Status = Literal["satisfied", "null", "no claim"]


class About(NamedTuple):
    """What a verdict may refer to: the task, the protected attributes and the labels."""

    task: Task
    attributes: tuple[Attribute, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The outcome, a text that explains it, and the figures behind the text.

    - `satisfied`: the requirement holds, in the sense that the text states;
    - `null`: it is not certified, and the model is withheld unless the user asks to keep it;
    - `no claim`: figures without a guarantee.

    `facts` holds values that can be written as JSON.
    """

    status: Status
    text: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def withholds(self) -> bool:
        """Whether the model is withheld."""
        return self.status == "null"

    def plain(self) -> dict[str, Any]:
        """The verdict as a dict of values that can be written as JSON."""
        return {"status": self.status, "text": self.text, "facts": self.facts}
