"""A traced fold is the plain fold, whatever its body closes over and carries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.testing import assert_close

from core.folds import Pair, both, numbers
from isonomy.core.fold import fold, using
from isonomy.engines.batched.program import Programs


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
