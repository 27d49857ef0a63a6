"""The rates that a notion of group fairness compares, for any number of classes.

They are those of `isonomy.metrics.group`: with two classes the positive class is 1; with more, each
class in turn is the positive class and all others are negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isonomy.core.notions import find_notion
from isonomy.metrics.counts import Floats


@dataclass(frozen=True)
class Rate:
    """The share of decisions for a class among some examples.

    They are all examples (`given` None), those with that label (1), or those with another (0).
    """

    given: int | None
    positive: int

    def labels(self, classes: int) -> Floats:
        """1 for each label whose examples count, else 0, [classes]."""
        own = np.arange(classes) == self.positive
        if self.given is None:
            return np.ones(classes)
        return np.asarray(own if self.given else ~own, dtype=np.float64)

    def above(self, counts: Floats) -> Floats:
        """The numerators [...] from counts [..., label, decision]."""
        found: Floats = counts[..., self.positive] @ self.labels(counts.shape[-1])
        return found

    def below(self, labels: Floats) -> Floats:
        """The denominators [...] from numbers of examples [..., label]."""
        found: Floats = labels @ self.labels(labels.shape[-1])
        return found


def rates_of(notion: str, classes: int) -> tuple[Rate, ...]:
    """The rates of a notion.

    >>> [(rate.given, rate.positive) for rate in rates_of("equalised_odds", 2)]
    [(1, 1), (0, 1)]
    """
    positive = (1,) if classes == 2 else tuple(range(classes))
    return tuple(Rate(given, c) for given in find_notion(notion).given for c in positive)
