"""The engines that the contract is checked on: one row per engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from isonomy.contract.running import LOOP, Transport
from isonomy.core import tree
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.program import Programs

NAMES = ("loop", "batched", "flower")

_programs = Programs()  # one cache for all engines of the suite, so a stale program would show


def sharing(kind: type[Batched]) -> Callable[..., Batched]:
    """A function that makes engines that share their traced programs: tracing is slow."""

    def make(task: Task, federation: Federation, **options: Any) -> Batched:
        engine = kind(task, federation, **options)
        engine.programs = _programs
        return engine

    return make


class OnFlower(Transport):
    """Flower: every client stores its own state."""

    def states(self, engine: Engine) -> Tree:
        """A copy of every client's state, stacked."""
        return engine.stored_states()  # type: ignore[attr-defined]

    def restore(self, engine: Engine, states: Tree) -> None:
        """Give every client a state."""
        for k, client in enumerate(engine.clients):  # type: ignore[attr-defined]
            client.store.save(max(client.store.rounds(), default=0), tree.take(states, k))


def has_flower() -> bool:
    """Whether Flower is installed."""
    return importlib.util.find_spec("flwr") is not None


def transports() -> dict[str, Transport]:
    """The engines by name; without `flower` if Flower is not installed."""
    found = {"loop": LOOP, "batched": BATCHED}
    if has_flower():
        from isonomy.federation.flower.engine import InProcessFlower

        found["flower"] = OnFlower(InProcessFlower)
    return found


BATCHED = Transport(sharing(Batched), chunks=({"chunk": 2},))
