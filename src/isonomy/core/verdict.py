"""A verdict: what a method can say of its own model when it is done, for a person to act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from isonomy.core.examples import Attribute
from isonomy.core.task import Task

Status = Literal["satisfied", "null", "no claim"]


class About(NamedTuple):
    """What a verdict may name: the task, the protected attributes with their groups, the labels."""

    task: Task
    attributes: tuple[Attribute, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`satisfied`: what was asked for holds, as the text says. `null`: it is not certified, and
    the model is withheld unless it is asked for. `no claim`: figures without a guarantee.

    `facts` are the figures behind the text: plain values, as JSON can hold them.
    """

    status: Status
    text: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def withholds(self) -> bool:
        """Whether the model is kept back."""
        return self.status == "null"

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return {"status": self.status, "text": self.text, "facts": self.facts}
