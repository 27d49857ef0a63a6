"""A traced fold is the plain fold: with and without vmap, whatever the body closes over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.testing import assert_close

from isonomy.core import random
from isonomy.core.fold import fold, plain, using
from isonomy.engines.batched.program import Programs, ladder


def numbers(name: str, *shape: int) -> Tensor:
    return random.normal(random.key(5), name, shape)


def both(function: Callable[..., Any], *args: Any, programs: Programs | None = None) -> Programs:
    """Run with plain folds and with programs; fails unless they agree. Returns the programs."""
    programs = programs or Programs()
    with using(None):
        expected = function(*args)
    with using(programs):
        got = function(*args)
    assert_close(got, expected, rtol=1e-6, atol=1e-6)
    return programs


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


@given(st.integers(1, 600), st.sampled_from([1, 8, 64]))
def test_ladder_is_never_below_what_is_active(active: int, floor: int) -> None:
    made = ladder(active, floor=floor)
    assert active <= made <= max(floor, 1.5 * active)
    assert ladder(made, floor=floor) == made  # few rungs: a rung is its own rung


# --- what the body closes over --------------------------------------------------------------------


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Holder:
    value: Tensor
    factor: float

    def apply(self, x: Tensor) -> Tensor:
        return x * self.value * self.factor


@dataclass(frozen=True, eq=False)
class Outer:
    inner: Holder
    more: dict[str, Any]


def in_dict(t: Tensor) -> Callable[..., Tensor]:
    held = {"a": [t, (t * 2, {"b": t - 1})]}
    return lambda c, x: c * held["a"][0] + x * held["a"][1][0] + held["a"][1][1]["b"]


def in_named_tuple(t: Tensor) -> Callable[..., Tensor]:
    held = Pair(t, t + 1)
    return lambda c, x: c * held.left + x * held.right


def in_dataclass(t: Tensor) -> Callable[..., Tensor]:
    held = Outer(Holder(t, 0.5), {"shift": t - 2})
    return lambda c, x: held.inner.apply(c) + x + held.more["shift"]


def in_partial(t: Tensor) -> Callable[..., Tensor]:
    def step(scale: Tensor, c: Tensor, x: Tensor, *, shift: Tensor) -> Tensor:
        return c * scale + x * shift

    return functools.partial(step, t, shift=t + 3)


def in_bound_method(t: Tensor) -> Callable[..., Tensor]:
    apply = Holder(t, 2.0).apply
    return lambda c, x: torch.tanh(apply(c)) + x


def in_defaults(t: Tensor) -> Callable[..., Tensor]:
    def step(c: Tensor, x: Tensor, scale: Tensor = t, *, shift: Tensor = t * 3) -> Tensor:
        return torch.tanh(c * scale) + x * shift

    return step


def in_function_in_function(t: Tensor) -> Callable[..., Tensor]:
    def inner(c: Tensor) -> Tensor:
        return c * t

    def middle(c: Tensor) -> Tensor:
        return inner(c) + 1

    return lambda c, x: middle(torch.tanh(c)) + x


def in_gradient(t: Tensor) -> Callable[..., Tensor]:
    slope = grad(lambda v: (v * t).square().sum())
    return lambda c, x: c - 0.1 * slope(c) + x


PLACES = [
    in_dict,
    in_named_tuple,
    in_dataclass,
    in_partial,
    in_bound_method,
    in_defaults,
    in_function_in_function,
    in_gradient,
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("laned", [True, False])
def test_closures_and_their_changes(place: Callable[..., Any], laned: bool) -> None:
    """One trace serves every value of what is closed over; none goes stale."""
    programs = Programs()

    def run(t: Tensor, name: str) -> Any:
        xs = numbers(name, 4, 5, 2)
        if laned:
            return vmap(lambda s, x: fold(place(s), numbers("w", 2), x))(t, xs)
        return vmap(lambda x: fold(place(t[0]), numbers("w", 2), x))(xs)

    for name in ("one", "two", "three"):
        both(run, numbers(name, 4, 2), name, programs=programs)
    assert programs.traced == 1


@pytest.mark.parametrize("place", PLACES)
def test_closures_without_vmap(place: Callable[..., Any]) -> None:
    programs = Programs()
    for name in ("one", "two"):
        t = numbers(name, 2)
        both(lambda t=t: fold(place(t), numbers("w", 2), numbers("x", 5, 2)), programs=programs)
    assert programs.traced == 1


def test_tensor_changed_in_place_between_calls() -> None:
    held = numbers("t", 3)
    programs = Programs()

    def body(c: Tensor, x: Tensor) -> Tensor:
        return c * held + x

    for _ in range(3):
        both(lambda: fold(body, numbers("w", 3), numbers("x", 4, 3)), programs=programs)
        held.add_(1.0)
    assert programs.traced == 1


@pytest.mark.parametrize("values", [(0.5, 0.25), (1, 1.0), (True, 2), ("a", "b"), (None, 3)])
def test_other_values_make_another_trace(values: tuple[Any, Any]) -> None:
    programs = Programs()

    def make(value: Any) -> Callable[..., Tensor]:
        def body(c: Tensor, x: Tensor) -> Tensor:
            factor = {"a": 2.0, "b": 3.0}.get(value, 4.0) if isinstance(value, str) else value
            return c * (factor or 0.1) + x

        return body

    for value in (*values, *values):
        both(lambda v=value: fold(make(v), numbers("w", 3), numbers("x", 4, 3)), programs=programs)
    assert programs.traced == 2


def test_closed_over_tensor_is_the_carry() -> None:
    """As in FedProx: the anchor is where the descent starts."""

    def run(w: Tensor) -> Any:
        return fold(lambda c, x: c - 0.1 * (c - x) - 0.5 * (c - w), w, numbers("x", 5, 2))

    both(run, numbers("w", 2))
    both(vmap(run), numbers("w", 4, 2))


def test_closed_over_tensor_is_the_data() -> None:
    xs = numbers("x", 1, 2)
    both(lambda: fold(lambda c, x: c * x + xs[0] * c - xs.sum(), xs[0], xs))


def test_two_names_for_one_tensor_then_two_tensors() -> None:
    programs = Programs()

    def run(a: Tensor, b: Tensor) -> Any:
        return fold(lambda c, x: c * a + b * x, numbers("w", 2), numbers("x", 4, 2))

    a, b = numbers("a", 2), numbers("b", 2)
    for pair in ((a, a), (a, b), (b, a), (b, b)):
        both(run, *pair, programs=programs)


def test_the_same_body_on_data_of_another_structure() -> None:
    programs = Programs()

    def body(c: Tensor, x: dict[str, Tensor]) -> Tensor:
        return c + x["plus"] if "plus" in x else c - x["minus"]

    for name in ("plus", "minus", "plus"):
        xs = {name: numbers("x", 4, 2)}
        both(lambda xs=xs: fold(body, torch.zeros(2), xs), programs=programs)


def test_a_small_cache_forgets_and_stays_right() -> None:
    programs = Programs(keep=1)
    for k in (2, 3, 2, 3):
        both(
            lambda k=k: fold(in_dict(numbers("t", k)), numbers("w", k), numbers("x", 4, k)),
            programs=programs,
        )
    assert programs.traced == 4


def test_carry_that_stays_as_it_is() -> None:
    def run(w: Tensor) -> Any:
        return fold(lambda c, x: (c[0], c[1] + x), (w, w), numbers("x", 4, 2))

    both(run, numbers("w", 2))
    both(vmap(run), numbers("w", 3, 2))


RATE = 0.1


def steps_of(name: str, rate: Any, anchor: Tensor) -> Callable[[Any, Any], Any]:
    """Bodies in which it matters whether p - rate * g may be written over p."""

    def keeps_the_old(c: Any, x: Tensor) -> Any:
        return c[0] - rate * x, c[0]

    def reads_the_old_later(c: Any, x: Tensor) -> Any:
        new = c[0] - rate * x
        return new, c[1] + c[0] * new

    def reads_a_view_later(c: Any, x: Tensor) -> Any:
        turned = c[0].t()
        new = c[0] - rate * x
        return new, c[1] + turned

    def transposes_itself(c: Any, x: Tensor) -> Any:
        return c[0] - rate * c[0].t(), c[1] - rate * c[1].flip(0)

    def uses_the_other_before(c: Any, x: Tensor) -> Any:
        first, second = rate * x, rate * c[0]
        return c[0] - first, c[1] - second

    def uses_the_other_after(c: Any, x: Tensor) -> Any:
        new = c[0] - rate * x
        return new, c[1] - rate * new

    def gives_one_result_twice(c: Any, x: Tensor) -> Any:
        new = c[0] - rate * x
        return new, new + 0 * c[1], new, c[2] * 2 + c[3]

    def gives_one_result_to_two(c: Any, x: Tensor) -> Any:
        new = c[0] - rate * x
        return new, new, c[2] + 2 * c[1]

    def starts_anew_from_the_anchor(c: Any, x: Tensor) -> Any:
        return anchor, c[0] - rate * x

    def keeps_its_data(c: Any, x: Tensor) -> Any:
        return x, c[0] - rate * x

    def swaps(c: Any, x: Tensor) -> Any:
        return c[1], c[0] - rate * x

    def subtracts_twice(c: Any, x: Tensor) -> Any:
        return c[0] - rate * x, c[0] - rate * (x + 1)

    def multiplies_itself(c: Any, x: Tensor) -> Any:
        return c[0] - c[0] * x, c[1] - rate * (c[1] - anchor)

    return locals()[name]


STEPS = {
    "keeps_the_old": 2,
    "reads_the_old_later": 2,
    "reads_a_view_later": 2,
    "transposes_itself": 2,
    "uses_the_other_before": 2,
    "uses_the_other_after": 2,
    "gives_one_result_twice": 4,
    "gives_one_result_to_two": 3,
    "starts_anew_from_the_anchor": 2,
    "keeps_its_data": 2,
    "swaps": 2,
    "subtracts_twice": 2,
    "multiplies_itself": 2,
}


@pytest.mark.parametrize("kind", ["number", "scalar", "tensor"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("lanes", [None, 3])
def test_steps_written_over_their_carry(name: str, kind: str, lanes: int | None) -> None:
    """Whatever is updated in place, no value that is still needed changes, in or out."""
    rate: Any = {"number": RATE, "scalar": torch.tensor(RATE), "tensor": torch.full((2, 2), RATE)}
    lead = (lanes,) if lanes else ()
    start = tuple(numbers(f"w{i}", *lead, 2, 2) for i in range(STEPS[name]))
    anchor, xs = numbers("anchor", *lead, 2, 2), numbers("x", *lead, 5, 2, 2)
    given = [*start, anchor, xs]
    before = [t.clone() for t in given]

    def run() -> Any:
        def one(carry: tuple[Tensor, ...], anchor: Tensor, xs: Tensor) -> Any:
            return fold(steps_of(name, rate[kind], anchor), carry, xs)

        return (vmap(one) if lanes else one)(start, anchor, xs)

    programs = both(run)
    assert programs.traced == 1
    assert_close(given, before, rtol=0, atol=0)
    both(run, programs=programs)


def test_a_step_whose_rate_is_of_another_type() -> None:
    rate = torch.tensor([0.1, 0.2], dtype=torch.float64)

    def body(c: Tensor, x: Tensor) -> Tensor:
        return (c - rate * x).float()

    both(lambda: fold(body, numbers("w", 2), numbers("x", 5, 2)))
    wide = numbers("x", 5, 2).double()
    both(lambda: fold(lambda c, x: c - rate * x, numbers("w", 2).double(), wide))


def test_results_do_not_share_memory_with_what_went_in() -> None:
    """A caller may keep its tensors: no result is written into them."""
    w, xs = numbers("w", 3, 2), numbers("x", 3, 4, 2)
    before = w.clone(), xs.clone()
    with using(Programs()):
        vmap(lambda w, x: fold(torch.add, w, x))(w, xs)
        vmap(lambda w, x, n: fold(torch.add, w, x, n))(w, xs, torch.tensor([4, 2, 1]))
    assert_close((w, xs), before, rtol=0, atol=0)


# --- what must not be traced ----------------------------------------------------------------------

GLOBAL = torch.ones(2)
GLOBAL_SCALAR = torch.tensor(1.0)
GLOBAL_DICT = {"t": torch.ones(2), "s": torch.tensor(1.0)}


def uses_global(c: Tensor, x: Tensor) -> Tensor:
    return c * GLOBAL + x


def uses_global_scalar(c: Tensor, x: Tensor) -> Tensor:
    return c * GLOBAL_SCALAR + x


def uses_global_through_a_function(c: Tensor, x: Tensor) -> Tensor:
    return uses_global(c, x) + 1


def uses_global_dict(c: Tensor, x: Tensor) -> Tensor:
    return c * GLOBAL_DICT["t"] + x


def uses_global_dict_scalar(c: Tensor, x: Tensor) -> Tensor:
    return c * GLOBAL_DICT["s"] + x


@pytest.mark.parametrize(
    "body",
    [
        uses_global,
        uses_global_scalar,
        uses_global_through_a_function,
        uses_global_dict,
        uses_global_dict_scalar,
    ],
)
@pytest.mark.parametrize("lanes", [None, 3])
def test_globals_never_go_stale(
    body: Callable[..., Any], lanes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs()

    def run() -> Any:
        if lanes is None:
            return fold(body, numbers("w", 2), numbers("x", 4, 2))
        return vmap(lambda w: fold(body, w, numbers("x", 4, 2)))(numbers("w", lanes, 2))

    for value in (1.0, 2.0, 3.0):
        monkeypatch.setitem(globals(), "GLOBAL", torch.full((2,), value))
        monkeypatch.setitem(globals(), "GLOBAL_SCALAR", torch.tensor(value))
        made = {"t": torch.full((2,), value), "s": torch.tensor(value)}
        monkeypatch.setitem(globals(), "GLOBAL_DICT", made)
        both(run, programs=programs)


class Buffered(nn.Module):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", buffer)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.held


@pytest.mark.parametrize("shape", [(2,), ()])
def test_a_module_with_a_buffer_that_changes(shape: tuple[int, ...]) -> None:
    net, programs = Buffered(torch.ones(shape)), Programs()
    for _ in range(2):
        both(
            lambda: fold(lambda c, x: net(c) + x, numbers("w", 2), numbers("x", 4, 2)),
            programs=programs,
        )
        net.held.add_(1.0)


def test_constants_made_in_the_body_are_traced() -> None:
    """A scalar made on the spot is no reason to give up the trace."""

    def body(c: Tensor, x: Tensor) -> Tensor:
        return c * torch.tensor(0.5) + torch.where(x > 0, x, torch.zeros(())) + torch.arange(2)

    programs = both(lambda: fold(body, numbers("w", 2), numbers("x", 4, 2)))
    assert programs.traced == 1
    assert not programs.refused


class Thing:
    def __init__(self, value: float) -> None:
        self.value = value


@pytest.mark.parametrize(
    "make",
    [
        Thing,
        lambda v: type("T", (), {"value": v})(),
        lambda v: Pair(torch.full((2,), v), np.array([v])),  # type: ignore[arg-type]
        lambda v: {v},
    ],
    ids=["object", "local class", "array", "set"],
)
def test_what_cannot_be_lifted_runs_untraced(make: Callable[[float], Any]) -> None:
    programs = Programs()
    for value in (1.0, 2.0):
        held = make(value)

        def factor(held: Any = held) -> Any:
            if isinstance(held, set):
                return next(iter(held))
            return held.value if hasattr(held, "value") else held.left

        body = lambda c, x, held=held, factor=factor: c * factor(held) + x  # noqa: E731
        both(lambda body=body: fold(body, numbers("w", 2), numbers("x", 4, 2)), programs=programs)
    assert programs.traced == 0


def test_an_object_that_changes_under_the_same_body() -> None:
    thing, programs = Thing(1.0), Programs()

    def body(c: Tensor, x: Tensor) -> Tensor:
        return c * thing.value + x

    for _ in range(3):
        both(lambda: fold(body, numbers("w", 2), numbers("x", 4, 2)), programs=programs)
        thing.value += 1.0


def test_recursive_functions() -> None:
    def down(n: int, t: Tensor) -> Tensor:
        return t if n == 0 else 0.5 * down(n - 1, t) + 1

    both(lambda: fold(lambda c, x: down(3, c) + x, numbers("w", 2), numbers("x", 4, 2)))


def test_functions_that_call_each_other() -> None:
    def even(n: int, t: Tensor) -> Tensor:
        return t if n == 0 else odd(n - 1, t * 2)

    def odd(n: int, t: Tensor) -> Tensor:
        return even(n - 1, t + 1)

    both(lambda: fold(lambda c, x: 0.1 * even(4, c) + x, numbers("w", 2), numbers("x", 4, 2)))


def test_a_name_that_is_bound_later() -> None:
    def run() -> Tensor:
        def body(c: Tensor, x: Tensor) -> Tensor:
            return c + x if x.dim() else c + later

        out = fold(body, numbers("w", 2), numbers("x", 4, 2))
        later = 1.0
        return out + later

    both(run)


def test_inside_grad_the_plain_loop_runs() -> None:
    def end(w: Tensor) -> Tensor:
        return fold(lambda c, x: torch.tanh(c * w + x), w, numbers("x", 4, 2)).sum()

    assert both(grad(end), numbers("w", 2)).traced == 0
    assert both(vmap(grad(end)), numbers("w", 3, 2)).traced == 0
    assert both(grad(lambda w: vmap(end)(w).sum()), numbers("w", 3, 2)).traced == 0


def test_fold_inside_fold() -> None:
    def run(w: Tensor, xs: Tensor) -> Tensor:
        def outer(c: Tensor, x: Tensor) -> Tensor:
            return fold(lambda d, y: 0.5 * d + y * c.mean(), c, x)

        return fold(outer, w, xs)

    both(run, numbers("w", 2), numbers("x", 3, 4, 2))
    both(vmap(run), numbers("w", 5, 2), numbers("x", 5, 3, 4, 2))


def test_errors_of_the_body_come_through_and_leave_vmap_usable() -> None:
    def bad(c: Tensor, x: Tensor) -> Tensor:
        raise ValueError("no such step")

    with using(Programs()):
        with pytest.raises(ValueError, match="no such step"):
            vmap(lambda w: fold(bad, w, torch.zeros(2)))(torch.zeros(3))
        again = vmap(lambda w: fold(torch.add, w, torch.ones(2)))(torch.zeros(3))
    assert again.tolist() == [2.0, 2.0, 2.0]


def test_plain_is_what_fold_runs_without_a_runner() -> None:
    xs = numbers("x", 4, 2)
    assert torch.equal(fold(torch.add, torch.zeros(2), xs), plain(torch.add, torch.zeros(2), xs))


def test_a_body_that_cannot_be_traced_runs_plainly(monkeypatch):
    from isonomy.engines.batched import program

    def refuse(function):
        raise RuntimeError("not today")

    monkeypatch.setattr(program, "make_fx", refuse)
    runner = Programs()
    xs = torch.arange(6.0).reshape(3, 2)
    with using(runner):
        got = torch.func.vmap(lambda x: fold(lambda c, t: c + t, torch.zeros(()), x))(xs)
    assert got.tolist() == [1.0, 5.0, 9.0]
    assert runner.refused
