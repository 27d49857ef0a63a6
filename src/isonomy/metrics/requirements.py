"""Requirements such as `demographic_parity(sex) <= 0.05`: how they are read, and answered.

A requirement bounds one quantity of `isonomy.metrics.quantities`. Its answer is an interval that
the examples give, and on which side of the bound it lies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from isonomy.errors import ConfigError
from isonomy.metrics import bounds
from isonomy.metrics.counts import Counts
from isonomy.metrics.quantities import QUANTITIES, Cells, Quantity, Target, read_target

__all__ = [
    "LEVEL",
    "POWER",
    "QUANTITIES",
    "Answer",
    "Cells",
    "Quantity",
    "Requirement",
    "Target",
    "answers",
    "margin",
    "read_requirement",
    "read_target",
]

LEVEL = 0.95
POWER = 0.8  # with which a requirement that keeps its margin is met on the test examples

Status = Literal["met", "not met", "cannot be told"]


@dataclass(frozen=True)
class Requirement:
    """A bound on a quantity: at most `bound` if less of it is better, otherwise at least."""

    target: Target
    bound: float

    @property
    def text(self) -> str:
        """As it is written: `demographic_parity(sex) <= 0.05`."""
        return f"{self.target.text} {self.sign} {self.bound:g}"

    @property
    def sign(self) -> str:
        """The comparison, `<=` or `>=`."""
        return "<=" if self.target.quantity.better == "lower" else ">="

    def slack(self, value: float) -> float:
        """How far a value is on the right side of the bound; negative on the wrong side."""
        return self.bound - value if self.sign == "<=" else value - self.bound

    def holds(self, value: float) -> bool:
        """Whether a measured value meets the requirement; a value that is NaN does not."""
        return self.slack(value) >= 0


_FORM = re.compile(
    r"\s*(?P<name>[A-Za-z_]+)\s*(?:\(\s*(?P<attribute>.+?)\s*\))?\s*"
    r"(?P<sign><=|>=|<|>|≤|≥|=)\s*(?P<bound>\S+)\s*"
)
_EXAMPLE = "'demographic_parity(sex) <= 0.05' or 'worst_client_accuracy >= 0.75'"


def read_requirement(text: str, attributes: Sequence[str]) -> Requirement:
    """A requirement as it is written.

    >>> read_requirement("demographic_parity(sex) <= 0.05", ["sex", "race"]).bound
    0.05
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"requirement '{text}': write a quantity and a bound, e.g. {_EXAMPLE}.")
    given = match["name"] + (f"({match['attribute']})" if match["attribute"] else "")
    target = read_target(given, attributes)
    try:
        bound = float(match["bound"])
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(f"requirement '{text}': '{match['bound']}' is not a number.")
    if target.quantity.is_loss and not bound > 0:
        raise ConfigError(f"requirement '{text}': a loss is above 0; give a bound above 0.")
    if not target.quantity.is_loss and 1 < bound <= 100:
        raise ConfigError(
            f"requirement '{text}': {target.text} is a share between 0 and 1; write "
            f"{bound / 100:g} if {bound:g} % is meant."
        )
    if not target.quantity.is_loss and not 0 <= bound <= 1:
        raise ConfigError(f"requirement '{text}': give a bound between 0 and 1.")
    requirement = Requirement(target, bound)
    if match["sign"].replace("≤", "<=").replace("≥", ">=")[0] != requirement.sign[0]:
        word = "less" if requirement.sign == "<=" else "more"
        raise ConfigError(
            f"requirement '{text}': {word} {target.quantity.title} is better; write "
            f"'{requirement.text}'."
        )
    return requirement


