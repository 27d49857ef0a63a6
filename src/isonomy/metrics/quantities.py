"""What a requirement can bound: quantities such as `demographic_parity(sex)`, and their limits.

They are computed from counts of predictions (`Counts`). All but the losses are made of proportions,
so they have confidence limits from the number of examples alone:

    one proportion              Clopper and Pearson's exact limits
    the least of proportions    the lower limit is the least of their lower limits, because the
                                least proportion is one of them; the upper limit is the least of
                                their upper limits, each at alpha / number of proportions
    the largest difference      limits of a difference of two proportions by the method of variance
                                estimates recovery (`bounds.difference_limits`); the upper limit is
                                the largest of all pairs', the lower limit that of the pairs at
                                alpha / (2 number of pairs)
    a mean of proportions       limits of a sum by the same method
    counts with noise           the limits above, at half of alpha, of the least favourable counts
                                that the noise allows: hits and misses, each beyond its noise with
                                a quarter of alpha (an eighth, where two proportions are compared)
    a mean loss                 limits from sums of losses, squares and cubes
                                (`isonomy.core.confidence`); they are approximate
    the largest of mean losses  as the least of proportions, with the ends exchanged

Clients and groups are the ones that are there, not a sample of others; what is uncertain is which
of their examples were drawn. A group or a client without examples cannot be measured: its
requirement is never met, and the answer names it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from isonomy.core import confidence
from isonomy.core.notions import NOTIONS
from isonomy.errors import ConfigError, unknown
from isonomy.metrics import bounds
from isonomy.metrics.client import Better
from isonomy.metrics.counts import Counts, Floats, tally_of, with_everyone
from isonomy.metrics.group import rate_counts

Whose = Literal["everyone", "groups", "clients", "groups in each client"]


@dataclass(frozen=True)
class Quantity:
    """What a requirement can bound. `whose` says what it compares; a notion needs an attribute."""

    name: str
    title: str
    better: Better
    whose: Whose
    rates: Literal["accuracy", "recall", "dp", "eo", "equalised_odds", "loss"]
    form: Literal["mean", "least", "difference", "largest"]

    @property
    def needs_attribute(self) -> bool:
        """Whether it compares the groups of a protected attribute."""
        return self.whose in ("groups", "groups in each client")

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss, which is no share and has no upper end."""
        return self.rates == "loss"


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
        Quantity("loss", "mean loss", "lower", "everyone", "loss", "mean"),
        Quantity(
            "worst_client_loss",
            "mean loss of the worst client",
            "lower",
            "clients",
            "loss",
            "largest",
        ),
        Quantity(
            "worst_group_loss", "mean loss of the worst group", "lower", "groups", "loss", "largest"
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
    times: float = 1.0  # how many times as many as were counted
    variance: Floats | None = None  # of the noise in the counts

    @classmethod
    def of(cls, counts: Counts) -> Cells:
        """The counts of every client."""
        noise = None if counts.noise is None else counts.noise.variance
        return cls(counts.counts.astype(np.float64), counts, variance=noise)

    def scaled(self, times: float) -> Cells:
        """So many times as many test examples with the same rates, and with the tests' noise."""
        noise = self.source.noise
        later = None if noise is None else noise.variance * noise.later
        return Cells(self.counts * times, self.source, self.times * times, later)

    @property
    def loss(self) -> Floats:
        """The sums of losses [clients, rows]."""
        found: Floats = self.times * self.source.loss.sum(-1)
        return found

    @property
    def powers(self) -> Floats:
        """The sums of squares and cubes of losses [clients, rows, 2]; NaN if not measured."""
        found = self.source.powers
        if found is None:
            return np.full((*self.counts.shape[:2], 2), np.nan)
        return self.times * found


class Family(NamedTuple):
    """Proportions that are compared with each other: numerators, denominators, and names.

    Of losses: their sums, their numbers, and the sums of their squares and cubes.
    """

    hits: Floats
    size: Floats
    names: tuple[str, ...]
    powers: Floats | None = None


class Box(NamedTuple):
    """Hits and misses of proportions, with the standard deviations of their noise."""

    hits: Floats
    misses: Floats
    hit_noise: Floats
    miss_noise: Floats

    def worst(self, alpha: float, numbers: int, *, more: bool) -> tuple[Floats, Floats]:
        """Hits and sizes that are at least (`more`) or at most as favourable as the true ones.

        With probability 1 - `alpha`, for proportions that depend on so many noisy numbers.
        """
        beyond = -NormalDist().inv_cdf(alpha / numbers) * (1 if more else -1)
        hits = np.maximum(self.hits + beyond * self.hit_noise, 0.0)
        misses = np.maximum(self.misses - beyond * self.miss_noise, 0.0)
        return hits, hits + misses


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
        if self.quantity.is_loss:
            return [self._of_losses(cells, names)]
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

    def _of_losses(self, cells: Cells, clients: tuple[str, ...]) -> Family:
        size, loss, powers = cells.counts.sum((-2, -1)), cells.loss, cells.powers
        if self.quantity.whose == "clients":
            return Family(loss[:, 0], size[:, 0], clients, powers[:, 0])
        at = slice(0, 1)
        names: tuple[str, ...] = ("all examples",)
        if self.quantity.whose == "groups":
            at = cells.source.rows(self.attribute)
            names = next(a.levels for a in cells.source.attributes if a.name == self.attribute)
        return Family(loss.sum(0)[at], size.sum(0)[at], tuple(names), powers.sum(0)[at])

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
            if cells.variance is not None:
                rate = rate.clip(0, 1)
            if self.quantity.form == "largest":
                found += [float(rate.max())] if len(rate) else []
            elif self.quantity.form == "difference":
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
        if self.quantity.is_loss:
            return _loss_limits(self.families(cells)[0], alpha)
        if cells.variance is not None:
            return self._noisy_limits(cells, alpha)
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

    def _boxes(self, cells: Cells) -> list[Box]:
        """The proportions of each family with their noise."""
        assert cells.variance is not None
        spread = self.families(cells._replace(counts=cells.variance, variance=None))
        out = []
        for family, noise in zip(self.families(cells), spread, strict=True):
            missed = np.maximum(noise.size - noise.hits, 0.0)
            out.append(
                Box(family.hits, family.size - family.hits, np.sqrt(noise.hits), np.sqrt(missed))
            )
        return out

    def _noisy_limits(self, cells: Cells, alpha: float) -> tuple[float, float]:
        """Limits from noisy counts: half of alpha for the noise, half for the examples.

        The limits of exact counts rise with every hit and fall with every miss, so those of the
        least favourable counts within the noise are limits too.
        """
        boxes = [box for box in self._boxes(cells) if len(box.hits) >= self._fewest]
        lows, highs, half = [], [], alpha / 2
        for box in boxes:
            number = len(box.hits)
            if self.quantity.form == "difference":
                low, high = _noisy_difference(box, half, len(boxes))
            elif self.quantity.form == "least":
                low = float(bounds.exact(*box.worst(half, 2, more=False), half)[0].min())
                each = half / number
                high = float(bounds.exact(*box.worst(each, 2, more=True), each)[1].min())
            else:
                low = _mean(*box.worst(half, 2 * number, more=False), half)[0]
                high = _mean(*box.worst(half, 2 * number, more=True), half)[1]
            lows.append(low)
            highs.append(high)
        if not boxes:
            return (0.0, 1.0)
        return max(lows), max(highs)

    @property
    def _fewest(self) -> int:
        return 2 if self.quantity.form == "difference" else 1

    def unmeasured(self, cells: Cells, clients: Sequence[str] = ()) -> tuple[str, ...]:
        """The groups or clients that the quantity compares and that have no examples."""
        found = []
        for family in self.families(cells, clients):
            found += [n for n, size in zip(family.names, family.size, strict=True) if not size > 0]
        return tuple(dict.fromkeys(found))


def _loss_limits(family: Family, alpha: float) -> tuple[float, float]:
    """Limits of the largest of some mean losses; (0, inf) with too few examples."""
    known = family.size > 0
    if not known.any() or family.powers is None:
        return 0.0, math.inf
    sums = [family.size[known], family.hits[known], *family.powers[known].T]
    count, loss, squares, cubes = (torch.from_numpy(np.ascontiguousarray(each)) for each in sums)
    high = max(end for _, end in confidence.limits(count, loss, squares, cubes, alpha))
    each = alpha / int(known.sum())
    low = max(end for end, _ in confidence.limits(count, loss, squares, cubes, each))
    return low, high


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


def _noisy_difference(box: Box, alpha: float, families: int) -> tuple[float, float]:
    """Limits of the largest difference between two of these proportions, from noisy counts."""
    first, second = np.triu_indices(len(box.hits), 1)

    def ends(each: float) -> tuple[Floats, Floats]:
        """The limits of every difference, each end missed with `each` by noise and by chance."""
        up, down = box.worst(each, 4, more=True), box.worst(each, 4, more=False)
        low = _difference(down, first, up, second, each)[0]
        return low, _difference(up, first, down, second, each)[1]

    low, high = ends(alpha)
    top = float(np.maximum(high, -low).max())
    low, high = ends(alpha / (2 * len(first) * families))
    return max(0.0, float(np.maximum(low, -high).max())), min(1.0, top)


def _difference(
    one: tuple[Floats, Floats], first: Any, other: tuple[Floats, Floats], second: Any, alpha: float
) -> tuple[Floats, Floats]:
    """Limits of differences of proportions; from -1 to 1 where nothing may be left of one."""
    pair = (one[0][first], one[1][first], other[0][second], other[1][second])
    low, high = bounds.difference_limits(*pair, alpha)
    return np.nan_to_num(low, nan=-1.0), np.nan_to_num(high, nan=1.0)


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


def read_target(text: str, attributes: Sequence[str]) -> Target:
    """A quantity as it is written, e.g. `accuracy` or `demographic_parity(sex)`.

    The attribute may be left out if the data have only one.

    >>> read_target("equal_opportunity", ["sex"]).text
    'equal_opportunity(sex)'
    """
    name, _, rest = text.strip().partition("(")
    name, attribute = name.strip(), rest.strip().removesuffix(")").strip()
    if name == "epsilon":
        raise ConfigError(
            "epsilon is not measured on examples; it can be required, as in epsilon <= 4, but not "
            "maximised or minimised."
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
