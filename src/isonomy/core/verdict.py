"""A verdict: what a method states about its own model when training is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from isonomy.core.examples import Attribute
from isonomy.core.task import Task

Status = Literal["met", "violated", "infeasible", "not converged", "not measured"]


class About(NamedTuple):
    """What a verdict may refer to: the task, the protected attributes, the labels, the clients."""

    task: Task
    attributes: tuple[Attribute, ...] = ()
    labels: tuple[str, ...] = ()
    clients: str = "all clients"  # whom the verdict covers, as its text names them


@dataclass(frozen=True)
class Verdict:
    """The outcome, a text that explains it, and the figures behind the text.

    - `met`: every requirement holds on the training data, as measured;
    - `violated`: some requirement does not hold, by as much as the text says;
    - `infeasible`: some requirement does not hold, and it is proved that no model of this
      architecture meets them all;
    - `not converged`: some requirement does not hold, and training ended too far from its solution
      to say whether more rounds would help;
    - `not measured`: what could be measured holds, but a declared group could not be measured.

    The model is withheld unless the requirements are met or the user asks to keep it. `facts` holds
    values that can be written as JSON. A method without a requirement gives no verdict.
    """

    status: Status
    text: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def withholds(self) -> bool:
        """Whether the model is withheld."""
        return self.status != "met"

    def plain(self) -> dict[str, Any]:
        """The verdict as a dict of values that can be written as JSON."""
        return {"status": self.status, "text": self.text, "facts": self.facts}
