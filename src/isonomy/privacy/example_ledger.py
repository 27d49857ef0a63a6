"""The ledger of example-level privacy: every client has an epsilon of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isonomy.core.cohort import Ask
from isonomy.core.examples import Split
from isonomy.core.work import Work
from isonomy.privacy.accounting import Event, Events, epsilon
from isonomy.privacy.examples import Batches, limit
from isonomy.privacy.ledger import BudgetSpent, Terms, rounded_up

DISTINCT = 12  # epsilons that are computed, the largest first; the others are at most the last


def training_events(work: Work, size: int, multiplier: float, batches: Batches) -> Counter[Event]:
    """What one training of a client of this size releases about one of its examples."""
    if batches == "passes":
        return Counter({Event(multiplier): work.passes(size)})
    steps, batch = work.count(size), work.batch or size
    if batch >= size:
        return Counter({Event(multiplier): steps})
    most = limit(batch)
    if most >= size:
        return Counter({Event(multiplier, batch / size): steps})
    return Counter({Event(multiplier, batch / size, size, most): steps})


class ExampleLedger:
    """What the clients of one run have released so far."""

    def __init__(
        self, terms: Terms, sizes: Tensor, *, calls: int, batches: Batches, still: frozenset[str]
    ) -> None:
        self.terms = terms
        self.sizes = [int(n) for n in sizes]
        self.batches, self.still = batches, still  # phases that use no gradient
        self.multiplier = terms.multiplier / math.sqrt(max(calls, 1))
        self.entries: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.events: list[Counter[Event]] = [Counter() for _ in self.sizes]
        self.measured: dict[str, Counter[Event]] = {}  # of the other splits, at every client
        self._trainings = 0

    def charge(self, ask: Ask) -> None:
        """Charge the training of an exchange; raises BudgetSpent if it is too much."""
        if ask.declared.name in self.still:
            return
        planned = self.terms.releases * self.terms.rounds + self.terms.final
        later = {}
        for k in ask.ids.tolist():
            found = training_events(ask.work, self.sizes[k], self.multiplier, self.batches)
            later[k] = self.events[k] + found
        self._trainings += 1
        budget = self.terms.budget
        if self._trainings > planned and budget is not None:
            worst = max(self._epsilon(events) for events in later.values())
            if worst > budget * (1 + 1e-9):
                raise BudgetSpent(
                    f"the privacy budget (epsilon = {budget:g}) allows no further training; raise "
                    "privacy.epsilon or privacy.noise, or lower the number of rounds."
                )
        for k, events in later.items():
            self.events[k] = events
        self.entries.append(
            {
                "round": "after the last" if ask.final else ask.round + 1,
                "phase": ask.declared.name,
                "verb": ask.verb,
                "clients": len(ask.ids),
                "multiplier": self.multiplier,
                "what": "gradients of batches, each example's clipped",
            }
        )

    def charge_everyone(self, split: Split, multiplier: float, entry: dict[str, Any]) -> None:
        """Charge a release of every client about one split, whose examples are in no other."""
        if split == "train":
            later = [events + Counter({Event(multiplier): 1}) for events in self.events]
            self._check(later)
            self.events = later
        else:
            spent = self.measured.get(split, Counter()) + Counter({Event(multiplier): 1})
            self._check([spent])
            self.measured[split] = spent
        self.entries.append({**entry, "split": split})

    def _check(self, later: list[Counter[Event]]) -> None:
        budget = self.terms.budget
        if budget is None:
            return
        distinct = {tuple(sorted(events.items())) for events in later}
        if max(self._epsilon(dict(one)) for one in distinct) > budget * (1 + 1e-9):
            raise BudgetSpent(
                f"the privacy budget (epsilon = {budget:g}) allows no further release; raise "
                "privacy.epsilon or privacy.noise, or lower the number of rounds."
            )

    def close_round(self) -> None:
        """A round is over."""

    def _epsilon(self, events: Events) -> float:
        return epsilon(events, self.terms.usable, self.terms.accountant)

    def _groups(self) -> list[tuple[tuple[tuple[Event, int], ...], list[int]]]:
        """Clients with equal events together, those that spent most first (by a simple proxy)."""
        found: dict[tuple[tuple[Event, int], ...], list[int]] = {}
        for k, events in enumerate(self.events):
            found.setdefault(tuple(sorted(events.items())), []).append(k)
        cost = {
            key: sum(n * (e.rate / e.multiplier) ** 2 if e.multiplier else math.inf for e, n in key)
            for key in found
        }
        return sorted(found.items(), key=lambda item: (-cost[item[0]], item[1][0]))

    def epsilon(self) -> float:
        """The largest epsilon of any example so far: of the three clients that spent most.

        An example is in one split, so training and measurements on other splits do not add up.
        """
        trained = [self._epsilon(dict(key)) for key, _ in self._groups()[:3]]
        return max(*trained, *map(self._epsilon, self.measured.values()), 0.0)

    def mark(self, round: int) -> None:
        """Record the largest epsilon after a round."""
        self.marks.append({"round": round, "epsilon": rounded_up(self.epsilon())})

    # --- checkpoints and files --------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        events = [
            [[e.multiplier, e.rate, e.population, e.limit, n] for e, n in sorted(one.items())]
            for one in self.events
        ]
        return {
            "entries": self.entries,
            "marks": self.marks,
            "events": events,
            "measured": {
                split: [[e.multiplier, n] for e, n in sorted(some.items())]
                for split, some in self.measured.items()
            },
            "trainings": self._trainings,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `saved` returned."""
        self.entries, self.marks = list(saved["entries"]), list(saved["marks"])
        self._trainings = int(saved["trainings"])
        self.events = [Counter({Event(*e): n for *e, n in one}) for one in saved["events"]]
        self.measured = {
            split: Counter({Event(z): n for z, n in some})
            for split, some in saved["measured"].items()
        }

    def plain(self) -> dict[str, Any]:
        """The ledger as JSON values: the promise, each client's epsilon, and every release."""
        terms, found = self.terms, self._groups()
        exact = [self._epsilon(dict(key)) for key, _ in found[:DISTINCT]]
        exact += [min(exact)] * (len(found) - len(exact))
        ordered = sorted(zip(exact, found, strict=True), key=lambda pair: -pair[0])
        each = {str(k): rounded_up(value) for value, (_, who) in ordered for k in who}
        return {
            "level": terms.level,
            "epsilon": rounded_up(self.epsilon()),
            "delta": terms.delta,
            "budget": terms.budget,
            "neighbours": terms.neighbours,
            "accountant": terms.accountant,
            "noise_multiplier": terms.multiplier,
            "batches": self.batches,
            "by_split": {
                "train": rounded_up(max(exact, default=0.0)),
                **{name: rounded_up(self._epsilon(some)) for name, some in self.measured.items()},
            },
            "clients": each,
            "epsilon_after": self.marks,
            "releases": self.entries,
        }
