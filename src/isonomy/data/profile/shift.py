"""Whether features, or their relation to the label, differ between clients beyond chance.

Three questions, from the weakest to the strongest:

- `moved`: do the means of features differ? Different shares of labels alone make them differ.
- `moved_given_label`: do they differ among rows with the same label? Label shift does not do that.
- `related`: does the difference between the means of two classes differ? Neither label shift nor
  an offset that a client adds to all its rows does that. For regression: the slope.

The last is what a change of the relation of features to the label looks like in sums. It is not
the only thing that looks so: where a client sees another range of people under the same rule,
differences of class means change too. Sums alone do not tell the two apart.

What is compared is in `estimates`, how in `against`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from isonomy.data.profile.estimates import (
    LEAST_ROWS,
    TINY,
    Cells,
    Estimates,
    cells,
    contrasts,
    has_enough,
    offsets,
    slope,
)
from isonomy.data.profile.outlier_tests import (
    Comparison,
    Shift,
    compare,
    conclude,
    nothing,
    number_of_tests,
    settled,
    together,
)
from isonomy.data.profile.statistics import Integers, Mask, Portrait, Reals

MOST_PAIRS = 66  # of classes: all pairs of 12


def moved(portrait: Portrait, without: Mask | None = None) -> Shift:
    """Differences of features' means between clients, whatever explains them.

    Features in `without` [features] are not looked at.
    """
    return _ask(_features(portrait, without, together=True))


def moved_given_label(portrait: Portrait, without: Mask | None = None) -> Shift:
    """Differences of features' means among rows with the same label, averaged over labels."""
    return _ask(_features(portrait, without, together=False))


def _features(portrait: Portrait, without: Mask | None, together: bool) -> Cells:
    """Cells of the features alone, of all labels together or of each."""
    width = len(portrait.shape.features)
    parts = [portrait.first, portrait.second, portrait.third, portrait.fourth]
    parts = [at[..., :width] for at in parts]
    rows = portrait.rows
    if together:
        parts = [at.sum(-2, keepdims=True) for at in parts]
        rows = rows.sum(1, keepdims=True)
    at = cells(rows, *parts)
    return at if without is None else replace(at, unit=np.where(without, 0.0, at.unit))


def related(portrait: Portrait) -> Shift:
    """Differences in how features, and groups, go with the label."""
    if portrait.shape.regression:
        return _slopes(portrait)
    at = cells(portrait.rows, portrait.first, portrait.second, portrait.third, portrait.fourth)
    pairs = held_pairs(portrait.rows)
    if not pairs:
        return nothing(len(portrait.rows))
    tests = sum(number_of_tests(has_enough(at.rows, pair), at.unit) for pair in pairs)

    def test(apart: Mask) -> Shift:
        parts = []
        for pair in pairs:
            apiece, weight, enough = contrasts(at, pair)
            found = compare(apiece, np.where(apart, 0.0, weight), enough, at.unit)
            parts.append(conclude(found, enough, tests, pair))
        return together(parts)

    return settled(test, len(at.rows))


def _ask(at: Cells) -> Shift:
    apiece, weight, enough = offsets(at)
    if enough.sum() < 2 or not (at.unit > 0).any():
        return nothing(len(enough))
    tests = number_of_tests(enough, at.unit)

    def test(apart: Mask) -> Shift:
        found = compare(apiece, np.where(apart, 0.0, weight), enough, at.unit)
        return conclude(found, enough, tests)

    return settled(test, len(enough))


def held_pairs(rows: Integers) -> list[tuple[int, int]]:
    """The pairs of classes that two clients or more hold enough of; the commonest of many."""
    enough = (rows >= LEAST_ROWS).astype(np.int64)
    both = enough.T @ enough
    pairs = [(a, b) for a, b in combinations(range(rows.shape[1]), 2) if both[a, b] > 1]
    return sorted(sorted(pairs, key=lambda pair: -both[pair])[:MOST_PAIRS])


def _slopes(portrait: Portrait) -> Shift:
    """For regression: the slopes of y on each feature and of each feature on y.

    Other features at a client change the second, other targets the first; a client is named only
    where both differ the same way, so neither explains it alone.
    """
    n = portrait.rows.sum(1).astype(np.float64)
    width = len(portrait.shape.features)
    x1, x2 = portrait.first[:, 0, :width], portrait.second[:, 0, :width]
    y1, y2 = portrait.target[:, :1], portrait.target[:, 1:]
    size = n[:, None]
    xx = np.maximum(x2 - x1**2 / size, 0.0)
    yy = np.broadcast_to(np.maximum(y2 - y1**2 / size, 0.0), xx.shape)
    xy = portrait.cross[:, :width] - x1 * y1 / size
    enough: Mask = n >= 2 * LEAST_ROWS
    if enough.sum() < 2 or not (yy > 0).any():
        return nothing(len(n))
    freedom = np.maximum(size - 1, 0).sum()
    sd_x, sd_y = (np.sqrt(at.sum(0) / freedom) for at in (xx, yy))
    alive = (sd_x > 0) & (xx.sum(0) > TINY**2 * x2.sum(0))
    sd_x = np.where(alive, sd_x, 1.0)
    forward = slope(xy / (sd_x * sd_y), xx / sd_x**2, yy / sd_y**2, n, enough)
    inverse = slope(xy / (sd_x * sd_y), yy / sd_y**2, xx / sd_x**2, n, enough)

    def test(apart: Mask) -> Shift:
        return conclude(_both(forward, inverse, apart, enough, alive), enough, tests)

    tests = number_of_tests(enough, alive)
    return settled(test, len(n))


def _both(
    forward: tuple[Estimates, Reals],
    inverse: tuple[Estimates, Reals],
    apart: Mask,
    enough: Mask,
    alive: Mask,
) -> Comparison:
    """What holds of the slopes in both directions."""
    one, two = (
        compare(at, np.where(apart[:, None], 0.0, weight), enough, alive.astype(np.float64))
        for at, weight in (forward, inverse)
    )
    smaller = np.where(np.abs(one.effect) < np.abs(two.effect), one.effect, two.effect)
    return Comparison(
        own=one.own,
        others=one.others,
        effect=np.where(one.effect * two.effect > 0, smaller, 0.0),
        p=np.maximum(one.p, two.p),
        spread=np.minimum(one.spread, two.spread),
        chance=np.maximum(one.chance, two.chance),
    )
