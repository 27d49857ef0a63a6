"""What a participant of a real federation has released: counted in a file of its own.

Every release is written before it is computed, and one that would exceed the budget is refused. So
the count holds whatever the organiser does, also if it asks again or restarts.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from isonomy.config.privacy import PrivacyConfig
from isonomy.privacy.accounting import Accountant, Event, epsilon
from isonomy.privacy.ledger import BudgetSpent, rounded_up


class OwnCount:
    """The events of one participant, in `file`; `about` is written beside them."""

    def __init__(
        self, options: PrivacyConfig, accountant: Accountant, file: Path, about: dict[str, Any]
    ) -> None:
        self.options, self.accountant, self.file, self.about = options, accountant, file, about
        self.events: Counter[Event] = Counter()
        if file.exists():
            saved = json.loads(file.read_text())["events"]
            self.events = Counter({Event(*event): n for *event, n in saved})

    def epsilon(self, events: Counter[Event] | None = None) -> float:
        """The epsilon of some events; by default, of everything that was answered."""
        found = self.events if events is None else events
        return epsilon(found, self.options.delta, self.accountant)

    def charge(self, more: Counter[Event], what: str) -> None:
        """Count a release; raises BudgetSpent if there must be no further one of `what`."""
        later, budget = self.events + more, self.options.epsilon
        spent = self.epsilon(later)
        if budget is not None and spent > budget * (1 + 1e-9):
            raise BudgetSpent(
                f"the privacy budget of this federation (epsilon = {budget:g}) allows no further "
                f"{what}; ask the organiser for a new run, with more noise or fewer rounds."
            )
        self.events = later
        self._write(spent)

    def _write(self, spent: float) -> None:
        about: dict[str, Any] = {
            "level": self.options.level,
            "epsilon": rounded_up(spent),
            "delta": self.options.delta,
            "budget": self.options.epsilon,
            **self.about,
            "events": [
                [e.multiplier, e.rate, e.population, e.limit, n]
                for e, n in sorted(self.events.items())
            ],
        }
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(about, indent=1) + "\n")
        new.replace(self.file)
