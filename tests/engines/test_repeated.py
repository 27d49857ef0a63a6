"""Pure functions that are called often: traced once, with the same results."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from isonomy.core import random
from isonomy.core.batches import similar
from isonomy.core.client import Client, Pool
from isonomy.core.fold import pure, using
from isonomy.core.work import Work
from isonomy.engines.batched import repeated
from isonomy.engines.batched.program import Programs


class Pair(NamedTuple):
    one: Tensor
    other: Tensor


def pair(times: int, x: Tensor, y: Tensor) -> Pair:
    return Pair(times * x + y, torch.arange(3) * x.sum().long())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "CALLS", 3)


def same(got: Any, expected: Any) -> bool:
    return type(got) is type(expected) and all(map(torch.equal, got, expected))


def test_lanes_and_no_lanes() -> None:
    programs = Programs()
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0.5, -1.0])
    for turn in range(6):
        for given in (x, x + turn):
            expected = vmap(lambda x: pair(2, x, y))(given)
            with using(programs):
                assert same(vmap(lambda x: pure(pair, (2,), x, y))(given), expected)
                assert same(pure(pair, (2,), given[0], y), pair(2, given[0], y))
    assert programs.pure.traced == 2


def test_two_levels_of_lanes() -> None:
    programs = Programs()
    x, y = torch.arange(12.0).reshape(2, 3, 2), torch.arange(6.0).reshape(3, 2)

    def both(f: Any) -> Any:
        return vmap(lambda rows: vmap(lambda x, y: f(x, y))(rows, y))(x)

    expected = both(lambda x, y: pair(3, x, y))
    with using(programs):
        for _ in range(5):
            assert same(both(lambda x, y: pure(pair, (3,), x, y)), expected)
    assert programs.pure.traced == 1


def test_other_constants_and_shapes_are_other_functions() -> None:
    programs = Programs()
    y = torch.tensor([0.5, -1.0])
    with using(programs):
        for _ in range(5):
            for times in (2, 3):
                for shape in ((2,), (4, 2)):
                    x = torch.ones(shape)
                    assert same(pure(pair, (times,), x, y), pair(times, x, y))
    assert programs.pure.traced == 4


def test_inside_a_gradient_it_is_called_as_it_is() -> None:
    programs = Programs()

    def f(x: Tensor) -> Tensor:
        return pure(pair, (2,), x, x)[0].square().sum()

    with using(programs):
        for _ in range(5):
            assert grad(f)(torch.ones(2)).tolist() == [18.0, 18.0]
    assert programs.pure.traced == 0


def test_what_cannot_be_traced_is_called_as_it_is() -> None:
    def branching(x: Tensor) -> tuple[Tensor]:
        return (x if float(x.sum()) > 0 else -x,)

    programs = Programs()
    with using(programs):
        for sign in (1.0, 1.0, 1.0, 1.0, -1.0):
            assert pure(branching, (), torch.tensor([sign]))[0].tolist() == [1.0]
    assert programs.pure.traced == 0


def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "KEEP", 2)
    programs = Programs()
    with using(programs):
        for times in range(5):
            for _ in range(4):
                pure(pair, (times,), torch.ones(2), torch.ones(2))
    assert programs.pure.traced == 2


@pytest.mark.parametrize(
    "work",
    [Work(batch=4), Work(batch=0, epochs=2), Work(batch=4, last="drop", steps=7), Work(epochs=3)],
)
def test_batches_of_every_round_are_the_same(work: Work) -> None:
    sizes, programs = torch.tensor([13, 9, 4]), Programs()
    starts = torch.tensor([0, 13, 22])
    none = torch.zeros(3, dtype=torch.int64)
    pool = Pool(torch.zeros(26, 1), torch.zeros(26), torch.zeros(26, 0, dtype=torch.int64))

    def plan(start: Tensor, size: Tensor, key: Tensor) -> Any:
        return Client(
            pool=pool, id=none[0], starts=torch.stack([start, start, start]),
            sizes=torch.stack([size, none[0], none[0]]), key=key, rate=torch.tensor(0.1), state=(),
            work=work, widths=(13, 0, 0), steps=work.count(13), passes=work.passes(4),
        ).plan  # fmt: skip

    for round in range(6):
        keys = random.key(0, round, torch.arange(3))
        with using(None):
            expected = vmap(plan)(starts, sizes, keys)
        with using(programs):
            got = vmap(plan)(starts, sizes, keys)
        assert torch.equal(got.weight, expected.weight)
        assert torch.equal(got.count, expected.count)
        assert torch.equal(got.rows * got.weight, expected.rows * expected.weight)
        lanes = got.rows.flatten(1)
        assert bool((lanes >= starts[:, None]).all()), "padding is the client's own"
        assert bool((lanes < (starts + sizes)[:, None]).all()), "padding is the client's own"
    assert programs.pure.traced == 2  # of the two larger clients, and of the small one


def test_similar_sizes_are_neighbours_within_a_factor_of_two() -> None:
    assert similar([5]) == [(0, 1)]
    assert similar([1, 2, 3, 4, 8, 9, 3]) == [(0, 2), (2, 4), (4, 6), (6, 7)]
