"""Example-level privacy at a participant of a real federation: its own noise, and its own count.

The participant's program trains with private gradients (`isonomy.privacy.examples`), so nobody has
to trust the organiser. Every answer has a new secret key that is never stored: a question that is
asked again gets new noise, and is counted again. What was answered is written to `privacy.json` in
the participant's folder before it is computed; a question whose answer would exceed the budget is
refused.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from isonomy.config.privacy import PrivacyConfig
from isonomy.core.cohort import Ask
from isonomy.core.phase import Phase
from isonomy.core.work import Work
from isonomy.privacy.accounting import Event
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.example_plan import Training
from isonomy.privacy.examples import PrivateExamples
from isonomy.privacy.noise import Key
from isonomy.privacy.own_count import OwnCount


class OwnExamples:
    """Client side: private gradients of one participant's examples, counted by itself."""

    def __init__(self, options: PrivacyConfig, training: Training, size: int, file: Path) -> None:
        if options.noise is None or options.clip == "adaptive":
            raise ValueError("noise and clip are numbers in a real federation")
        self.options, self.training, self.size, self.file = options, training, size, file
        self.clip, self.noise = options.clip, options.noise
        about = {"noise_multiplier": self.noise, "clip": self.clip, "batches": options.batches}
        self.count = OwnCount(options, options.accountant, file, about)

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase; raises BudgetSpent if its answer would exceed the budget."""
        if ask.declared.name not in self.training.still:
            self.count.charge(self._events(ask.work), "training on your rows")
        side = PrivateExamples(
            Key.fresh(), clip=self.clip, noise=self.noise, batches=self.options.batches
        )
        return side(ask, phase)

    def planned(self, work: Work, rounds: int) -> float:
        """The epsilon after so many rounds and the last phase, if this client is in all of them."""
        times = rounds * self.training.rounds + self.training.final
        one = self._events(work)
        return self.count.epsilon(Counter({event: n * times for event, n in one.items()}))

    def epsilon(self) -> float:
        """The epsilon of everything that was answered."""
        return self.count.epsilon()

    def _events(self, work: Work) -> Counter[Event]:
        each = self.noise / math.sqrt(max(self.training.calls, 1))
        return training_events(work, self.size, each, self.options.batches)
