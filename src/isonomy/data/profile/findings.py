"""What the rules look at, and the words they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isonomy.core.examples import SPLITS, Split
from isonomy.data.profile.description import Groups
from isonomy.data.profile.leakage import Tell
from isonomy.data.profile.measures import Association, Distances
from isonomy.data.profile.outlier_tests import Finding, Shift
from isonomy.data.profile.statistics import Integers, Portrait

SHIFT = 0.05  # mean total variation beyond chance
SURE = 0.001  # p-value
NAMED = 3  # clients or groups named before the rest are only counted


@dataclass(frozen=True)
class Found:
    """All that the rules look at."""

    portrait: Portrait
    names: Sequence[str]
    labels: Sequence[str]
    groups: Sequence[Groups]
    columns: Sequence[str]
    evaluated: Split
    label: tuple[Distances, Association]
    group: Sequence[tuple[Distances, Association]]
    moved: Shift
    given: Shift
    related: Shift
    told: Sequence[str]  # by whoever loaded the data

    @property
    def test(self) -> Integers:
        """Rows of each client and label that are measured on [K, L]."""
        out: Integers = self.portrait.labels[:, SPLITS.index(self.evaluated)]
        return out


def differing_shares(
    at: Found, distances: Distances, tied: Association, counts: Integers, levels: Sequence[str]
) -> str:
    """How much shares differ and where most; nothing when chance or little."""
    far, chance = distances.variation, distances.chance
    mean, usual = float(np.nanmean(far)), float(np.nanmean(chance))
    if tied.p > SURE or mean - usual < SHIFT:
        return ""
    most = int(np.nanargmax(far - chance))
    level = int((counts[most] / counts[most].sum() - counts.sum(0) / counts.sum()).argmax())
    own, whole = counts[most, level] / counts[most].sum(), counts[:, level].sum() / counts.sum()
    return (
        f"they are {mean:.2f} from the whole's on average (total variation; {usual:.2f} would be "
        f"chance), most at {at.names[most]} with {percent(own)} {levels[level]} against "
        f"{percent(whole)} in all"
    )


def mixed_groups(at: Found) -> Iterator[tuple[Groups, str]]:
    """The attributes whose groups are mixed differently, and how."""
    for groups, (far, tied) in zip(at.groups, at.group, strict=True):
        levels = [f"{groups.name} {level}" for level in groups.levels]
        text = differing_shares(at, far, tied, groups.counts[:, 0].sum(1), levels)
        if text:
            yield groups, text


def relation(at: Found, one: Finding) -> str:
    """How a feature goes with the label at a client, and elsewhere."""
    name, who = at.columns[one.column], at.names[one.client]
    if one.labels is None:
        return (
            f"the slope of the target on '{name}' (both in sd) is {one.own:+.2f} at {who} and "
            f"{one.others:+.2f} elsewhere"
        )
    low, high = (at.labels[label] for label in one.labels)
    return (
        f"'{name}' is {in_words(at, one, one.own)} among '{high}' than among '{low}' at {who}, and "
        f"{in_words(at, one, one.others)} elsewhere"
    )


def in_words(at: Found, one: Finding, value: float) -> str:
    """A difference of means in words: points of an indicator, standard deviations of others."""
    if at.portrait.between[one.column] == 0:
        points = f"{abs(100 * value):.0f}"
        many = "" if points == "1" else "s"
        return f"{points} point{many} {'more common' if value > 0 else 'rarer'}"
    unit = abs((one.own - one.others) / one.effect)
    return f"{abs(value / unit):.1f} sd {'higher' if value > 0 else 'lower'}"


def turned_round(one: Finding) -> bool:
    """Reversed, and neither side near zero."""
    unit = abs((one.own - one.others) / one.effect)
    return one.reversed and min(abs(one.own), abs(one.others)) >= 0.2 * unit


def counted(at: Found, which: Sequence[int] | Integers, verb: str = "") -> str:
    """How many clients and a few of their names: '3 of 10 clients (a, b, c) have'."""
    said = f"{len(which)} of {len(at.names)} clients ({some([at.names[int(k)] for k in which])})"
    return f"{verb} {said}" if verb else f"{said} {'has' if len(which) == 1 else 'have'}"


def valued(at: Found, one: Tell) -> str:
    """An indicator and the value that tells."""
    name = at.columns[one.column]
    return f"'{name}'" if one.value else f"'{name}' at 0"


def some(items: Sequence[str], most: int = NAMED) -> str:
    """A few, and how many more.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    rest = len(items) - most
    if rest == 1:
        most, rest = most + 1, 0
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")


def percent(share: float) -> str:
    """With as many digits as keep it from 0 and from 100.

    >>> percent(0.613), percent(0.9996), percent(0.012)
    ('61 %', '99.96 %', '1.2 %')
    """
    at = 100 * float(share)
    for digits in (0, 1, 2):
        said = f"{at:.{digits}f}"
        if at in (0, 100) or (0 < float(said) < 100 and (digits or at >= 10 or at < 0)):
            return f"{said} %"
    return f"{at:.3g} %"
