"""One planted fault of each kind in an engine, to see that the contract suite catches it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.planted import BATCHED, Sound, both, caught
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.personal.local import Local
from isonomy.contract import checks
from isonomy.contract.engines import sharing
from isonomy.contract.running import LOOP, Transport
from isonomy.core import tree
from isonomy.core.batches import Plan
from isonomy.core.client import Client
from isonomy.core.cohort import Ask
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop


@dataclass(frozen=True, eq=False)
class PaddedClient(Client):
    """A client whose padding counts, too."""

    @property
    def plan(self) -> Plan:
        made = super().plan
        return made._replace(weight=torch.ones_like(made.weight))


@dataclass(frozen=True, eq=False)
class OtherBatches(Client):
    """A client whose batches depend on how wide its chunk is."""

    @property
    def plan(self) -> Plan:
        return replace(self, key=self.key + self.widths[0])._base_plan()

    def _base_plan(self) -> Plan:
        return super().plan


class CountsPaddingEngine(Batched):
    def run_phase(self, ask: Ask, message: Any, lane: Any, shared: Any) -> Any:
        return ask.phase(self.task, message, PaddedClient(**lane, **shared))


class OtherBatchesEngine(Batched):
    def run_phase(self, ask: Ask, message: Any, lane: Any, shared: Any) -> Any:
        return ask.phase(self.task, message, OtherBatches(**lane, **shared))


class SharedDraws(Batched):
    """Gives all clients of a chunk the draws of its first."""

    def client(self, ask: Ask, ids: Tensor) -> dict[str, Any]:
        made = super().client(ask, ids)
        key = made["lanes"]["key"]
        made["lanes"]["key"] = key[:1].expand_as(key)
        return made


def engine(kind: type[Batched]) -> Transport:
    return replace(BATCHED, make=sharing(kind))


@pytest.mark.parametrize("kind", [CountsPaddingEngine, OtherBatchesEngine, SharedDraws])
def test_engine_with_other_batches(kind: type[Batched]) -> None:
    caught(checks.check_engines_agree, FedAvg(), engine(kind))
    caught(checks.check_draws, engine(kind))
    caught(checks.check_padding, FedAvg(), engine(kind))


def _wrong_states(transport: Transport, change: Callable[[Any, Tensor, Tree], None]) -> Transport:
    """An engine whose states are put by `change`."""

    def make(*args: Any, **options: Any) -> Engine:
        made = transport.make(*args, **options)
        reset = made.reset

        def reset_and_change(initial: Tree) -> None:
            reset(initial)
            states = made.states
            put = states.put
            states.put = lambda ids, new: change(put, ids, new)  # type: ignore[method-assign]

        made.reset = reset_and_change  # type: ignore[method-assign]
        return made

    return replace(transport, make=make)


def _to_the_next(put: Any, ids: Tensor, new: Tree) -> None:
    put((ids + 1) % 8, new)


def _forgets(put: Any, ids: Tensor, new: Tree) -> None:
    others = torch.tensor([k for k in range(8) if k not in ids.tolist()], dtype=torch.int64)
    if len(others):
        put(others, tree.tmap(lambda t: torch.zeros(len(others), *t.shape[1:]).to(t.dtype), new))
    put(ids, new)


@both
@pytest.mark.parametrize("change", [_to_the_next, _forgets])
def test_engine_that_misplaces_states(change: Any, transport: Transport) -> None:
    faulty = _wrong_states(transport, change)
    caught(checks.check_outside_untouched, Local(), faulty)
    caught(checks.check_engines_agree, Local(), faulty)


def test_engine_that_mixes_up_replies() -> None:
    class Mixed(Batched):
        def exchange(self, ask: Ask) -> Any:
            for chunk in super().exchange(ask):
                yield chunk._replace(ids=chunk.ids.flip(0))

    caught(checks.check_engines_agree, Sound(), engine(Mixed))
    caught(checks.check_missing_replies, Sound(), engine(Mixed))


def test_engine_with_its_own_generator() -> None:
    """Draws in sequence: correct until a run is resumed or one client fewer is asked."""

    class Sequential(Loop):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.calls = itertools.count()

        def client(self, ask: Ask, ids: Tensor) -> dict[str, Any]:
            made = super().client(ask, ids)
            made["lanes"]["key"] = torch.full_like(made["lanes"]["key"], next(self.calls))
            return made

    transport = replace(LOOP, make=Sequential)
    caught(checks.check_resume, FedAvg(), transport)
    caught(checks.check_order, FedAvg(), transport)
    caught(checks.check_draws, transport)
    checks.check_repeatable(FedAvg(), transport)  # which alone would not catch it


def test_engine_that_loses_precision() -> None:
    class Rounded(Batched):
        def exchange(self, ask: Ask) -> Any:
            for chunk in super().exchange(ask):
                yield chunk._replace(
                    value=tree.tmap(lambda t: t.bfloat16().to(t.dtype), chunk.value)
                )

    caught(checks.check_engines_agree, FedAvg(), engine(Rounded))
