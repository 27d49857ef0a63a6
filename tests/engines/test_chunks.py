"""The borders of chunks are those that one finds by adding one client after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.core.work import Work
from isonomy.engines.batched import chunks

WORKS = [Work(batch=10), Work(batch=0), Work(batch=7, epochs=3, last="drop"), Work(steps=20)]


def one_by_one(
    splits: list[list[int]], work: Work, most: int, width: int, most_padding: int
) -> Iterator[tuple[int, int]]:
    """A client joins the chunk before it, if both together fit."""
    first = 0
    for i in range(1, len(splits)):
        members = splits[first : i + 1]
        lanes, n = len(members), max(sizes[0] for sizes in members)
        passes = max(work.passes(sizes[0]) for sizes in members)
        plan = 32 * passes * n + 16 * work.count(n) * work.width(n)
        memory = lanes * (plan + 4 * width * max(max(sizes) for sizes in members))
        padding = passes * (lanes * n - sum(sizes[0] for sizes in members))
        if lanes > most or memory > chunks.MEMORY or padding > most_padding:
            yield first, i
            first = i
    yield first, len(splits)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9000)), min_size=1, max_size=40),
    st.sampled_from(WORKS),
    st.integers(1, 12),
    st.sampled_from([1, 60, 3000]),
    st.booleans(),
)
def test_the_same_as_one_by_one(
    sizes: list[tuple[int, int]], work: Work, most: int, width: int, small: bool
) -> None:
    splits = sorted(([a, b] for a, b in sizes), key=lambda one: -one[0])
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(chunks, "MEMORY", 2_000_000)
        padding = 3_000 if small else chunks.PADDING
        got = list(chunks.cuts(np.array(splits), work, most, width, padding))
        assert got == list(one_by_one(splits, work, most, width, padding))
