"""The engines that a config can name. A new engine is one module and one entry here."""

from __future__ import annotations

from isonomy.core.task import Task
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine, EngineOptions, Note
from isonomy.engines.batched.engine import Batched
from isonomy.engines.distributed.engine import Distributed
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError, unknown

ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (Batched, Loop, Distributed)}


def make(
    name: str,
    task: Task,
    federation: Federation,
    *,
    seed: int,
    options: EngineOptions,
    note: Note = lambda _: None,
) -> Engine:
    """The engine of this name, with the options of the config's engine table."""
    if name not in ENGINES:
        raise ConfigError(f"engine.name: {unknown('engine', name, ENGINES)}")
    return ENGINES[name].make(task, federation, seed=seed, options=options, note=note)
