"""Example-level privacy at a participant of a real federation: its own noise, and its own count.

The participant's program trains with private gradients (`isonomy.privacy.examples`), so nobody has
to trust the organiser. Every answer has a new secret key that is never stored: a question that is
asked again gets new noise, and is counted again. What was answered is written to `privacy.json` in
the participant's folder before it is computed; a question whose answer would exceed the budget is
refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from isonomy.config.privacy import PrivacyConfig
from isonomy.core.cohort import Ask
from isonomy.core.phase import Phase
from isonomy.core.work import Work
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.example_plan import Training
from isonomy.privacy.examples import PrivateExamples
from isonomy.privacy.ledger import BudgetSpent, rounded_up
from isonomy.privacy.noise import Key


class OwnExamples:
    """Client side: private gradients of one participant's examples, counted by itself."""

    def __init__(self, options: PrivacyConfig, training: Training, size: int, file: Path) -> None:
        if options.noise is None or options.clip == "adaptive":
            raise ValueError("noise and clip are numbers in a real federation")
        self.options, self.training, self.size, self.file = options, training, size, file
        self.clip, self.noise = options.clip, options.noise
        self.events: Counter[Event] = Counter()
        if file.exists():
            saved = json.loads(file.read_text())["events"]
            self.events = Counter({Event(*event): n for *event, n in saved})

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase; raises BudgetSpent if its answer would exceed the budget."""
        if ask.declared.name not in self.training.still:
            self._charge(self._events(ask.work))
        side = PrivateExamples(
            Key.fresh(), clip=self.clip, noise=self.noise, batches=self.options.batches
        )
        return side(ask, phase)

    def planned(self, work: Work, rounds: int) -> float:
        """The epsilon after so many rounds and the last phase, if this client is in all of them."""
        times = rounds * self.training.rounds + self.training.final
        one = self._events(work)
        return self._epsilon(Counter({event: n * times for event, n in one.items()}))

    def epsilon(self) -> float:
        """The epsilon of everything that was answered."""
        return self._epsilon(self.events)

    def _events(self, work: Work) -> Counter[Event]:
        each = self.noise / math.sqrt(max(self.training.calls, 1))
        return training_events(work, self.size, each, self.options.batches)

    def _epsilon(self, events: Counter[Event]) -> float:
        return epsilon(events, self.options.delta, self.options.accountant)

    def _charge(self, more: Counter[Event]) -> None:
        later, budget = self.events + more, self.options.epsilon
        spent = self._epsilon(later)
        if budget is not None and spent > budget * (1 + 1e-9):
            raise BudgetSpent(
                f"the privacy budget of this federation (epsilon = {budget:g}) allows no further "
                "training on your rows; ask the organiser for a new run, with more noise or fewer "
                "rounds."
            )
        self.events = later
        self._write(spent)

    def _write(self, spent: float) -> None:
        about: dict[str, Any] = {
            "level": "example",
            "epsilon": rounded_up(spent),
            "delta": self.options.delta,
            "budget": self.options.epsilon,
            "noise_multiplier": self.noise,
            "clip": self.clip,
            "batches": self.options.batches,
            "events": [
                [e.multiplier, e.rate, e.population, e.limit, n]
                for e, n in sorted(self.events.items())
            ],
        }
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(about, indent=1) + "\n")
        new.replace(self.file)
