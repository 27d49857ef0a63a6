"""How long clients train, and in what batches."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from isonomy.core import random
from isonomy.core.batches import Plan, plan
from isonomy.core.work import Work

# --- counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "size", "steps", "passes"),
    [
        (Work(epochs=1, batch=8), 20, 3, 1),  # 8 + 8 + 4
        (Work(epochs=2, batch=8), 20, 6, 2),
        (Work(epochs=2, batch=8, last="drop"), 20, 4, 2),  # 8 + 8, twice
        (Work(epochs=2, batch=8, last="drop"), 5, 2, 2),  # smaller than a batch: uses all it has
        (Work(epochs=2, batch=8, last="drop"), 8, 2, 2),
        (Work(epochs=3, batch=0), 20, 3, 3),
        (Work(epochs=3, batch=0, last="drop"), 20, 3, 3),
        (Work(steps=7, batch=8), 20, 7, 3),  # 3 + 3 + 1
        (Work(steps=7, batch=8, last="drop"), 20, 7, 4),  # 2 + 2 + 2 + 1
        (Work(steps=7, batch=0), 20, 7, 7),
        (Work(steps=2, batch=8), 100, 2, 1),
        (Work(epochs=1, batch=1), 1, 1, 1),
    ],
)
def test_counts_by_hand(work: Work, size: int, steps: int, passes: int) -> None:
    assert work.count(size) == steps
    assert work.passes(size) == passes


def test_learning_rates_by_hand() -> None:
    assert Work(lr=0.5).rate(9, 10) == 0.5
    assert Work(lr=0.5, schedule="exponential", decay=0.9).rate(2, 10) == pytest.approx(0.405)
    step = Work(lr=0.8, schedule="step", decay=0.5, every=3)
    assert [step.rate(t, 10) for t in range(7)] == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]
    assert Work(lr=0.6, schedule="inverse_sqrt").rate(8, 10) == pytest.approx(0.2)
    cosine = Work(lr=1.0, schedule="cosine")
    assert cosine.rate(0, 8) == 1.0
    assert cosine.rate(2, 8) == pytest.approx(0.5 * (1 + math.sqrt(0.5)))
    assert cosine.rate(4, 8) == pytest.approx(0.5)
    assert all(s.rate(0, 5) == s.lr for s in (Work(schedule=n) for n in ("step", "exponential")))


# --- plans ----------------------------------------------------------------------------------------

works = st.builds(
    Work,
    epochs=st.integers(1, 3),
    steps=st.none() | st.integers(1, 9),
    batch=st.integers(0, 12),
    last=st.sampled_from(["keep", "drop"]),
)


def made(work: Work, size: int, seed: int = 0, wider: int = 0, more: int = 0) -> Plan:
    """A client's plan, alone or beside a client with more examples, steps and passes."""
    return plan(
        work,
        random.key(seed),
        torch.tensor(size),
        size + wider,
        work.count(size) + more,
        work.passes(size) + more,
    )


@given(works, st.integers(1, 40), st.integers(0, 1000))
def test_passes_cover_the_examples(work: Work, size: int, seed: int) -> None:
    got = made(work, size, seed)
    steps = work.count(size)
    assert int(got.count) == steps
    assert got.rows.shape == got.weight.shape == (steps, work.width(size))
    assert set(got.weight.flatten().tolist()) <= {0.0, 1.0}
    batches = [r[w > 0].tolist() for r, w in zip(got.rows, got.weight, strict=True)]
    each = work.steps_a_pass(size)
    for first in range(0, steps, each):
        seen = Counter(row for batch in batches[first : first + each] for row in batch)
        assert set(seen) <= set(range(size))
        assert max(seen.values()) == 1  # never twice in a pass
        whole = first + each <= steps
        if whole and (work.last == "keep" or work.batch == 0 or size < work.batch):
            assert len(seen) == size  # each exactly once
        elif whole:
            assert len(seen) == size // work.batch * work.batch  # the short batch is left out
    for i, batch in enumerate(batches):
        full = work.width(size)
        short = work.last == "keep" and i % each == each - 1 and size % full
        assert len(batch) == (size % full if short else min(full, size))


@given(works, st.integers(1, 40), st.integers(0, 1000), st.integers(0, 25), st.integers(0, 5))
def test_padding_changes_nothing(work: Work, size: int, seed: int, wider: int, more: int) -> None:
    alone, among = made(work, size, seed), made(work, size, seed, wider, more)
    steps, width = alone.rows.shape
    assert int(among.count) == int(alone.count)
    real = alone.weight > 0
    assert torch.equal(among.weight[:steps, :width], alone.weight)
    assert torch.equal(among.rows[:steps, :width][real], alone.rows[real])
    assert float(among.weight[:steps, width:].sum()) == 0.0
    assert bool((among.rows < size).all())  # padding shows the client's own rows
    assert bool((among.rows >= 0).all())


@given(works, st.integers(1, 40), st.integers(0, 25), st.integers(1, 5))
def test_steps_beyond_the_clients_own_carry_no_weight(
    work: Work, size: int, wider: int, more: int
) -> None:
    among = made(work, size, 0, wider, more)
    assert float(among.weight[work.count(size) :].sum()) == 0.0


def test_passes_are_shuffled_afresh() -> None:
    got = made(Work(epochs=4, batch=0), 30)
    assert len({tuple(rows) for rows in got.rows.tolist()}) == 4


def test_a_cohorts_plans_under_vmap() -> None:
    work, sizes = Work(epochs=2, batch=4), [3, 4, 11]
    keys = random.key(5, torch.arange(3))
    steps, passes = max(map(work.count, sizes)), max(map(work.passes, sizes))
    together = vmap(lambda k, n: plan(work, k, n, 11, steps, passes))(keys, torch.tensor(sizes))
    for k, n in enumerate(sizes):
        alone = plan(work, keys[k], torch.tensor(n), n, work.count(n), work.passes(n))
        live = work.count(n)
        real = alone.weight > 0
        assert torch.equal(together.weight[k, :live], alone.weight)
        assert torch.equal(together.rows[k, :live][real], alone.rows[real])
