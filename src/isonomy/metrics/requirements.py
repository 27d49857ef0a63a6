"""Requirements such as `demographic_parity(sex) <= 0.05`: how they are read, measured and tested.

A requirement bounds one quantity, which is computed from counts of predictions (`Counts`). Every
quantity is made of proportions, so it has confidence limits from the number of examples alone:

    one proportion              Clopper and Pearson's exact limits
    the least of proportions    the lower limit is the least of their lower limits, because the
                                least proportion is one of them; the upper limit is the least of
                                their upper limits, each at alpha / number of proportions
    the largest difference      limits of a difference of two proportions by the method of variance
                                estimates recovery (`bounds.difference_limits`); the upper limit is
                                the largest of all pairs', the lower limit that of the pairs at
                                alpha / (2 number of pairs)
    a mean of proportions       limits of a sum by the same method

Clients and groups are the ones that are there, not a sample of others; what is uncertain is which
of their examples were drawn. A group or a client without examples cannot be measured: its
requirement is never met, and the answer names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from isonomy.core.notions import NOTIONS
from isonomy.errors import ConfigError, unknown
from isonomy.metrics import bounds
from isonomy.metrics.client import Better
from isonomy.metrics.counts import Counts, Floats, tally_of, with_everyone
from isonomy.metrics.group import rate_counts

LEVEL = 0.95

Status = Literal["met", "not met", "cannot be told"]
Whose = Literal["everyone", "groups", "clients", "groups in each client"]


@dataclass(frozen=True)
class Quantity:
    """What a requirement can bound. `whose` says what it compares; a notion needs an attribute."""

    name: str
    title: str
    better: Better
    whose: Whose
    rates: Literal["accuracy", "recall", "dp", "eo", "equalised_odds"]
    form: Literal["mean", "least", "difference"]

    @property
    def needs_attribute(self) -> bool:
        """Whether it compares the groups of a protected attribute."""
        return self.whose in ("groups", "groups in each client")


def _quantities() -> dict[str, Quantity]:
    found = [
        Quantity("accuracy", "accuracy", "higher", "everyone", "accuracy", "mean"),
        Quantity("balanced_accuracy", "balanced accuracy", "higher", "everyone", "recall", "mean"),
        Quantity(
            "worst_client_accuracy",
            "accuracy of the worst client",
            "higher",
            "clients",
            "accuracy",
            "least",
        ),
        Quantity(
            "client_accuracy_gap",
            "difference in accuracy between clients",
            "lower",
            "clients",
            "accuracy",
            "difference",
        ),
        Quantity(
            "worst_group_accuracy",
            "accuracy of the worst group",
            "higher",
            "groups",
            "accuracy",
            "least",
        ),
        Quantity(
            "accuracy_gap",
            "difference in accuracy between groups",
            "lower",
            "groups",
            "accuracy",
            "difference",
        ),
    ]
    for notion in NOTIONS.values():
        rates: Literal["dp", "eo", "equalised_odds"] = notion.code  # type: ignore[assignment]
        found.append(
            Quantity(notion.name, f"{notion.title} gap", "lower", "groups", rates, "difference")
        )
        found.append(
            Quantity(
                f"worst_client_{notion.name}",
                f"{notion.title} gap inside the worst client",
                "lower",
                "groups in each client",
                rates,
                "difference",
            )
        )
    return {each.name: each for each in found}


QUANTITIES: dict[str, Quantity] = _quantities()
"""Every quantity that a requirement can bound, or that can be maximised or minimised."""


class Cells(NamedTuple):
    """Counts [clients, rows, classes, classes] that may be scaled to another number of examples."""

    counts: Floats
    source: Counts

    @classmethod
    def of(cls, counts: Counts) -> Cells:
        """The counts of every client."""
        return cls(counts.counts.astype(np.float64), counts)

    def scaled(self, times: float) -> Cells:
        """So many times as many examples with the same rates."""
        return Cells(self.counts * times, self.source)


class Family(NamedTuple):
    """Proportions that are compared with each other: numerators, denominators, and names."""

    hits: Floats
    size: Floats
    names: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """A quantity, and the protected attribute whose groups it compares (empty without one)."""

    quantity: Quantity
    attribute: str = ""

    @property
    def text(self) -> str:
        """As it is written: `accuracy`, `demographic_parity(sex)`."""
        return f"{self.quantity.name}({self.attribute})" if self.attribute else self.quantity.name

    @property
    def title(self) -> str:
        """In words."""
        between = f" between the groups of {self.attribute}" if self.attribute else ""
        return f"{self.quantity.title}{between}"

    def families(self, cells: Cells, clients: Sequence[str] = ()) -> list[Family]:
        """The proportions that the quantity is made of; each family is compared in itself."""
        source = cells.source
        names = tuple(clients) or tuple(str(k) for k in range(len(source)))
        zeros = np.zeros(cells.counts.shape[:-1])
        if self.quantity.whose == "everyone":
            tally = tally_of(cells.counts.sum(0)[:1], zeros[0][:1])
            if self.quantity.rates == "accuracy":
                return [Family(tally.hit.sum(-1), tally.size, ("all examples",))]
            labels = tuple(f"label {c}" for c in range(tally.classes))
            return [Family(tally.hit[0], tally.label[0], labels)]
        if self.quantity.whose == "clients":
            tally = tally_of(cells.counts[:, 0], zeros[:, 0])
            return [Family(tally.hit.sum(-1), tally.size, names)]
        at = with_everyone(source.rows(self.attribute))
        levels = next(a.levels for a in source.attributes if a.name == self.attribute)
        if self.quantity.whose == "groups":
            return self._of_groups(cells.counts.sum(0)[at], tuple(levels))
        out: list[Family] = []
        for k, name in enumerate(names):
            here = tuple(f"{level} at {name}" for level in levels)
            out += self._of_groups(cells.counts[k][at], here)
        return out

    def _of_groups(self, counts: Floats, names: tuple[str, ...]) -> list[Family]:
        tally = tally_of(counts, np.zeros(counts.shape[:-1]))
        if self.quantity.rates == "accuracy":
            return [Family(tally.hit.sum(-1)[1:], tally.size[1:], names)]
        out = []
        for label in NOTIONS[self.quantity.rates].given:
            above, below = rate_counts(tally, label)
            out += [Family(above[1:, c], below[1:, c], names) for c in range(above.shape[-1])]
        return out

    def value(self, cells: Cells) -> float:
        """The measured value; NaN if nothing can be measured."""
        found = []
        for family in self.families(cells):
            known = family.size > 0
            rate = family.hits[known] / family.size[known]
            if self.quantity.form == "difference":
                if len(rate) > 1:
                    found.append(float(rate.max() - rate.min()))
            elif len(rate):
                found.append(float(rate.mean() if self.quantity.form == "mean" else rate.min()))
        if not found:
            return math.nan
        return min(found) if self.quantity.form == "least" else max(found)

    def limits(self, cells: Cells, alpha: float) -> tuple[float, float]:
        """Limits below and above which the true value lies with probability `alpha` each, at most.

        Parts that cannot be measured are left out; `unmeasured` names them.
        """
        lows, highs = [], []
        families = [f for f in self.families(cells) if (f.size > 0).sum() >= self._fewest]
        for family in families:
            known = family.size > 0
            count, size = family.hits[known], family.size[known]
            if self.quantity.form == "difference":
                low, high = _largest_difference(count, size, alpha, len(families))
            elif self.quantity.form == "least":
                low = float(bounds.exact(count, size, alpha)[0].min())
                high = float(bounds.exact(count, size, alpha / len(count))[1].min())
            else:
                low, high = _mean(count, size, alpha)
            lows.append(low)
            highs.append(high)
        if not families:
            return (0.0, 1.0)
        return max(lows), max(highs)  # one family, or the largest difference of several

    @property
    def _fewest(self) -> int:
        return 2 if self.quantity.form == "difference" else 1

    def unmeasured(self, cells: Cells, clients: Sequence[str] = ()) -> tuple[str, ...]:
        """The groups or clients that the quantity compares and that have no examples."""
        found = []
        for family in self.families(cells, clients):
            found += [n for n, size in zip(family.names, family.size, strict=True) if not size > 0]
        return tuple(dict.fromkeys(found))


def _largest_difference(
    count: Floats, size: Floats, alpha: float, families: int
) -> tuple[float, float]:
    """Limits of the largest difference between two of these proportions."""
    first, second = np.triu_indices(len(count), 1)
    pair = (count[first], size[first], count[second], size[second])
    low, high = bounds.difference_limits(*pair, alpha)
    top = float(np.maximum(high, -low).max())
    # a difference may be overstated on either side of zero
    low, high = bounds.difference_limits(*pair, alpha / (2 * len(first) * families))
    return max(0.0, float(np.maximum(low, -high).max())), min(1.0, top)


def _mean(count: Floats, size: Floats, alpha: float) -> tuple[float, float]:
    """Limits of the mean of proportions; exact for one proportion."""
    if len(count) == 1:
        low, high = bounds.exact(count, size, alpha)
        return float(low[0]), float(high[0])
    rate = count / size
    low, high = bounds.exact(count, size, alpha / 2)  # as in bounds.difference_limits
    middle, n = float(rate.mean()), len(rate)
    below = float(np.sqrt(((rate - low) ** 2).sum())) / n
    above = float(np.sqrt(((high - rate) ** 2).sum())) / n
    return max(0.0, middle - below), min(1.0, middle + above)


# --- requirements --------------------------------------------------------------------------------


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


def read_target(text: str, attributes: Sequence[str]) -> Target:
    """A quantity as it is written, e.g. `accuracy` or `demographic_parity(sex)`.

    The attribute may be left out if the data have only one.

    >>> read_target("equal_opportunity", ["sex"]).text
    'equal_opportunity(sex)'
    """
    name, _, rest = text.strip().partition("(")
    name, attribute = name.strip(), rest.rstrip(") ").strip()
    if name == "epsilon":
        raise ConfigError(
            "epsilon: this version trains without differential privacy, so no bound on epsilon can "
            "be met; leave the requirement out."
        )
    if name not in QUANTITIES:
        raise ConfigError(unknown("quantity", name, QUANTITIES))
    quantity = QUANTITIES[name]
    if not quantity.needs_attribute:
        if attribute:
            raise ConfigError(f"{name}({attribute}): {name} has no attribute; write {name}.")
        return Target(quantity)
    if not attributes:
        raise ConfigError(
            f"{name} compares groups, but the data have no protected attribute; name one in "
            "data.protected."
        )
    if not attribute and len(attributes) > 1:
        raise ConfigError(
            f"{name}: the data have {len(attributes)} protected attributes; write one of "
            f"{', '.join(f'{name}({each})' for each in attributes)}."
        )
    attribute = attribute or attributes[0]
    if attribute not in attributes:
        raise ConfigError(f"{name}: {unknown('protected attribute', attribute, attributes)}")
    return Target(quantity, attribute)


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
    if 1 < bound <= 100:
        raise ConfigError(
            f"requirement '{text}': {target.text} is a share between 0 and 1; write "
            f"{bound / 100:g} if {bound:g} % is meant."
        )
    if not 0 <= bound <= 1:
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


def margin(requirement: Requirement, counts: Counts, times: float, number: int) -> float:
    """How far a value on validation examples should be inside its bound, to be met on test too.

    A model whose validation value keeps this distance is expected to be answered `met` on a test
    set of `times` as many examples with probability `POWER`, for this one of `number` requirements.
    It is the width of the test interval, plus the chance difference between both sets.
    """
    target, cells = requirement.target, Cells.of(counts)
    value, test = target.value(cells), cells.scaled(times)
    if math.isnan(value) or not times > 0:
        return math.inf
    side = 1 if requirement.sign == "<=" else 0
    width = abs(target.limits(test, (1 - LEVEL) / (2 * number))[side] - value)
    chance = [abs(target.limits(each, 1 - POWER)[side] - value) for each in (cells, test)]
    return width + math.hypot(*chance)


POWER = 0.8
