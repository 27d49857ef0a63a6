import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.errors import DataError
from isonomy.metrics import excess, faa, hypervolume, nondominated

quick = settings(max_examples=100, deadline=None, derandomize=True)
coordinate = st.integers(0, 12).map(lambda i: i / 10)  # some beyond the reference, some ties
points_2d = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=12)


def swept(points):
    """Hypervolume in two dimensions by a sweep from left to right, written out."""
    inside = sorted((x, y) for x, y in points if x < 1 and y < 1)
    area, height = 0.0, 1.0
    for x, y in inside:
        if y < height:
            area += (1 - x) * (height - y)
            height = y
    return area


def test_excess_and_faa_by_hand():
    # Losses 0.9 and 0.5 look unfair; over what is reachable it is the second that loses.
    over = excess([0.9, 0.5, 0.4], [0.8, 0.2, 0.5])
    np.testing.assert_allclose(over, [0.1, 0.3, -0.1])
    assert faa(over) == pytest.approx(0.4)
    assert faa([0.25]) == 0


def test_faa_is_the_largest_pairwise_distance():
    over = np.random.default_rng(0).normal(size=30)
    assert faa(over) == max(abs(a - b) for a, b in itertools.combinations(over, 2))


def test_faa_leaves_out_clients_without_examples_only():
    assert faa([0.1, np.nan, 0.4], sizes=[3, 0, 5]) == pytest.approx(0.3)
    assert np.isnan(faa([0.1, np.nan, 0.4]))
    assert np.isnan(faa([0.1, np.nan, 0.4], sizes=[3, 2, 5]))
    assert np.isnan(faa([0.1], sizes=[0]))
    assert np.isnan(faa([]))


def test_losses_of_different_clients_are_refused():
    with pytest.raises(DataError, match="same clients"):
        excess([0.1, 0.2], [0.1])
    with pytest.raises(DataError, match="one size"):
        faa([0.1, 0.2], sizes=[1])


def test_hypervolume_by_hand():
    # 0.75 x 0.5 from the first, 0.5 x 0.25 more below it from the second.
    assert hypervolume([[0.25, 0.5], [0.5, 0.25]]) == pytest.approx(0.5)
    assert hypervolume([[0.25, 0.5], [0.5, 0.25], [0.75, 0.75]]) == pytest.approx(0.5)
    assert hypervolume([[0.0, 0.0]], reference=(2, 3)) == 6
    assert hypervolume([[0.5, 0.5, 0.5]]) == pytest.approx(0.125)
    assert hypervolume([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]) == pytest.approx(0.25 + 0.25 - 0.125)
    assert hypervolume([[0.5, 1.0], [2.0, 0.1]]) == 0
    assert hypervolume([[0.5, 0.5], [np.inf, 0.0]]) == 0.25
    assert hypervolume([]) == 0


@quick
@given(points_2d)
def test_hypervolume_agrees_with_a_sweep(points):
    assert hypervolume(points) == pytest.approx(swept(points), abs=1e-12)


def test_hypervolume_in_three_dimensions_agrees_with_sampling():
    random = np.random.default_rng(0)
    points = random.random((8, 3))
    probes = random.random((200_000, 3))
    covered = (probes[:, None] >= points).all(-1).any(1).mean()
    assert hypervolume(points) == pytest.approx(covered, abs=0.005)


@quick
@given(points_2d, st.tuples(coordinate, coordinate))
def test_a_further_point_never_takes_volume_away(points, another):
    assert hypervolume([*points, another]) >= hypervolume(points) - 1e-12


@quick
@given(st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=12))
def test_nondominated_agrees_with_the_definition(points):
    def dominated(i):
        p = points[i]
        return any(
            (all(b <= a for a, b in zip(p, q, strict=True)) and q != p) or (q == p and j < i)
            for j, q in enumerate(points)
        )

    assert nondominated(points).tolist() == [not dominated(i) for i in range(len(points))]


def test_the_front_alone_has_the_whole_volume():
    points = np.random.default_rng(1).random((50, 2))
    front = points[nondominated(points)]
    assert 1 < len(front) < 50
    assert hypervolume(front) == pytest.approx(hypervolume(points))
    assert nondominated([]).shape == (0,)


def test_points_that_make_no_front_are_refused():
    with pytest.raises(DataError, match="point 1"):
        hypervolume([[0.1, 0.2], [0.1, np.nan]])
    with pytest.raises(DataError, match="not a number"):
        nondominated([[0.1, np.nan]])
    with pytest.raises(DataError, match="reference point"):
        hypervolume([[0.1, 0.2]], reference=(1, 1, 1))
    with pytest.raises(DataError, match=r"\[points, coordinates\]"):
        hypervolume([0.1, 0.2])
