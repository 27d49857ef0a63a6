"""What the warning rules work with, and the texts they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isonomy.core.examples import SPLITS, Split
from isonomy.data.profile.description import Groups
from isonomy.data.profile.leakage import Leak
from isonomy.data.profile.measures import Association, Distances
from isonomy.data.profile.outlier_tests import Finding, Shift
from isonomy.data.profile.statistics import ClientStatistics, Integers

SHIFT = 0.05  # mean total variation beyond chance
SURE = 0.001  # p-value
NAMED = 3  # clients or groups that a warning names; the others are only counted


@dataclass(frozen=True)
class Findings:
    """Everything that the warning rules use."""

    statistics: ClientStatistics
    names: Sequence[str]
    labels: Sequence[str]
    groups: Sequence[Groups]
    columns: Sequence[str]
    evaluated: Split
    label: tuple[Distances, Association]
    group: Sequence[tuple[Distances, Association]]
    moved: Shift
    moved_given_label: Shift
    related: Shift
    loading_warnings: Sequence[str]  # of the data set's loader

    @property
    def test(self) -> Integers:
        """The number of evaluated rows of each client and label [K, L]."""
        out: Integers = self.statistics.labels[:, SPLITS.index(self.evaluated)]
        return out


def differing_shares(
    at: Findings, distances: Distances, tied: Association, counts: Integers, levels: Sequence[str]
) -> str:
    """Describe how much shares differ and where most; empty if little or by chance."""
    far, chance = distances.variation, distances.chance
    mean, usual = float(np.nanmean(far)), float(np.nanmean(chance))
    if tied.p > SURE or mean - usual < SHIFT:
        return ""
    most = int(np.nanargmax(far - chance))
    level = int((counts[most] / counts[most].sum() - counts.sum(0) / counts.sum()).argmax())
    own, whole = counts[most, level] / counts[most].sum(), counts[:, level].sum() / counts.sum()
    return (
        f"the mean total variation distance to the overall shares is {mean:.2f} ({usual:.2f} by "
        f"chance), the largest is at {at.names[most]} with {percent(own)} {levels[level]} instead "
        f"of {percent(whole)} overall"
    )


def mixed_groups(at: Findings) -> Iterator[tuple[Groups, str]]:
    """Yield the attributes whose group shares differ between clients, and how."""
    for groups, (far, tied) in zip(at.groups, at.group, strict=True):
        levels = [f"{groups.name} {level}" for level in groups.levels]
        text = differing_shares(at, far, tied, groups.counts[:, 0].sum(1), levels)
        if text:
            yield groups, text


def relation_text(at: Findings, one: Finding) -> str:
    """Describe the relation of a feature to the label at a client and at other clients."""
    name, who = at.columns[one.column], at.names[one.client]
    if one.labels is None:
        return (
            f"the slope of the target on '{name}' (both in sd) is {one.own:+.2f} at {who} and "
            f"{one.others:+.2f} at other clients"
        )
    low, high = (at.labels[label] for label in one.labels)
    return (
        f"'{name}' is {difference_text(at, one, one.own)} among '{high}' than among '{low}' at "
        f"{who}, and {difference_text(at, one, one.others)} at other clients"
    )


def difference_text(at: Findings, one: Finding, value: float) -> str:
    """Describe a difference of means: percentage points of an indicator, else in sd."""
    if at.statistics.between[one.column] == 0:
        points = f"{abs(100 * value):.0f}"
        many = "" if points == "1" else "s"
        return f"{points} percentage point{many} {'more' if value > 0 else 'less'} common"
    unit = abs((one.own - one.others) / one.effect)
    return f"{abs(value / unit):.1f} sd {'higher' if value > 0 else 'lower'}"


def is_reversed(one: Finding) -> bool:
    """Whether a relation has the opposite sign and neither value is near zero."""
    unit = abs((one.own - one.others) / one.effect)
    return one.reversed and min(abs(one.own), abs(one.others)) >= 0.2 * unit


def count_clients(at: Findings, which: Sequence[int] | Integers, verb: str = "") -> str:
    """Return the number of clients and a few names: '3 of 10 clients (a, b, c) have'."""
    names = shortened([at.names[int(k)] for k in which])
    text = f"{len(which)} of {len(at.names)} clients ({names})"
    return f"{verb} {text}" if verb else f"{text} {'has' if len(which) == 1 else 'have'}"


def indicator_text(at: Findings, one: Leak) -> str:
    """Return the name of an indicator, and its value if that is 0."""
    name = at.columns[one.column]
    return f"'{name}'" if one.value else f"'{name}' = 0"


def shortened(items: Sequence[str], most: int = NAMED) -> str:
    """Return the first items and the number of others.

    >>> shortened(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    rest = len(items) - most
    if rest == 1:
        most, rest = most + 1, 0
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")


def percent(share: float) -> str:
    """Return a share in percent, with enough digits that it is not rounded to 0 or 100.

    >>> percent(0.613), percent(0.9996), percent(0.012)
    ('61 %', '99.96 %', '1.2 %')
    """
    at = 100 * float(share)
    for digits in (0, 1, 2):
        text = f"{at:.{digits}f}"
        if at in (0, 100) or (0 < float(text) < 100 and (digits or at >= 10 or at < 0)):
            return f"{text} %"
    return f"{at:.3g} %"
