"""With a torch whose private interfaces differ, loops run untraced: same numbers, one warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from isonomy.algorithms import registry
from isonomy.contract.world import CLIENTS, world
from isonomy.core import tree
from isonomy.engines.batched import program, runner
from isonomy.engines.batched.engine import Batched


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The check runs again in every test, and again after it."""
    runner.problem.cache_clear()
    runner.shared.cache_clear()
    yield
    runner.problem.cache_clear()
    runner.shared.cache_clear()


def trained(name: str) -> Tensor:
    """All numbers of the server and the clients after two rounds on a new engine."""
    where, algorithm = world(), registry()[name]()
    engine = Batched(where.task, where.federation, seed=1)
    engine.reset(algorithm.init_client(where.task, where.params))
    server = algorithm.init_server(where.task, where.params, CLIENTS)
    for r in range(2):
        server = algorithm.round(server, engine.cohort(where.ids(r), work=where.work, round=r))
    leaves = tree.leaves(server) + tree.leaves(engine.states.stacked)
    return torch.cat([t.flatten().double() for t in leaves])


def changed_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(program.functorch, "get_unwrapped")


def missing_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isonomy.engines.batched.program", None)


def other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_wrap", lambda t, levels: t * 2)


def nothing_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.Programs, "_trace", _refuse)


def _refuse(*_: object) -> None:
    raise program._Refused


@pytest.mark.parametrize(
    "break_it", [changed_interface, missing_module, other_numbers, nothing_traced]
)
def test_untraced(break_it, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained("fmtl")
    assert runner.problem() is None
    runner.problem.cache_clear()
    runner.shared.cache_clear()
    break_it(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = trained("fmtl")
        trained("fmtl")
        assert isinstance(runner.shared(True), runner.Untraced)
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "pyproject.toml" in str(caught[0].message)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_no_warning_if_it_works() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(runner.shared(False), program.Programs)
    assert runner.problem() is None
