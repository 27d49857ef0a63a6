"""The privacy budget of a decision: many trainings, noisy measurements, one test; one epsilon.

Everything that a decision releases is composed by one accountant:

- the preprocessing, once, shared by all trials;
- every trial's training, all with the same noise multiplier, which is found last;
- the noisy counts on validation examples by which candidates are compared;
- the noisy counts of the chosen candidate on test examples.

Level `example`: an example is in one split, so what is released about training, validation and test
examples does not add up (parallel composition): each split may use the whole budget, and the
largest of the three epsilons is that of the decision. Level `client`: a client's examples of all
splits count together, so everything adds up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from isonomy.config.privacy import PrivacyConfig
from isonomy.core.examples import Split
from isonomy.privacy.accounting import Event, epsilon, multiplier_for
from isonomy.privacy.ledger import BudgetSpent
from isonomy.privacy.preprocessing import share_of, whole_multiplier

Spent = Sequence[Counter[Event]]
"""What one training releases: at level `example` of every client, at level `client` once."""

Training = Callable[[float], Spent]
"""What one training releases with a noise multiplier."""

NEAR = 3  # clients of which epsilon is computed: those that spent most, by a simple proxy


@dataclass
class DecisionBudget:
    """What a decision may release, and what it has released so far."""

    options: PrivacyConfig  # of the whole decision; epsilon is the bound
    prepared: tuple[float, ...] = ()  # noise multipliers of the preprocessing
    reserved: float = 0.0  # part of delta that the preprocessing used
    measurements: int = 1  # on validation examples, at most
    entries: list[dict[str, Any]] = field(default_factory=list)
    trained: dict[str, Spent] = field(default_factory=dict)  # by trial

    @property
    def level(self) -> Literal["client", "example"]:
        """What is protected."""
        assert self.options.level != "none"
        return self.options.level

    @property
    def bound(self) -> float:
        """The largest epsilon."""
        assert self.options.epsilon is not None
        return self.options.epsilon

    @property
    def delta(self) -> float:
        """The delta of everything that has noise."""
        return self.options.delta - self.reserved

    @property
    def validation(self) -> float:
        """The noise multiplier of one measurement on validation examples."""
        share = 1.0 if self.level == "example" else share_of(self.options, "validation")
        return whole_multiplier(self.options) * math.sqrt(self.measurements / share)

    @property
    def test(self) -> float:
        """The noise multiplier of the measurement on test examples."""
        share = 1.0 if self.level == "example" else share_of(self.options, "test")
        return whole_multiplier(self.options) / math.sqrt(share)

    # --- the plan ---------------------------------------------------------------------------------

    def noise(self, trainings: Sequence[tuple[Training, int]]) -> float:
        """The noise multiplier of all trainings, each made so many times, that the bound allows."""

        def total(z: float) -> list[Counter[Event]]:
            made = [(training(z), times) for training, times in trainings]
            spent = added([(one, times) for one, times in made])
            if self.level == "client":
                other = Counter({Event(self.validation): self.measurements})
                other[Event(self.test)] += 1
                spent = [one + other for one in spent]
            return [one + self._of_preparation() for one in spent]

        worst = max(range(len(total(1.0))), key=lambda k: _proxy(total(1.0)[k]))
        how = self.options.accountant
        z = multiplier_for(lambda z: total(z)[worst], self.bound, self.delta, how)
        while self._largest(total(z)) > self.bound * (1 + 1e-9):
            z *= 1.002
        return z

    def _of_preparation(self) -> Counter[Event]:
        return Counter(Event(z) for z in self.prepared)

    # --- what was released ------------------------------------------------------------------------

    def charge_training(self, name: str, spent: Spent, multiplier: float) -> None:
        """Record a trial's training; the same trial again releases nothing new."""
        if name in self.trained:
            return
        later = {**self.trained, name: spent}
        self._check(later, self._measured())
        self.trained[name] = spent
        self.entries.append(
            {
                "split": "train",
                "phase": "training",
                "round": name,
                "multiplier": multiplier,
                "epsilon": self._largest(spent),
            }
        )

    def charge(self, split: Split, entry: Mapping[str, Any]) -> None:
        """Record a measurement, before it is made; raises BudgetSpent if it is too much."""
        z = float(entry["multiplier"])
        measured = self._measured()
        measured[split] = measured.get(split, Counter()) + Counter({Event(z): 1})
        self._check(self.trained, measured)
        alone = epsilon({Event(z): 1}, self.delta, self.options.accountant)
        self.entries.append({**entry, "split": split, "epsilon": alone})

    def _measured(self) -> dict[str, Counter[Event]]:
        found: dict[str, Counter[Event]] = {}
        for one in self.entries:
            if one["split"] != "prepared" and one["phase"] != "training":
                found.setdefault(one["split"], Counter())[Event(float(one["multiplier"]))] += 1
        return found

    def _check(self, trained: Mapping[str, Spent], measured: Mapping[str, Counter[Event]]) -> None:
        if max(self._by_split(trained, measured).values()) > self.bound * (1 + 1e-9):
            raise BudgetSpent(
                f"the decision's privacy budget (epsilon = {self.bound:g}) allows no further "
                "release."
            )

    def by_split(self) -> dict[str, float]:
        """The epsilon of the examples of each split; at level `client`, of all together."""
        return self._by_split(self.trained, self._measured())

    def _by_split(
        self, trained: Mapping[str, Spent], measured: Mapping[str, Counter[Event]]
    ) -> dict[str, float]:
        spent = added([(one, 1) for one in trained.values()]) or [Counter()]
        spent = [one + self._of_preparation() for one in spent]
        if self.level == "client":
            for some in measured.values():
                spent = [one + some for one in spent]
            return {"all": self._largest(spent)}
        found = {"train": self._largest(spent)}
        how = self.options.accountant
        return found | {name: epsilon(some, self.delta, how) for name, some in measured.items()}

    def epsilon(self) -> float:
        """The epsilon of everything so far."""
        return max(self.by_split().values())

    def _largest(self, spent: Spent) -> float:
        distinct = {tuple(sorted(one.items())): one for one in spent}
        near = sorted(distinct.values(), key=_proxy)[-NEAR:]
        how = self.options.accountant
        return max(epsilon(one, self.delta, how) for one in near)


def added(trainings: Sequence[tuple[Spent, int]]) -> list[Counter[Event]]:
    """What several trainings release together, each made so many times."""
    if not trainings:
        return []
    out = [Counter[Event]() for _ in trainings[0][0]]
    for spent, times in trainings:
        for total, one in zip(out, spent, strict=True):
            for event, n in one.items():
                total[event] += n * times
    return out


def _proxy(events: Mapping[Event, int]) -> float:
    return sum(n * (e.rate / e.multiplier) ** 2 if e.multiplier else math.inf
               for e, n in events.items())  # fmt: skip
