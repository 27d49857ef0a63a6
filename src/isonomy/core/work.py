"""Local work: how long a client trains in a round, with which batches and optimiser."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from isonomy.core.options import build, option
from isonomy.core.search_space import Grid, Range


@dataclass(frozen=True)
class Work:
    """The local training of every client in a round; the same for all methods of a comparison,
    except that a method may recommend values for keys that the config leaves open.

    Set `epochs` (passes over the client's examples) or `steps`. `batch = 0` means all examples of
    the client at once. The last, short batch of a pass is kept, or dropped with `last = "drop"`
    (a client with fewer examples than a batch still uses all of them). The learning rate of round
    t = 0, 1, ... is lr times: 1 ("constant"), decay^t ("exponential"), decay^floor(t / every)
    ("step"), 1/sqrt(1 + t) ("inverse_sqrt"), or half a cosine over the run ("cosine").
    """

    epochs: int = option(1, "passes over a client's examples in a round", ge=1)
    steps: int | None = option(None, "local steps in a round, instead of epochs", ge=1)
    batch: int = option(32, "examples in a batch; 0 means all", ge=0)
    last: Literal["keep", "drop"] = option("keep", "whether a pass's last, short batch is used")
    optimiser: Literal["sgd", "adam"] = option(
        "sgd", "local optimiser", search=Grid(("sgd", "adam"))
    )
    lr: float = option(0.1, "learning rate", gt=0, lt=math.inf, search=Range(0.001, 1.0, log=True))
    momentum: float = option(0.0, "momentum of SGD", ge=0, lt=1)
    nesterov: bool = option(False, "whether momentum has Nesterov's form")
    weight_decay: float = option(0.0, "L2 weight decay, as in torch.optim", ge=0, lt=math.inf)
    betas: tuple[float, float] = option((0.9, 0.999), "decay rates of Adam", ge=0, lt=1)
    epsilon: float = option(1e-8, "epsilon of Adam", gt=0, lt=math.inf)
    schedule: Literal["constant", "exponential", "step", "inverse_sqrt", "cosine"] = option(
        "constant", "learning rate over rounds"
    )
    decay: float = option(0.99, "factor of the schedule", gt=0, le=1)
    every: int = option(1, "rounds between steps of the 'step' schedule", ge=1)

    unset: ClassVar[frozenset[str]] = frozenset()
    """The keys that a config left open, which a method may fill in; see `of_table`."""

    @classmethod
    def of_table(cls, given: Mapping[str, Any]) -> Work:
        """The local work of a config's table; all keys that are not there are `unset`."""
        made = build("local", "", cls, given)
        names = {field.name for field in dataclasses.fields(cls)}
        object.__setattr__(made, "unset", frozenset(names - set(given)))
        return made

    def filled(self, recommended: Mapping[str, Any]) -> Work:
        """The work with recommended values for the keys that are unset; nothing is unset then."""
        return dataclasses.replace(
            self, **{key: value for key, value in recommended.items() if key in self.unset}
        )

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round."""
        match self.schedule:
            case "exponential":
                return self.lr * self.decay**round
            case "step":
                return self.lr * self.decay ** (round // self.every)
            case "inverse_sqrt":
                return self.lr / math.sqrt(1 + round)
            case "cosine":
                return self.lr * 0.5 * (1 + math.cos(math.pi * round / max(rounds, 1)))
        return self.lr

    def width(self, size: int) -> int:
        """The number of examples in a batch of a client of this size."""
        return size if self.batch == 0 else self.batch

    def steps_a_pass(self, size: int) -> int:
        """The number of batches in one pass over this many examples."""
        width = self.width(size)
        if self.last == "drop" and size >= width:
            return size // width
        return -(-size // width)

    def count(self, size: int) -> int:
        """The number of local steps of a client of this size."""
        return self.epochs * self.steps_a_pass(size) if self.steps is None else self.steps

    def passes(self, size: int) -> int:
        """The number of passes, complete or not, that these steps make."""
        return -(-self.count(size) // self.steps_a_pass(size))
