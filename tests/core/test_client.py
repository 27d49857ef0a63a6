"""What a phase sees of its client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isonomy.contract.world import TRAIN, VALIDATION, world
from isonomy.core import random
from isonomy.core.client import Client, Pool
from isonomy.core.examples import SPLITS
from isonomy.core.phase import phase
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop

ENGINES = [Loop, Batched]


def client_of(k: int, wider: int = 0, federation: Federation | None = None) -> Client:
    federation = federation or world().federation
    ranges = federation.ranges[k]
    sizes = ranges[:, 1] - ranges[:, 0]
    widths = tuple(int(n) + wider for n in sizes)
    work = Work(batch=4)
    return Client(
        pool=Pool(federation.x, federation.y, federation.groups),
        id=torch.tensor(k),
        starts=ranges[:, 0],
        sizes=sizes,
        key=random.key(0, 0, k),
        rate=torch.tensor(0.1),
        state=(),
        work=work,
        widths=widths,
        steps=work.count(widths[0]),
        passes=work.passes(widths[0]),
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("wider", [0, 5])
def test_examples_are_the_clients_own(split: Any, k: int, wider: int) -> None:
    federation = world().federation
    rows = federation.rows(k, split)
    got = client_of(k, wider).examples(split)
    n = federation.size(k, split)
    assert torch.equal(got.x[:n], federation.x[rows])
    assert torch.equal(got.y[:n], federation.y[rows])
    assert torch.equal(got.groups[:n], federation.groups[rows])
    assert torch.equal(got.group, got.groups[:, 0])
    assert got.weight.tolist() == [1.0] * n + [0.0] * wider
    own = torch.cat([federation.x[federation.rows(k, s)] for s in SPLITS])
    for row in got.x[n:]:  # padding too is the client's own: no phase sees another's rows
        assert bool((own == row).all(-1).any())


def test_size_and_shorthands() -> None:
    client = client_of(3)
    assert float(client.size) == TRAIN[3]
    assert client.size.dtype == torch.float32
    assert torch.equal(client.train.x, client.examples("train").x)
    assert float(client.validation.weight.sum()) == VALIDATION[3]


@pytest.mark.parametrize("size", [1, 7, 40, 1024])
@pytest.mark.parametrize("wider", [0, 9])
def test_pages_together_are_the_split(size: int, wider: int) -> None:
    client = client_of(2, wider)
    pages = list(client.pages("train", size))
    whole = client.train
    assert all(len(p.y) <= size for p in pages)
    for got, expected in zip(zip(*pages, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(got), expected)


def test_plan_points_at_the_clients_training_rows() -> None:
    federation = world().federation
    for k in range(8):
        client = client_of(k)
        rows = client.plan.rows[client.plan.weight > 0]
        at = federation.rows(k, "train")
        assert rows.sort().values.tolist() == list(range(at.start, at.stop))


def test_draws_belong_to_the_client() -> None:
    a, b = client_of(1), client_of(2)
    assert torch.equal(a.uniform("u", (2, 3)), random.uniform(a.key, "u", (2, 3)))
    assert torch.equal(a.normal("z", (4,)), random.normal(a.key, "z", (4,)))
    assert not torch.equal(a.uniform("u"), b.uniform("u"))


def without(split: int, k: int) -> Federation:
    """The federation with client k's split emptied."""
    ranges = world().federation.ranges.clone()
    ranges[k, split, 0] = ranges[k, split, 1]
    return replace(world().federation, ranges=ranges)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("k", [2, 7])
def test_an_empty_split_weighs_nothing_and_shows_nobody_elses_rows(split: int, k: int) -> None:
    federation = without(split, k)
    got = client_of(k, federation=federation).examples(SPLITS[split])
    assert got.weight.tolist() == [0.0]
    own = [federation.x[federation.rows(k, s)] for s in SPLITS]
    assert bool((torch.cat(own) == got.x).all(-1).any())


@pytest.mark.parametrize("kind", ENGINES)
def test_losses_on_an_empty_split_are_zero(kind: type[Engine]) -> None:
    where = world()
    engine = kind(where.task, without(1, 7))

    @phase("gather", loss="statistic")
    def measure(task: Any, message: Any, client: Client) -> tuple[Any, Any]:
        return {"loss": task.loss(message["params"], client.validation)}, client.state

    cohort = engine.cohort(torch.tensor([0, 7]), work=where.work, round=0)
    got = cohort.gather(measure, {"params": where.params}).value["loss"]
    assert float(got[1]) == 0.0
    assert float(got[0]) > 0.1


def test_pool_batches_rows_of_any_shape() -> None:
    x = torch.arange(24.0).reshape(4, 2, 3)
    pool = Pool(x, torch.arange(4), torch.zeros(4, 1, dtype=torch.int64))
    got = pool.batch(torch.tensor([3, 1]), torch.tensor([1.0, 0.0]))
    assert torch.equal(got.x, x[[3, 1]])
    assert got.y.tolist() == [3, 1]
    assert got.weight.tolist() == [1.0, 0.0]
