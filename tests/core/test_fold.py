"""A traced fold is the plain fold: with and without vmap, and with ragged counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from core.folds import both, numbers
from isonomy.core.fold import fold, using
from isonomy.engines.batched.ahead import without_lane
from isonomy.engines.batched.graph import without_python
from isonomy.engines.batched.program import RUNGS, Programs, ladder
from isonomy.engines.batched.trace import trace

# --- the plain loop -------------------------------------------------------------------------------


def test_plain_fold_by_hand() -> None:
    # 1 -> 1*2+1 = 3 -> 3*2+5 = 11 -> 11*2+7 = 29
    xs = torch.tensor([1.0, 5.0, 7.0])
    assert float(fold(lambda c, x: c * 2 + x, torch.tensor(1.0), xs)) == 29.0
    assert float(fold(lambda c, x: c * 2 + x, torch.tensor(1.0), xs, torch.tensor(2))) == 11.0
    assert float(fold(lambda c, x: c * 2 + x, torch.tensor(1.0), xs, torch.tensor(0))) == 1.0


def test_using_is_undone_also_by_an_error() -> None:
    def never(*args: Any) -> Any:
        raise RuntimeError

    with pytest.raises(RuntimeError), using(never):
        fold(torch.add, torch.zeros(()), torch.zeros(2))
    assert float(fold(torch.add, torch.zeros(()), torch.ones(2))) == 2.0


# --- without and with vmap ------------------------------------------------------------------------


def body_of(scale: Tensor, shift: Any) -> Callable[[Any, Any], Any]:
    def body(carry: Any, x: Any) -> Any:
        w, moved = carry
        g = grad(lambda v: (v * x["a"] - scale).square().sum() + (v * shift).sum())(w)
        return w - 0.1 * g, moved + g.abs() * x["b"]

    return body


def test_without_vmap() -> None:
    xs = {"a": numbers("a", 6, 3), "b": numbers("b", 6)}

    def run(count: Any) -> Any:
        return fold(body_of(numbers("s", 3), 0.5), (numbers("w", 3), torch.zeros(3)), xs, count)

    assert both(run, None).traced == 1
    assert both(run, torch.tensor(4)).traced == 1
    both(run, torch.tensor(0))


@pytest.mark.parametrize("laned_scale", [True, False])
@pytest.mark.parametrize("laned_carry", [True, False])
@pytest.mark.parametrize("laned_xs", [True, False])
def test_one_vmap(laned_xs: bool, laned_carry: bool, laned_scale: bool) -> None:
    lanes = 5
    w = numbers("w", lanes, 3)
    a, b = numbers("a", lanes, 6, 3), numbers("b", lanes, 6)
    scale = numbers("s", lanes, 3)

    def run() -> Any:
        def one(w: Tensor, a: Tensor, b: Tensor, s: Tensor) -> Any:
            return fold(body_of(s, 0.5), (w, torch.zeros(3)), {"a": a, "b": b})

        chosen = [
            (w, laned_carry),
            (a, laned_xs),
            (b, laned_xs),
            (scale, laned_scale),
        ]
        dims = tuple(0 if laned else None for _, laned in chosen)
        args = [t if laned else t[0] for t, laned in chosen]
        if not any(laned for _, laned in chosen):
            return vmap(lambda _: one(*args))(torch.zeros(lanes))
        return vmap(one, in_dims=dims)(*args)

    assert both(run).traced == 1


def test_lanes_on_another_axis() -> None:
    def run() -> Any:
        def one(w: Tensor, xs: Tensor) -> Any:
            return fold(lambda c, x: torch.tanh(c + x), w, xs)

        return vmap(one, in_dims=(1, 2))(numbers("w", 3, 4), numbers("x", 6, 3, 4))

    assert both(run).traced == 1


PRESENCE = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("closure", PRESENCE)
@pytest.mark.parametrize("carry", PRESENCE)
def test_nested_vmap(carry: tuple[bool, bool], closure: tuple[bool, bool]) -> None:
    """Models inside clients: each of carry, data and closure has lanes at either level or none."""
    clients, models, steps = 4, 3, 5

    def shaped(name: str, has: tuple[bool, bool], *rest: int) -> Tensor:
        return numbers(name, *((clients,) if has[0] else ()), *((models,) if has[1] else ()), *rest)

    w, s = shaped("w", carry, 2), shaped("s", closure, 2)
    xs = {"a": numbers("a", clients, steps, 2), "b": numbers("b", clients, steps)}

    def run() -> Any:
        def one(w: Tensor, s: Tensor, xs: Any) -> Any:
            return fold(body_of(s, 0.2), (w, torch.zeros(2)), xs)

        def client(w: Tensor, s: Tensor, xs: Any) -> Any:
            dims = (0 if carry[1] else None, 0 if closure[1] else None, None)
            if not (carry[1] or closure[1]):
                return vmap(lambda _: one(w, s, xs))(torch.zeros(models))
            return vmap(one, in_dims=dims)(w, s, xs)

        return vmap(client, in_dims=(0 if carry[0] else None, 0 if closure[0] else None, 0))(
            w, s, xs
        )

    assert both(run).traced == 1


def test_nested_vmap_with_ragged_clients() -> None:
    counts = torch.tensor([6, 4, 4, 1])

    def run(counts: Tensor) -> Any:
        def client(xs: Tensor, count: Tensor) -> Any:
            def model(w: Tensor) -> Any:
                return fold(lambda c, x: torch.tanh(c * x + 0.3), w, xs, count)

            return vmap(model)(numbers("w", 3, 2))

        return vmap(client)(numbers("x", 4, 6, 2), counts)

    assert both(run, counts).traced > 0
    both(run, counts.flip(0))


def test_counts_that_differ_inside() -> None:
    counts = torch.tensor([[6, 2], [3, 4]])

    def run() -> Any:
        def client(xs: Tensor, counts: Tensor) -> Any:
            return vmap(lambda w, n: fold(lambda c, x: c * x + 1, w, xs, n))(
                numbers("w", 2), counts
            )

        return vmap(client)(numbers("x", 2, 6), counts)

    both(run)


# --- ragged counts --------------------------------------------------------------------------------


def ragged(counts: Tensor, steps: int = 7) -> Any:
    lanes = len(counts)

    def one(w: Tensor, xs: Tensor, count: Tensor, pull: Tensor) -> Any:
        def body(carry: Any, x: Tensor) -> Any:
            now, taken = carry
            g = grad(lambda v: ((v - x) * pull).square().sum())(now)
            return now - 0.05 * g, taken + 1

        return fold(body, (w, torch.zeros((), dtype=torch.int64)), xs, count)

    args = numbers("w", lanes, 2), numbers("x", lanes, steps, 2), counts, numbers("p", lanes, 2)
    return vmap(one)(*args)


shared = Programs()


@settings(max_examples=25)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=13))
def test_ragged_counts(counts: list[int]) -> None:
    both(ragged, torch.tensor(sorted(counts, reverse=True)), programs=shared)
    with using(shared):
        taken = ragged(torch.tensor(sorted(counts, reverse=True)))[1]
    assert taken.tolist() == sorted(counts, reverse=True)


def test_counts_in_no_order() -> None:
    both(ragged, torch.tensor([2, 7, 1, 3, 3]))


@pytest.mark.parametrize("counts", [[3, 1, 0], [5, 0, 0], [0, 0]])
def test_lanes_without_a_step_keep_what_they_had(counts: list[int]) -> None:
    both(ragged, torch.tensor(counts))


def test_count_beyond_the_data_means_all_of_it() -> None:
    both(ragged, torch.tensor([99, 7, 3]))


def test_one_count_for_all_lanes() -> None:
    def run() -> Any:
        def one(w: Tensor, xs: Tensor) -> Any:
            return fold(lambda c, x: c * 0.5 + x, w, xs, torch.tensor(3))

        return vmap(one)(numbers("w", 4), numbers("x", 4, 6))

    both(run)


def test_no_steps_at_all() -> None:
    both(lambda: fold(torch.add, numbers("w", 3), torch.zeros(0, 3)))
    both(lambda: vmap(lambda w: fold(torch.add, w, torch.zeros(0)))(numbers("w", 3)))


@given(st.integers(1, 600), st.sampled_from([RUNGS, RUNGS[-1:]]))
def test_ladder_is_never_below_what_is_active(active: int, rungs: tuple[int, ...]) -> None:
    made = ladder(active, rungs)
    assert active <= made <= max(rungs[-1], 1.5 * active)
    assert ladder(made, rungs) == made  # few rungs: a rung is its own rung


@pytest.mark.parametrize("nested", [False, True])
def test_long_uneven_lanes_run_down_to_one(nested: bool) -> None:
    """The longest lane runs alone, without lanes in its operations."""
    counts = torch.tensor([90, 50, 48, 7, 7, 3, 3, 2, 2, 1])
    w = numbers("w", 10, 3, 2) if nested else numbers("w", 10, 2)

    def run() -> Any:
        def client(w: Tensor, xs: Tensor, count: Tensor) -> Any:
            def model(w: Tensor) -> Any:
                return fold(lambda c, x: torch.tanh(c * x + 0.3), w, xs, count)

            return vmap(model)(w) if nested else model(w)

        return vmap(client)(w, numbers("x", 10, 90, 2), counts)

    programs = both(run)
    assert programs.traced == 4  # of 10, 8, 4 and 1 lanes: two lanes are left for two steps only


def test_a_step_that_is_used_often_becomes_faster_with_the_same_bits() -> None:
    """Its rows are then looked up for many steps at once, and it runs without Python."""
    pool, w = numbers("pool", 40, 3), numbers("w", 4, 3)
    counts = torch.tensor([45, 45, 40, 2])
    rows = (numbers("rows", 4, 45, 5).abs() * 1000).long() % 40

    def run() -> Any:
        def client(w: Tensor, rows: Tensor, count: Tensor) -> Tensor:
            def body(w: Tensor, at: Tensor) -> Tensor:
                x, weight = torch.nn.functional.embedding(at, pool), (at > 3).to(torch.float32)

                def loss(v: Tensor) -> Tensor:
                    return ((x * v).tanh().sum(-1) * weight).sum() / weight.sum().clamp(min=1)

                return w - 0.1 * grad(loss)(w)

            ended: Tensor = fold(body, w, rows, count)
            return ended

        return vmap(client)(w, rows, counts)

    programs, expected = Programs(), run()
    results = []
    for _ in range(10):
        with torch.no_grad(), using(programs):
            results.append(run())
    assert torch.allclose(results[0], expected, atol=1e-6)
    assert programs.faster == programs.traced == 1
    assert all(torch.equal(results[0], result) for result in results)


@pytest.mark.parametrize("kept", [False, True])
def test_the_longest_lane_alone_is_carried_without_lanes(kept: bool) -> None:
    """With the same bits as in the steps before; the lanes that ended keep their own results."""
    pool, w, b = numbers("pool", 40, 3), numbers("w", 3, 3, 2), numbers("b", 3, 2)
    counts = torch.tensor([290, 120, 4])
    rows = (numbers("rows", 3, 290, 5).abs() * 1000).long() % 40

    def run() -> Any:
        def client(w: Tensor, b: Tensor, rows: Tensor, count: Tensor) -> Any:
            def body(carry: Any, at: Tensor) -> Any:
                x, y = torch.nn.functional.embedding(at, pool), (at % 2).to(torch.float32)

                def loss(w: Tensor, b: Tensor) -> Tensor:
                    return ((x @ w + b).tanh().sum(-1) - y).square().mean()

                dw, db = grad(loss, argnums=(0, 1))(*carry[:2])
                ended = (carry[0] - 0.1 * dw, carry[1] - 0.1 * db)
                return (*ended, carry[2]) if kept else ended

            start = (w, b, b * 2) if kept else (w, b)
            return fold(body, start, rows, count)

        return vmap(client)(w, b, rows, counts)

    programs, expected = Programs(), run()
    results = []
    for _ in range(6):
        with torch.no_grad(), using(programs):
            results.append(run())
    single = [p.ahead.single for p in programs._cache.values() if p.ahead is not None]
    assert single.count(True) == 1
    for result in results:
        assert all(map(torch.equal, results[0], result))
    assert all(torch.allclose(a, e, atol=1e-4) for a, e in zip(results[0], expected, strict=True))


def test_only_an_axis_of_one_lane_that_nothing_reads_is_dropped() -> None:
    steps: dict[str, tuple[Any, int]] = {
        "dropped": (lambda p, q: ((p[0] - q).unsqueeze(0),), 1),
        "more lanes": (lambda p, q: ((p[0] - q).unsqueeze(0),), 2),
        "read with the axis": (lambda p, q: ((p[0] - q).unsqueeze(0) + p.sum(0),), 1),
        "another axis": (lambda p, q: ((p[:, 0] - q[0]).unsqueeze(1),), 1),
        "returned in another place": (lambda p, q: ((p[0] - q).unsqueeze(1),), 1),
    }
    for name, (step, lanes) in steps.items():
        p, q = numbers("p", lanes, 3), numbers("q", 3)
        graph = trace(step, [p, q])
        (expected,) = graph(p, q)
        dropped = without_lane(graph, 1)
        assert dropped == (name == "dropped"), name
        (got,) = graph(p[0] if dropped else p, q)
        assert torch.equal(got, expected[0] if dropped else expected), name


def test_a_program_that_the_interpreter_changes_is_kept() -> None:
    calls = itertools.count()

    def program(x: Tensor) -> list[Tensor]:
        return [x + next(calls)]  # a number that tracing makes a constant

    assert without_python(program, [torch.ones(2)], 1) is program
    assert without_python(lambda x: [x + 1], [torch.ones(2)], 1) is not None
