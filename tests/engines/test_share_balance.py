"""Shares have about the same work, by all of their examples and by their longest client's steps."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn

from isonomy.config.schema import EngineConfig
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.batched.engine import Batched
from isonomy.engines.shares import CLIENT, LOOKUP, OVERHEAD, shares_of

UNEVEN = [300, 150, 90, 60, 50, 40, 30, 30, 20, 20, 20, 10, 10, 10]


def federation_of(sizes: list[int]) -> Federation:
    rows = sum(sizes)
    groups = torch.zeros(rows, 0, dtype=torch.int64)
    parts = {"train": list(torch.arange(rows).split(sizes))}
    return build(torch.zeros(rows, 4), torch.zeros(rows).long(), groups, parts, classes=2)


def work_of(sizes: list[int], flops: float, compiled: bool) -> float:
    """All examples, and those that fit in the overheads of clients and of the longest's steps."""
    one = LOOKUP + flops
    clients = round(CLIENT / one) * len(sizes) if compiled else 0
    return sum(sizes) + clients + round(OVERHEAD / one) * max(sizes) // 10


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("flops", [0.0, 2e4, 3e5, 1e9])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_other_cut_of_the_sorted_clients_is_better(
    count: int, flops: float, compiled: bool
) -> None:
    """All cuts into contiguous groups, by brute force."""
    fed = federation_of(UNEVEN)
    found = shares_of(fed, count, Work(batch=10), flops, compiled=compiled)
    mine = [[s for s, share in zip(UNEVEN, found, strict=True) if share == i] for i in range(count)]
    cuts = itertools.combinations(range(1, len(UNEVEN)), count - 1)
    best = min(
        max(
            work_of(UNEVEN[a:b], flops, compiled)
            for a, b in itertools.pairwise([0, *cut, len(UNEVEN)])
        )
        for cut in cuts
    )
    assert max(work_of(part, flops, compiled) for part in mine if part) == best


def test_a_heavy_model_divides_by_examples_and_a_light_one_by_steps() -> None:
    """Where arithmetic outweighs the overhead of a step, one client of 100 equals five of 20."""
    sizes, work = [100, 20, 20, 20, 20, 20], Work(batch=10)
    heavy = shares_of(federation_of(sizes), 2, work, 1e12)
    assert heavy.tolist() == [0, 1, 1, 1, 1, 1]
    sizes = [100, *[20] * 20]
    light = torch.bincount(shares_of(federation_of(sizes), 2, work, 0.0))
    even = torch.bincount(shares_of(federation_of(sizes), 2, work, 1e12))
    assert light[0] < even[0]  # the overhead of the long client's ten steps counts


def test_shares_are_those_of_the_prepared_work() -> None:
    """Whatever an engine computed before: so a resumed run has the same shares."""
    task, fed = Task(lambda: nn.Linear(4, 2), classes=2), federation_of(UNEVEN)
    engine = Batched(task, fed, shares=2)
    engine.prepare(Work(batch=50))
    assert engine.share_of is not None
    engine.prepare(Work(batch=10))
    fresh = Batched(task, fed, shares=2)
    fresh.prepare(Work(batch=10))
    assert engine.share_of is not None
    assert fresh.share_of is not None
    assert torch.equal(engine.share_of, fresh.share_of)
    assert engine._flops == fresh._flops


def test_shares_depend_on_what_the_config_asks_and_not_on_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes with and without a C++ compiler must divide the clients of a run alike."""
    fed = federation_of([300, 200, 100, *[20] * 60])
    task, options = Task(lambda: nn.Linear(4, 2), classes=2), EngineConfig(compile=True, shares=2)
    found = []
    for has in (True, False):
        monkeypatch.setattr("isonomy.engines.batched.engine.has_compiler", lambda has=has: has)
        engine = Batched.make(task, fed, seed=0, options=options, note=lambda note: None)
        engine.prepare(Work(batch=10))
        found.append(engine.share_of)
    assert torch.equal(found[0], found[1])
    plain = Batched(task, fed, shares=2)
    plain.prepare(Work(batch=10))
    assert not torch.equal(found[0], plain.share_of)


def test_a_resumed_run_has_its_shares_whatever_is_counted_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States are stored share by share, so another division would give them to other clients."""
    task, fed = Task(lambda: nn.Linear(4, 2), classes=2), federation_of(UNEVEN)
    engine = Batched(task, fed, shares=3)
    engine.prepare(Work(batch=10))
    saved = json.loads(json.dumps(engine.saved()))
    monkeypatch.setattr("isonomy.engines.shares.OVERHEAD", 0.0)
    other = Batched(task, fed, shares=3)
    other.prepare(Work(batch=10))
    assert engine.share_of is not None
    assert other.share_of is not None
    assert not torch.equal(engine.share_of, other.share_of)
    other.restore(saved)
    assert torch.equal(engine.share_of, other.share_of)
    assert other.saved() == saved
