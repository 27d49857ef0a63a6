"""Batches of several clients at once: those of each client alone, whatever runs beside it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.func import vmap

from isonomy.core import batches, random
from isonomy.core.batches import Plan, bands, plan, planning, plans
from isonomy.core.work import Work
from isonomy.engines.batched.program import Programs

SIZES = [6000, 900, 800, 130, 120, *[60] * 30, 7, 3]
WORKS = [
    Work(batch=10),
    Work(batch=16, epochs=3),
    Work(batch=16, steps=40),
    Work(batch=32, last="drop", epochs=2),
    Work(batch=0),
    Work(batch=10, steps=1),
]


def shape(work: Work) -> tuple[int, int, int]:
    """The width, steps and passes of all clients side by side."""
    return max(SIZES), max(map(work.count, SIZES)), max(map(work.passes, SIZES))


def together(work: Work) -> Plan:
    keys = random.key(0, 1, torch.arange(len(SIZES)))
    return plans(work, keys, torch.tensor(SIZES), *shape(work))


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_each_client_has_the_batches_that_it_has_alone(work: Work) -> None:
    made = together(work)
    assert made.rows.shape == made.weight.shape
    for k, size in enumerate(SIZES):
        alone = plan(
            work,
            random.key(0, 1, k),
            torch.tensor(size),
            size,
            work.count(size),
            work.passes(size),
        )
        steps = work.count(size)
        assert int(made.count[k]) == int(alone.count) == steps
        assert float(made.weight[k, steps:].sum()) == 0
        width = alone.rows.shape[-1]
        assert torch.equal(made.weight[k, :steps, :width], alone.weight)
        assert float(made.weight[k, :steps, width:].sum()) == 0
        real = alone.weight > 0
        assert torch.equal(made.rows[k, :steps, :width][real], alone.rows[real])
        assert int(made.rows[k].max()) < size  # padding is a row of the client, too


def test_a_pass_is_a_shuffle() -> None:
    made = together(Work(batch=10))
    for k, size in enumerate(SIZES):
        rows = made.rows[k][made.weight[k] > 0]
        assert sorted(rows.tolist()) == list(range(size))
        assert size < 10 or rows.tolist() != list(range(size))


def test_uneven_clients_are_planned_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    whole = batches._plan

    def counted(work, keys, size, width, steps, passes, *, plain):
        assert plain
        places.append(len(size) * passes * width)
        return whole(work, keys, size, width, steps, passes, plain=plain)

    monkeypatch.setattr(batches, "_plan", counted)
    together(Work(batch=10))
    assert sum(places) < 2 * sum(SIZES) < len(SIZES) * max(SIZES) / 10
    assert len(places) == len(bands(SIZES)) == 6
    places.clear()
    monkeypatch.setattr(batches, "SPARED", 10**9)
    together(Work(batch=10))
    assert places == [len(SIZES) * max(SIZES)]


def test_bands_of_unsorted_clients_are_one() -> None:
    assert bands([3, 900]) == [(0, 2)]
    assert bands([5, 5, 5]) == [(0, 3)]
    for first, last in itertools.pairwise(bands(SIZES)):
        assert first[1] == last[0]


def test_the_engines_planner_gives_the_same_batches_under_vmap() -> None:
    work, programs = Work(batch=10), Programs()
    keys, sizes = random.key(0, 1, torch.arange(len(SIZES))), torch.tensor(SIZES)
    asked = []

    def planner(*arguments):
        made = programs.plan(*arguments)
        asked.append(made is not None)
        return made

    def client(key, size):
        return tuple(plan(work, key, size, *shape(work)))

    plain = vmap(client)(keys, sizes)
    with planning(planner):
        fast = vmap(client)(keys, sizes)
        alone = client(keys[0], sizes[0])  # not under vmap: planned by itself
    assert asked == [True, False]
    live = torch.arange(plain[0].shape[1]) < plain[2].unsqueeze(-1)
    assert torch.equal(plain[0][live], fast[0][live])
    assert torch.equal(plain[1], fast[1])
    assert torch.equal(plain[2], fast[2])
    assert torch.equal(alone[0], plain[0][0])
