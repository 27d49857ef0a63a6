"""Test whether features, or their relation to the label, differ between clients beyond chance.

There are three questions, from the weakest to the strongest:

- `moved`: do the means of features differ? Different shares of labels are enough for that.
- `moved_given_label`: do they differ among rows with the same label? Label shift cannot cause that.
- `related`: does the difference between the means of two classes differ? Neither label shift nor
  an offset that a client adds to all its rows can cause that. For regression: the slope.

The last is how a changed relation between features and label shows in sums. It is not the only
possible cause: if a client has a different range of people under the same rule, the differences of
class means change too. Sums alone cannot distinguish the two.

`estimates` computes what is compared, `outlier_tests` compares it.
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
    combine,
    compare,
    conclude,
    no_shift,
    number_of_tests,
    repeat_without_outliers,
)
from isonomy.data.profile.statistics import ClientStatistics, Integers, Mask, Reals

MOST_PAIRS = 66  # of classes: all pairs of 12


def moved(statistics: ClientStatistics, without: Mask | None = None) -> Shift:
    """Test for differences of features' means between clients, whatever their cause.

    Features in `without` [features] are not tested.
    """
    return _test_offsets(_features(statistics, without, together=True))


def moved_given_label(statistics: ClientStatistics, without: Mask | None = None) -> Shift:
    """Test for differences of features' means among rows with the same label."""
    return _test_offsets(_features(statistics, without, together=False))


def _features(statistics: ClientStatistics, without: Mask | None, together: bool) -> Cells:
    """Return the cells of the features, for all labels together or for each label."""
    width = len(statistics.shape.features)
    parts = [statistics.first, statistics.second, statistics.third, statistics.fourth]
    parts = [at[..., :width] for at in parts]
    rows = statistics.rows
    if together:
        parts = [at.sum(-2, keepdims=True) for at in parts]
        rows = rows.sum(1, keepdims=True)
    at = cells(rows, *parts)
    return at if without is None else replace(at, unit=np.where(without, 0.0, at.unit))


def related(statistics: ClientStatistics) -> Shift:
    """Test for differences in the relation of features, and groups, to the label."""
    if statistics.shape.regression:
        return _slopes(statistics)
    at = cells(
        statistics.rows, statistics.first, statistics.second, statistics.third, statistics.fourth
    )
    pairs = held_pairs(statistics.rows)
    if not pairs:
        return no_shift(len(statistics.rows))
    tests = sum(number_of_tests(has_enough(at.rows, pair), at.unit) for pair in pairs)

    def test(apart: Mask) -> Shift:
        parts = []
        for pair in pairs:
            apiece, weight, enough = contrasts(at, pair)
            found = compare(apiece, np.where(apart, 0.0, weight), enough, at.unit)
            parts.append(conclude(found, enough, tests, pair))
        return combine(parts)

    return repeat_without_outliers(test, len(at.rows))


def _test_offsets(at: Cells) -> Shift:
    apiece, weight, enough = offsets(at)
    if enough.sum() < 2 or not (at.unit > 0).any():
        return no_shift(len(enough))
    tests = number_of_tests(enough, at.unit)

    def test(apart: Mask) -> Shift:
        found = compare(apiece, np.where(apart, 0.0, weight), enough, at.unit)
        return conclude(found, enough, tests)

    return repeat_without_outliers(test, len(enough))


def held_pairs(rows: Integers) -> list[tuple[int, int]]:
    """Return pairs of classes of which two or more clients have enough rows; at most MOST_PAIRS."""
    enough = (rows >= LEAST_ROWS).astype(np.int64)
    both = enough.T @ enough
    pairs = [(a, b) for a, b in combinations(range(rows.shape[1]), 2) if both[a, b] > 1]
    return sorted(sorted(pairs, key=lambda pair: -both[pair])[:MOST_PAIRS])


def _slopes(statistics: ClientStatistics) -> Shift:
    """For regression: test the slopes of y on each feature and of each feature on y.

    A different distribution of features changes the second, one of targets the first. A client is
    named only if both differ in the same direction, so neither cause suffices.
    """
    n = statistics.rows.sum(1).astype(np.float64)
    width = len(statistics.shape.features)
    x1, x2 = statistics.first[:, 0, :width], statistics.second[:, 0, :width]
    y1, y2 = statistics.target[:, :1], statistics.target[:, 1:]
    size = n[:, None]
    xx = np.maximum(x2 - x1**2 / size, 0.0)
    yy = np.broadcast_to(np.maximum(y2 - y1**2 / size, 0.0), xx.shape)
    xy = statistics.cross[:, :width] - x1 * y1 / size
    enough: Mask = n >= 2 * LEAST_ROWS
    if enough.sum() < 2 or not (yy > 0).any():
        return no_shift(len(n))
    freedom = np.maximum(size - 1, 0).sum()
    sd_x, sd_y = (np.sqrt(at.sum(0) / freedom) for at in (xx, yy))
    alive = (sd_x > 0) & (xx.sum(0) > TINY**2 * x2.sum(0))
    sd_x = np.where(alive, sd_x, 1.0)
    forward = slope(xy / (sd_x * sd_y), xx / sd_x**2, yy / sd_y**2, n, enough)
    inverse = slope(xy / (sd_x * sd_y), yy / sd_y**2, xx / sd_x**2, n, enough)

    def test(apart: Mask) -> Shift:
        return conclude(_both(forward, inverse, apart, enough, alive), enough, tests)

    tests = number_of_tests(enough, alive)
    return repeat_without_outliers(test, len(n))


def _both(
    forward: tuple[Estimates, Reals],
    inverse: tuple[Estimates, Reals],
    apart: Mask,
    enough: Mask,
    alive: Mask,
) -> Comparison:
    """Combine the slopes of both directions; an effect must be present in both."""
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
