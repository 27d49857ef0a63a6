"""A phase that vmap cannot run is refused in words about the phase."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isonomy.contract.world import world
from isonomy.core.client import Client
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import IsonomyError


@phase("gather", n="statistic")
def takes_a_number(task: Task, message: Any, client: Client) -> Any:
    return {"n": torch.tensor(client.train.y.sum().item())}, client.state


@phase("gather", n="statistic")
def branches(task: Task, message: Any, client: Client) -> Any:
    n = client.size * 1.0
    return {"n": n if n > 3 else -n}, client.state


@phase("gather", n="statistic")
def draws(task: Task, message: Any, client: Client) -> Any:
    return {"n": client.size + torch.randn(())}, client.state


@phase("gather", n="statistic")
def selects(task: Task, message: Any, client: Client) -> Any:
    y = client.train.y
    return {"n": y[y > 0].sum()}, client.state


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (takes_a_number, "takes a number out of a tensor"),
        (branches, r"uses a tensor in `if`.*use torch\.where"),
        (draws, r"draws random numbers with torch.*use client\.uniform"),
        (selects, "boolean index"),
    ],
)
def test_what_the_phase_does_is_said(asked: Any, words: str) -> None:
    where = world()
    engine = Batched(where.task, where.federation, seed=0)
    engine.reset(())
    cohort = engine.cohort(engine.everyone(), work=Work(steps=1), round=0)
    with pytest.raises(IsonomyError, match=f"phase '{asked.__name__}'.*{words}") as error:
        cohort.gather(asked, {})
    assert "vmap" not in str(error.value)


@pytest.mark.parametrize("asked", [takes_a_number, branches])
def test_the_loop_engine_runs_it_as_the_message_says(asked: Any) -> None:
    where = world()
    engine = Loop(where.task, where.federation, seed=0)
    engine.reset(())
    cohort = engine.cohort(engine.everyone(), work=Work(steps=1), round=0)
    assert len(cohort.gather(asked, {}).value["n"]) == len(where.federation)
