"""Attacks: each is a rule that turns the honest updates of malicious clients into forged ones.

What counts as an update follows from the phase's declaration (see `parts`). A rule sees the
malicious clients' own honest updates; a rule of colluding clients also sees the updates that
`knows` names. All draws are pure functions of the seed, the round, the client and the exchange, so
a resumed run draws the same numbers.

A new attack is a class in this module, or in `fairness_attacks` if it is one on group fairness, and
an entry in `ATTACKS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.core import random
from isonomy.core.options import build, option
from isonomy.errors import ConfigError, unknown
from isonomy.robust.attack import Attack, Seen
from isonomy.robust.fairness_attacks import EABFL, FOE, SDFA, FFlip, PFAttack, SpDFA


@dataclass(frozen=True)
class Labels(Attack):
    """A1, label poisoning: honest training on wrong training labels."""

    name: ClassVar[str] = "labels"
    paper: ClassVar[str] = "FMTL (Ditto), A1"
    sees: ClassVar[str] = "its own data"
    forges: ClassVar[bool] = False

    def forge(self, seen: Seen) -> Tensor:
        """The updates without changes: the wrong labels are the attack (see `labels`)."""
        return seen.updates


@dataclass(frozen=True)
class Gaussian(Attack):
    """A2, random updates: noise with the standard deviation of the client's own update."""

    name: ClassVar[str] = "gaussian"
    paper: ClassVar[str] = "FMTL (Ditto), A2"
    sees: ClassVar[str] = "its own update"

    scale: float = option(1.0, "factor of that standard deviation")

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale = {self.scale}: give a number above 0.")

    def forge(self, seen: Seen) -> Tensor:
        """N(0, s^2) in every coordinate, s the standard deviation of the flattened update."""
        spread = self.scale * seen.updates.std(1, correction=0, keepdim=True)
        return spread * random.normal(seen.keys, seen.draw, (seen.updates.shape[1],))


@dataclass(frozen=True)
class Replacement(Attack):
    """A3, model replacement: the update times a factor, so that it outweighs the others."""

    name: ClassVar[str] = "replacement"
    paper: ClassVar[str] = "FMTL (Ditto), A3; Bagdasaryan et al., AISTATS 2020"
    sees: ClassVar[str] = "its own update and how many clients are in a round"

    factor: float | None = option(None, "the factor; the number of clients in the round if unset")

    def __post_init__(self) -> None:
        if self.factor is not None and not math.isfinite(self.factor):
            raise ValueError(f"factor = {self.factor}: give a finite number.")

    def forge(self, seen: Seen) -> Tensor:
        """Factor times the update."""
        return seen.updates * (seen.cohort if self.factor is None else self.factor)


@dataclass(frozen=True)
class SignFlip(Attack):
    """The update with the opposite sign, times a factor."""

    name: ClassVar[str] = "sign_flip"
    paper: ClassVar[str] = "a common test"
    sees: ClassVar[str] = "its own update"

    factor: float = option(1.0, "length of the forged update, relative to the honest one")

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor = {self.factor}: give a number above 0.")

    def forge(self, seen: Seen) -> Tensor:
        """Minus factor times the update."""
        return -self.factor * seen.updates


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Inner-product manipulation: all send minus epsilon times the mean of the known updates."""

    name: ClassVar[str] = "inner_product"
    paper: ClassVar[str] = "Xie, Koyejo and Gupta, UAI 2019"
    sees: ClassVar[str] = "the mean of the updates that `knows` names"
    colludes: ClassVar[bool] = True

    epsilon: float = option(
        0.5, "length of what is sent; small passes filters, large turns the mean"
    )
    knows: Literal["malicious", "benign"] = option("benign", "whose honest updates it knows")

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon = {self.epsilon}: give a number above 0.")

    def forge(self, seen: Seen) -> Tensor:
        """-epsilon * mean."""
        return (-self.epsilon * seen.known.mean(0)).expand_as(seen.updates)


@dataclass(frozen=True)
class Little(Attack):
    """A little is enough: all send the mean minus z standard deviations, a small deviation."""

    name: ClassVar[str] = "little"
    paper: ClassVar[str] = "Baruch, Baruch and Goldberg, NeurIPS 2019"
    sees: ClassVar[str] = (
        "mean and standard deviation, by coordinate, of the updates that `knows` names, and how "
        "many clients answer"
    )
    colludes: ClassVar[bool] = True

    z: float | None = option(
        None, "standard deviations from the mean; the paper's largest if unset"
    )
    knows: Literal["malicious", "benign"] = option("malicious", "whose honest updates it knows")

    def __post_init__(self) -> None:
        if self.z is not None and not 0 <= self.z < math.inf:
            raise ValueError(f"z = {self.z}: give a number of at least 0.")

    def forge(self, seen: Seen) -> Tensor:
        """Mean - z * standard deviation."""
        z = little_z(seen.answered, len(seen.updates)) if self.z is None else self.z
        spread = seen.known.std(0, correction=0)
        return (seen.known.mean(0) - z * spread).expand_as(seen.updates)


def little_z(clients: int, malicious: int) -> float:
    """The largest z with which the forged update has a majority of clients on its far side.

    With n clients, m of them malicious, s = floor(n / 2 + 1) - m benign ones have to lie further
    out: z = Phi^-1((n - m - s) / (n - m)). At least 0, and s at least 1.

    >>> round(little_z(50, 24), 2)
    1.43
    """
    benign = clients - malicious
    if benign < 1:
        return 0.0
    further = max(clients // 2 + 1 - malicious, 1)
    share = (benign - further) / benign
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends back what it received, perhaps with noise, to get the model without working."""

    name: ClassVar[str] = "free_rider"
    paper: ClassVar[str] = "Fraboni, Vidal and Lorenzi, AISTATS 2021"
    sees: ClassVar[str] = "what it was sent"

    noise: float = option(0.0, "standard deviation of the noise added to every number")

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise = {self.noise}: give a number of at least 0.")

    def forge(self, seen: Seen) -> Tensor:
        """An update of noise only, or of zeros."""
        if not self.noise:
            return torch.zeros_like(seen.updates)
        return self.noise * random.normal(seen.keys, seen.draw, (seen.updates.shape[1],))


@dataclass(frozen=True)
class Broken(Attack):
    """Sends invalid replies: numbers that are not finite, or tensors of a wrong shape."""

    name: ClassVar[str] = "broken"
    paper: ClassVar[str] = "a test of the screening"
    sees: ClassVar[str] = "nothing"

    what: Literal["nan", "inf", "shape"] = option("nan", "what is wrong with the reply")

    @property
    def alone(self) -> bool:
        """A wrong shape is simulated by the server side: batched clients have equal shapes."""
        return not self.misshapes

    @property
    def misshapes(self) -> bool:
        """Whether the option asks for a wrong shape."""
        return self.what == "shape"

    def forge(self, seen: Seen) -> Tensor:
        """NaN or infinity everywhere; `Collusion` makes the wrong shape."""
        return torch.full_like(seen.updates, math.inf if self.what == "inf" else math.nan)


ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        Labels,
        Gaussian,
        Replacement,
        SignFlip,
        InnerProduct,
        Little,
        FreeRider,
        Broken,
        FFlip,
        FOE,
        SDFA,
        SpDFA,
        EABFL,
        PFAttack,
    )
}


def make(name: str, options: dict[str, Any] | None = None) -> Attack:
    """An attack by name, with its options checked; raises ConfigError."""
    if name not in ATTACKS:
        raise ConfigError(unknown("attack", name, ATTACKS))
    return build("attack", name, ATTACKS[name], options)
