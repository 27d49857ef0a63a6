"""The lanes of step programs: never fewer than are active, and no schedule takes less time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.engines.batched import rungs as module
from isonomy.engines.batched.rungs import COMPILED_RUNGS, RUNGS, WORTH, ladder, schedule

COUNTS = st.lists(st.integers(0, 200), min_size=1, max_size=300).map(
    lambda counts: sorted([*counts, 1 + max(counts)], reverse=True)
)
KINDS = st.sampled_from([RUNGS, COMPILED_RUNGS])


@given(st.integers(1, 2000), KINDS)
def test_rungs_are_few(below: int, rungs: tuple[int, ...]) -> None:
    made = list(ladder(below, rungs))
    assert made[: len(rungs)] == [rung for rung in rungs if rung < below]
    assert all(a < b < below or b < below for a, b in itertools.pairwise(made))
    assert all(b <= 1.5 * a for a, b in itertools.pairwise(made) if a >= rungs[-1])
    assert not made or made[-1] < below <= max(2 * made[-1], 8 * made[-1] * (below <= rungs[-1]))


@given(COUNTS, KINDS, st.sampled_from([0.1, 100, 5_000, 1e6]))
def test_every_step_has_the_active_lanes(
    counts: list[int], rungs: tuple[int, ...], numbers: float
) -> None:
    made = list(schedule(counts, rungs, numbers))
    assert made[-1][1] == counts[0]
    first = 0
    for i, (lanes, until) in enumerate(made):
        assert until > first
        assert sum(count > first for count in counts) <= lanes <= len(counts)
        assert i == 0 or lanes in ladder(len(counts), rungs)
        assert i == 0 or lanes >= rungs[-1] or until - first >= WORTH
        first = until
    assert [lanes for lanes, _ in made] == sorted({lanes for lanes, _ in made}, reverse=True)


@given(st.lists(st.integers(1, 90), min_size=2, max_size=40), st.sampled_from([10, 3_000, 1e6]))
def test_no_other_schedule_takes_less_time(steps: list[int], numbers: float) -> None:
    counts = sorted(steps, reverse=True)

    def cost(made: list[tuple[int, int]]) -> float:
        first, total = 0, 0.0
        for lanes, until in made:
            total += module.CHANGE + (until - first) * lanes * numbers
            first = until
        return total

    least = cost(list(schedule(counts, RUNGS, numbers)))
    free = [rung for rung in ladder(len(counts), RUNGS) if counts[rung] < counts[0]]
    for size in range(len(free) + 1):
        for chosen in itertools.combinations(reversed(free), size):
            starts = [0, *(counts[rung] for rung in chosen), counts[0]]
            made = list(zip((len(counts), *chosen), starts[1:], strict=True))
            lengths = [b - a for a, b in itertools.pairwise(starts)]
            short = any(
                lanes < RUNGS[-1] and length < WORTH
                for lanes, length in zip(chosen, lengths[1:], strict=True)
            )
            if min(lengths) > 0 and not short:
                assert least <= cost(made) * (1 + 1e-12)


@pytest.mark.parametrize("numbers", [1.0, 1e6])
def test_equal_lanes_have_one_program(numbers: float) -> None:
    assert list(schedule([7] * 20, RUNGS, numbers)) == [(20, 7)]
