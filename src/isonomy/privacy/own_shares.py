"""Client-level privacy at a participant with secure aggregation: its share of the noise, counted.

Every reply has noise from a new secret key that is never stored. A question that is asked again,
after the server has restarted, gets new noise and counts again: the same noise in two sums of
different clients would cancel in their difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isonomy.config.privacy import PrivacyConfig
from isonomy.privacy.accounting import Event
from isonomy.privacy.noise import Key
from isonomy.privacy.own_count import OwnCount
from isonomy.privacy.shares import Draw, Shares


class OwnShares:
    """The noise that one participant adds to its replies."""

    def __init__(self, options: PrivacyConfig, shares: Shares, number: int, file: Path) -> None:
        self.shares, self.number = shares, number
        about = {
            "noise_multiplier": shares.multiplier,
            "clip": shares.clip,
            "noise": f"in shares; that of {shares.honest} participants of a sum is counted",
        }
        self.count = OwnCount(options, "rdp", file, about)

    def draw(self, head: Mapping[str, Any]) -> Draw:
        """The noise of one reply; raises BudgetSpent if there must be no further one."""
        self.count.charge(Counter({Event(self.shares.multiplier): 1}), "replies to be sent")
        asked = (bool(head.get("final")), head["round"], head["exchange"], head["phase"])
        return Draw(Key.fresh(), ("share", *asked, self.number))
