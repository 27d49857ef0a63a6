"""What an attack is: a rule that says what malicious clients send, or what they train on.

`forging` applies a rule to replies, so every attack works with every algorithm on every engine. The
attacks themselves are in `attacks` (rules on updates) and `fairness_attacks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.core import random
from isonomy.core.client import Client
from isonomy.core.task import Params, Task


class Seen(NamedTuple):
    """What a rule may use in one exchange; updates are rows [clients, numbers]."""

    updates: Tensor  # what the malicious clients would have sent
    known: Tensor  # the updates whose mean and spread a colluder knows
    keys: Tensor  # a random key for each malicious client
    draw: str  # the name of this exchange's draws
    cohort: int  # clients in the round
    answered: int  # clients that answer this exchange, if the rule colludes
    origins: Tensor  # what the updates are counted from, rows like them; 0: from zero


class Trainee(NamedTuple):
    """What a client that trains maliciously may use: one model, and all that the client has."""

    task: Task
    sent: Params  # the model that it received
    own: Params  # what it would have sent after honest training
    client: Client


class Attack(ABC):
    """Abstract. A final subclass is a frozen dataclass whose fields are the attack's options."""

    name: ClassVar[str]
    paper: ClassVar[str]
    sees: ClassVar[str]  # what the attacker knows, in plain words
    colludes: ClassVar[bool] = False  # whether it needs replies other than a client's own
    forges: ClassVar[bool] = True  # whether replies are changed at all
    trains: ClassVar[bool] = False  # whether it is a `TrainingAttack`
    flips: ClassVar[Literal["none", "all", "half"]] = "none"
    """Which malicious clients train on flipped groups; with "half", the others forge replies."""
    binary: ClassVar[bool] = False  # whether it needs two classes
    grouped: ClassVar[bool] = False  # whether it needs a protected attribute
    attribute: str = ""  # the protected attribute that it is about; the first if empty
    knows: Literal["malicious", "benign"] = "malicious"  # whose updates colluders know

    @property
    def alone(self) -> bool:
        """Whether a client can carry it out by itself, on its own machine."""
        return not self.colludes

    @property
    def misshapes(self) -> bool:
        """Whether the forged replies get a wrong shape."""
        return False

    @abstractmethod
    def forge(self, seen: Seen) -> Tensor:
        """The updates to send instead, of the shape of `seen.updates`."""


class TrainingAttack(Attack):
    """Abstract: malicious clients train their models in another way, with their own examples."""

    trains: ClassVar[bool] = True
    grouped: ClassVar[bool] = True
    last: int | None = None  # it attacks in so many last rounds only; None: in all
    hides: bool = False  # whether it reports 0 where a client is asked about groups

    def forge(self, seen: Seen) -> Tensor:
        """The updates without changes: what is trained is the attack."""
        return seen.updates

    @abstractmethod
    def train(self, at: Trainee) -> Params:
        """The model to send; a pure function of one client, as a phase is."""

    def active(self, round: int, rounds: int | None) -> bool:
        """Whether it attacks in this round of so many (None: not known)."""
        return self.last is None or rounds is None or round >= rounds - self.last


class Roles(NamedTuple):
    """Which malicious clients forge replies, and which train on flipped groups."""

    forge: Tensor
    flip: Tensor


def roles(attack: Attack, malicious: Tensor, seed: int) -> Roles:
    """What each malicious client does; of a split attack, half of them, drawn by the seed, flips.

    Of an odd number, the larger part forges.
    """
    nobody = malicious[:0]
    if attack.flips == "half":
        score = random.uniform(random.key(seed), "split attack", (len(malicious),)).double()
        flip = malicious[score.topk(len(malicious) // 2).indices].sort().values
        return Roles(malicious[~torch.isin(malicious, flip)], flip)
    return Roles(
        malicious if attack.forges else nobody, malicious if attack.flips == "all" else nobody
    )
