"""The number of threads: found by a timing, kept with the run, and used again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.contract.world import world
from isonomy.core.work import Work
from isonomy.engines.batched import engine as engine_module
from isonomy.engines.batched.engine import Batched


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def one_round(engine: Batched, params: Any) -> None:
    engine.reset(())
    work = Work(batch=8, lr=0.1)
    engine.prepare(work)
    cohort = engine.cohort(engine.everyone(), work=work, round=0)
    fedavg = FedAvg()
    fedavg.round(fedavg.init_server(engine.task, params, cohort.clients), cohort)


@pytest.mark.parametrize(("slow", "chosen"), [(1, 2), (2, 1)])
def test_the_faster_number_is_used_and_kept(
    slow: int, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that one of the two numbers makes go faster."""
    where = world()
    task, federation = where.task, where.federation
    run, now = Batched._run, [0.0]

    def counted(self: Batched, *of: Any) -> Any:
        now[0] += 2.0 if torch.get_num_threads() == slow else 1.0
        return run(self, *of)

    monkeypatch.setattr(Batched, "_run", counted)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    engine = Batched(task, federation)
    engine.try_threads(2)
    one_round(engine, where.params)
    assert torch.get_num_threads() == chosen
    assert engine.saved()["threads"] == chosen

    torch.set_num_threads(3 - chosen)
    resumed = Batched(task, federation)
    resumed.try_threads(2)
    resumed.restore(engine.saved())
    assert torch.get_num_threads() == chosen
    monkeypatch.setattr(Batched, "_probe_threads", None)  # it is not timed again
    one_round(resumed, where.params)


def test_without_a_choice_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batched, "_probe_threads", None)
    where = world()
    task, federation = where.task, where.federation
    engine = Batched(task, federation)
    one_round(engine, where.params)
    assert "threads" not in engine.saved()
