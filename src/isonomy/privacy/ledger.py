"""The ledger: what was released, when, with which sensitivity and noise, and the epsilon so far.

Every release is charged before it is computed, so a run never spends more than its budget. Two ways
of counting are valid, and a run uses one of them:

- *Secret cohorts.* Clients are drawn by Poisson sampling, and nothing tells who was in a round. All
  releases of a round are about the same sample: together they are one Gaussian mechanism on it.
- *Known cohorts.* Otherwise it may be known who takes part, and sampling does not help. Each client
  is charged for the releases that it was asked for, and the most charged client counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from isonomy.core.examples import Split
from isonomy.errors import IsonomyError
from isonomy.privacy.accounting import Accountant, Event, epsilon, joint


class BudgetSpent(IsonomyError):
    """A release that would exceed the budget; it was not computed."""


@dataclass(frozen=True)
class Terms:
    """What a run promises: decided before training, from the config and the algorithm."""

    level: Literal["client", "example"]
    delta: float
    budget: float | None  # the most epsilon; None: no limit, it is only reported
    multiplier: float  # noise, relative to the sensitivity
    rate: float  # probability that a client is in a cohort; 1: cohorts are known
    clients: int
    rounds: int  # that the budget allows, at most those of the config
    releases: int  # that a round is planned to have
    final: int = 0  # releases after the last round
    accountant: Accountant = "pld"
    calls: int = 1  # at level 'example': gradients of one batch
    still: frozenset[str] = frozenset()  # at level 'example': phases without gradients
    reserved: float = 0.0  # the part of delta that the selection of values used
    evaluation: float = 0.0  # noise multiplier of an evaluation; 0: there is none with noise

    @property
    def usable(self) -> float:
        """The delta of everything that has noise."""
        return self.delta - self.reserved

    @property
    def secret(self) -> bool:
        """Whether nobody learns who is in a cohort."""
        return self.rate < 1

    @property
    def neighbours(self) -> str:
        """Which data sets the promise compares, in words."""
        if self.level == "example":
            return (
                "data of a client with and without one example; sizes of clients, and the split "
                "that a row is in, are public"
            )
        if self.secret:
            return "federations with and without one client"
        return (
            "federations in which one client's data are there or are replaced by an empty "
            "contribution; who takes part in a round is public"
        )


class Ledger:
    """What one run has released so far."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.entries: list[dict[str, Any]] = []
        self.events: Counter[Event] = Counter()
        self.marks: list[dict[str, Any]] = []  # epsilon after some rounds
        self.clips: dict[str, float] = {}  # that adapt, by phase and part
        self.spent = np.zeros(terms.clients)  # known cohorts: sum of 1 / multiplier^2
        self._open: list[float] = []  # secret cohorts: the multipliers of this round so far
        self._rounds = 0  # secret cohorts: rounds that are closed

    def charge(self, ids: Tensor, multiplier: float, entry: dict[str, Any], *, final: bool) -> None:
        """Charge a release to the clients that were asked; raises BudgetSpent if it is too much."""
        terms, at = self.terms, ids.numpy()
        cost = math.inf if multiplier <= 0 else multiplier**-2
        sampled = terms.secret and not final
        if sampled:
            later = [*self._open, multiplier]
            planned = len(later) <= terms.releases and self._rounds < terms.rounds
            planned = planned and all(z >= terms.multiplier for z in later)
            if not planned:
                self._check(self.events + Counter({Event(joint(later), terms.rate): 1}))
            self._open = later
        else:
            most = self.spent.copy()
            most[at] += cost
            self._check(self._all(most))
            self.spent = most
        self.entries.append(entry)

    def charge_everyone(self, split: Split, multiplier: float, entry: dict[str, Any]) -> None:
        """Charge a release that is about all clients; the split does not matter."""
        del split  # all of a client's examples count together
        self.charge(torch.arange(self.terms.clients), multiplier, entry, final=True)

    def _check(self, events: Mapping[Event, int]) -> None:
        budget = self.terms.budget
        if budget is None:
            return
        if epsilon(events, self.terms.usable, self.terms.accountant) > budget * (1 + 1e-9):
            raise BudgetSpent(
                f"the privacy budget (epsilon = {budget:g}) allows no further release; raise "
                "privacy.epsilon or privacy.noise, or lower the number of rounds."
            )

    def close_round(self) -> None:
        """A round is over: its releases, about one secret sample, become one event."""
        if self._open:
            self.events[Event(joint(self._open), self.terms.rate)] += 1
            self._rounds += 1
            self._open = []

    def _all(self, spent: Any) -> Counter[Event]:
        most = float(spent.max(initial=0.0))
        found = Counter(self.events)
        if most > 0:
            found[Event(0.0 if math.isinf(most) else most**-0.5)] += 1
        return found

    def epsilon(self) -> float:
        """The epsilon of everything so far."""
        return epsilon(self._all(self.spent), self.terms.usable, self.terms.accountant)

    def mark(self, round: int) -> None:
        """Record the epsilon after a round."""
        self.marks.append({"round": round, "epsilon": rounded_up(self.epsilon())})

    # --- checkpoints and files --------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        events = [
            [e.multiplier, e.rate, e.population, e.limit, n] for e, n in sorted(self.events.items())
        ]
        return {
            "entries": self.entries,
            "events": events,
            "marks": self.marks,
            "clips": self.clips,
            "spent": self.spent.tolist(),
            "rounds": self._rounds,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `saved` returned."""
        self.entries, self.marks = list(saved["entries"]), list(saved["marks"])
        self.events = Counter({Event(*event): n for *event, n in saved["events"]})
        self.clips, self.spent = dict(saved["clips"]), np.array(saved["spent"], dtype=np.float64)
        self._rounds = int(saved["rounds"])

    def plain(self) -> dict[str, Any]:
        """The ledger as JSON values: the promise, epsilon over rounds, and every release."""
        terms = self.terms
        out: dict[str, Any] = {
            "level": terms.level,
            "epsilon": rounded_up(self.epsilon()),
            "delta": terms.delta,
            "budget": terms.budget,
            "neighbours": terms.neighbours,
            "accountant": terms.accountant,
            "noise_multiplier": terms.multiplier,
        }
        if terms.level == "client":
            out["cohorts"] = (
                f"secret: Poisson sampling with probability {terms.rate:g}"
                if terms.secret
                else "known: not counted as sampling"
            )
            if not terms.secret:
                out["clients"] = self._per_client()
        return out | {"epsilon_after": self.marks, "releases": self.entries}

    def _per_client(self) -> dict[str, float | None]:
        """The epsilon of each client, the largest first."""
        terms, found = self.terms, {}
        for k in np.argsort(-self.spent, kind="stable").tolist():
            one = np.zeros(1) + self.spent[k]
            found[str(k)] = rounded_up(epsilon(self._all(one), terms.usable, terms.accountant))
        return found


def rounded_up(value: float) -> float | None:
    """Six digits, rounded up, so that what is printed is a bound too; None for infinity."""
    if not math.isfinite(value) or value <= 0:
        return 0.0 if value == 0 else None
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.6g}")