# --- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What some examples say about a requirement.

    `low` and `high` are the ends of an interval; with several requirements, all intervals hold
    together at the stated `level`. `times` is how many times as many examples with the same rates
    would show on which side of the bound the value is, None if that is known, and infinity if it
    would take more than a million times as many. `unmeasured` names groups or clients without
    examples.
    """

    requirement: Requirement
    status: Status
    value: float
    low: float
    high: float
    level: float
    examples: int
    times: float | None = None
    unmeasured: tuple[str, ...] = ()


def answers(
    requirements: Sequence[Requirement],
    counts: Counts,
    clients: Sequence[str] = (),
    level: float = LEVEL,
) -> tuple[Answer, ...]:
    """The answer to each requirement; the intervals hold for all of them at once.

    Each end of each interval is missed with probability (1 - level) / (2 number of requirements) at
    most, so all hold together with probability `level`, and a requirement that is not fulfilled is
    called met with probability (1 - level) / 2 at most.
    """
    cells, alpha = Cells.of(counts), (1 - level) / (2 * max(len(requirements), 1))
    return tuple(_answer(one, cells, clients, alpha, level) for one in requirements)


def _answer(
    requirement: Requirement, cells: Cells, clients: Sequence[str], alpha: float, level: float
) -> Answer:
    target = requirement.target
    value = target.value(cells)
    low, high = target.limits(cells, alpha)
    missing = target.unmeasured(cells, clients)
    status = _status(requirement, low, high)
    if status == "met" and (missing or math.isnan(value)):
        status = "cannot be told"
    times = None
    if status == "cannot be told" and not missing:
        times = times_needed(requirement, cells, alpha)
    return Answer(
        requirement=requirement,
        status=status,
        value=value,
        low=low,
        high=high,
        level=level,
        examples=int(cells.source.sizes.sum()),
        times=times,
        unmeasured=missing,
    )


def _status(requirement: Requirement, low: float, high: float) -> Status:
    worst, best = (high, low) if requirement.sign == "<=" else (low, high)
    if requirement.holds(worst):
        return "met"
    return "cannot be told" if requirement.holds(best) else "not met"


def times_needed(requirement: Requirement, cells: Cells, alpha: float) -> float:
    """How many times as many examples with the same rates would decide; at least 1."""

    def decided(times: float) -> bool:
        ends = requirement.target.limits(cells.scaled(times), alpha)
        return _status(requirement, *ends) != "cannot be told"

    return bounds.times_needed(decided)


@dataclass(frozen=True)
class Prospect:
    """What validation examples say about the answer that test examples will give.

    `width` is that of the test interval, and `spread` the chance difference between the values on
    both sets, as a standard deviation. `room` is the distance of the bound from the best value that
    the quantity can have: an interval wider than that never shows that the bound is kept.
    """

    width: float
    spread: float
    room: float

    @property
    def margin(self) -> float:
        """The distance from the bound with which it is answered `met` with probability POWER."""
        return self.width + NormalDist().inv_cdf(POWER) * self.spread

    def chance(self, slack: float) -> float:
        """The probability of `met` for a value that is inside its bound by `slack`."""
        if not self.width <= self.room or math.isnan(slack):
            return 0.0
        distance = slack - self.width
        if not self.spread > 0:
            return float(distance >= 0)
        return NormalDist().cdf(distance / self.spread)


def prospect(requirement: Requirement, counts: Counts, times: float, number: int) -> Prospect:
    """What to expect on a test set of `times` as many examples, for one of `number` requirements.

    The chance difference is taken from the limits at 1 - POWER of both sets.
    """
    target, cells = requirement.target, Cells.of(counts)
    value, test = target.value(cells), cells.scaled(times)
    if math.isnan(value) or not times > 0:
        return Prospect(math.inf, math.inf, 0.0)
    side = 1 if requirement.sign == "<=" else 0
    width = abs(target.limits(test, (1 - LEVEL) / (2 * number))[side] - value)
    chance = [abs(target.limits(each, 1 - POWER)[side] - value) for each in (cells, test)]
    room = requirement.bound if side else 1 - requirement.bound
    return Prospect(width, math.hypot(*chance) / NormalDist().inv_cdf(POWER), room)


def margin(requirement: Requirement, counts: Counts, times: float, number: int) -> float:
    """How far a value on validation examples should be inside its bound, to be met on test too.

    A model whose validation value keeps this distance is expected to be answered `met` on a test
    set of `times` as many examples with probability `POWER`, for this one of `number` requirements.
    It is the width of the test interval, plus the chance difference between both sets.
    """
    return prospect(requirement, counts, times, number).margin
