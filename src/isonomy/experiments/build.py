"""From a config to the things it names: federation, task, algorithm, engine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

from isonomy import algorithms
from isonomy.algorithm import Algorithm
from isonomy.data.datasets import DATASETS, load
from isonomy.data.federation import Federation
from isonomy.data.fetch import CACHE
from isonomy.data.tables.federate import fingerprint
from isonomy.engines.base import Engine
from isonomy.engines.batched import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError, FetchError, unknown
from isonomy.experiments.schema import Config, Data, Model
from isonomy.models import make_task
from isonomy.task import Params, Task

SMALL = 200_000  # parameters up to which one thread is used: more threads only wait for each other

Note = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a run needs, built."""

    config: Config
    federation: Federation
    task: Task
    algorithm: Algorithm
    params: Params
    fingerprint: str = ""  # of the user's own tables, to know them again
    remote: bool = False  # the rows are with the clients, and `federation` only knows how many


def build(config: Config, note: Note = lambda _: None) -> Setting:
    """Build and check everything before anything is trained or written."""
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    config = effective(config, note)
    federation = federation_of(config)
    if federation.origin not in ("", CACHE):
        note(f"'{config.data.name}' came from {federation.origin}.")
    if config.cohort.size is not None and config.cohort.size > len(federation):
        raise ConfigError(
            f"cohort.size = {config.cohort.size}, but '{federation.source}' has only "
            f"{len(federation)} clients; lower it or leave it out."
        )
    task = _task(federation, config.model.model_dump_json())
    params = task.init(config.seed)
    if federation not in _told:
        _told.add(federation)
        for text in federation.warnings:
            note(text)
    own = fingerprint(federation) if config.data.name == "tables" else ""
    return Setting(config, federation, task, algorithm, params, own)


_told: WeakSet[Federation] = WeakSet()  # warnings are told once, not for each run


def effective(config: Config, note: Note = lambda _: None) -> Config:
    """The config that will really be run: with the fallback where the data cannot be had.

    A run's folder holds this one, so that it says what was done, and resumes as it began.
    """
    data = config.data
    path = data.options.get("path")
    if isinstance(path, str) and path:  # found again wherever the run is resumed from
        place = Path(os.path.expanduser(path)).absolute()
        whole = data.model_copy(update={"path": str(place)})
        config = config.model_copy(update={"data": whole})
    if data.fallback is None:
        return config
    if data.fallback not in DATASETS:
        raise ConfigError(f"data.fallback: {unknown('data set', data.fallback, DATASETS)}")
    try:
        if data.name not in _unreachable:
            federation_of(config)
            return config
    except FetchError as error:
        _unreachable[data.name] = str(error)
    note(f"{_unreachable[data.name]} Going on with '{data.fallback}' instead.")
    instead = Data(name=data.fallback, clients=data.clients, seed=data.seed)
    return config.model_copy(update={"data": instead})


_unreachable: dict[str, str] = {}  # data sets that this process has tried in vain


def federation_of(config: Config) -> Federation:
    """The config's examples; the same object when asked for again."""
    data = config.data
    seed = config.seed if data.seed is None else data.seed
    stamp = _stamp(data.options.get("path"))
    return _load(
        data.name, data.clients, seed, _freeze(data.partition), _freeze(data.options), stamp
    )


def _stamp(path: Any) -> tuple[Any, ...]:
    """What changes when a user's files do, so that a changed table is read again."""
    if not isinstance(path, str) or not path:
        return ()
    place = Path(os.path.expanduser(path))
    try:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        return tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.exists())
    except (OSError, ValueError):  # whoever reads it says what is wrong with it
        return ()


@lru_cache(maxsize=8)
def _load(
    name: str, clients: int | None, seed: int, partition: Any, options: Any, stamp: Any
) -> Federation:
    del stamp  # only part of the key
    return load(
        name, clients=clients, seed=seed, partition=_thaw(partition), options=_thaw(options) or {}
    )


@lru_cache(maxsize=8)
def _task(federation: Federation, model: str) -> Task:
    """The task; the same object when asked for again, so that its traced steps serve again."""
    m = Model.model_validate_json(model)
    return make_task(m.name, federation, m.options, loss=m.loss, convert=m.convert)


def _freeze(value: Any) -> Any:
    """A hashable form of TOML values, for the cache."""
    if isinstance(value, dict):
        return ("table", tuple((k, _freeze(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(_freeze(v) for v in value))
    return value


def _thaw(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "table":
        return {k: _thaw(v) for k, v in value[1]}
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "list":
        return [_thaw(v) for v in value[1]]
    return value if value != () else {}


def engine_of(setting: Setting, note: Note = lambda _: None, chunks: Any = None) -> Engine:
    """The config's engine, and torch's threads set as it says."""
    config = setting.config.engine
    torch.set_num_threads(_threads(setting))
    seed = setting.config.seed
    if config.name == "loop":
        return Loop(setting.task, setting.federation, seed=seed)
    compile = config.compile
    if compile and not has_compiler():
        note("engine.compile needs a C++ compiler (g++, or what CXX names); going on uncompiled.")
        compile = False
    return Batched(
        setting.task,
        setting.federation,
        seed=seed,
        chunk=config.chunk,
        compile=compile,
        chunks=chunks,
    )


def has_compiler() -> bool:
    """Whether torch.compile would find a C++ compiler."""
    from torch._inductor import config as inductor

    names = inductor.cpp.cxx
    return any(name and shutil.which(name) for name in names)


def _threads(setting: Setting) -> int:
    asked = setting.config.engine.threads
    if asked != "auto":
        return asked
    numbers = sum(p.numel() for p in setting.params.values())
    conv = any(isinstance(m, nn.modules.conv._ConvNd) for m in setting.task.net.modules())
    return _CORES if conv or numbers > SMALL else 1


_CORES = torch.get_num_threads()


def versions() -> dict[str, str]:
    """What a run is made with."""
    return {
        "isonomy": version("isonomy"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
