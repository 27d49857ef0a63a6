"""What a fold must not trace: the plain loop runs instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from core.folds import Pair, both, numbers
from isonomy.core.fold import fold, plain, using
from isonomy.engines.batched.program import Programs

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

    def refuse(function, inputs):
        raise RuntimeError("not today")

    monkeypatch.setattr(program, "trace", refuse)
    runner = Programs()
    xs = torch.arange(6.0).reshape(3, 2)
    with using(runner):
        got = torch.func.vmap(lambda x: fold(lambda c, t: c + t, torch.zeros(()), x))(xs)
    assert got.tolist() == [1.0, 5.0, 9.0]
    assert runner.refused
