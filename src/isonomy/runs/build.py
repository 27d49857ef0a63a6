"""From a config to the things it names: federation, task, algorithm, engine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isonomy import algorithms
from isonomy.config.schema import Config, Data, Model
from isonomy.core.algorithm import Algorithm
from isonomy.core.task import Params, Task
from isonomy.data.datasets import DATASETS, load
from isonomy.data.download.fetch import CACHE
from isonomy.data.federation import Federation
from isonomy.data.tables.federate import fingerprint
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError, FetchError, unknown
from isonomy.models import make_task
from isonomy.robust import attacks, combiners
from isonomy.robust.attacks import Attack
from isonomy.robust.combiners import Combiner
from isonomy.robust.defence import refusal
from isonomy.robust.labels import Poison, malicious, poisoned

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
    clean: Federation  # the federation as it is without an attack on its labels
    attack: Attack | None = None
    malicious: Tensor = field(default_factory=lambda: torch.arange(0))
    defence: Combiner | None = None
    fingerprint: str = ""  # of the user's own tables, to know them again
    remote: bool = False  # the rows are with the clients, and `federation` only knows how many

    @property
    def benign(self) -> NDArray[np.bool_]:
        """Which clients are not malicious."""
        out = np.ones(len(self.federation), dtype=np.bool_)
        out[self.malicious.numpy()] = False
        return out


def build(config: Config, note: Note = lambda _: None) -> Setting:
    """Build and check everything before anything is trained or written."""
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    attack = _attack(config)
    defence = _defence(config, algorithm, attack)
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
    given, who, seed = config.attack, torch.arange(0), attack_seed(config)
    if attack is not None:
        who = malicious(len(federation), fraction=given.fraction, ids=given.clients, seed=seed)
        if defence is not None and given.clients is not None:
            share = len(who) / len(federation)
            defence = combiners.make(config.defence.name, config.defence.options, attack=share)
    used = _poisoned(federation, tuple(who.tolist()), labels_of(config), seed)
    return Setting(config, used, task, algorithm, params, federation, attack, who, defence, own)


def _attack(config: Config) -> Attack | None:
    """The config's attack, its options checked."""
    given = config.attack
    if given.name != "none":
        made = attacks.make(given.name, given.options)
        if not made.forges and given.labels == "none":
            raise ConfigError(
                "attack.labels = 'none' leaves the attack 'labels' nothing to do; choose auto, "
                "random or flip."
            )
        return made
    if given.options or given.labels not in (None, "none") or given.clients:
        key = next(iter(given.options), "labels" if given.labels else "clients")
        raise ConfigError(
            f"attack.{key} is given, but attack.name is 'none'; name an attack "
            f"({', '.join(attacks.ATTACKS)}), or remove it."
        )
    return None


def _defence(config: Config, algorithm: Algorithm, attack: Attack | None) -> Combiner | None:
    """The config's defence, its options checked, and whether it would do anything."""
    given = config.defence
    if given.name == "none":
        if given.options:
            key = next(iter(given.options))
            raise ConfigError(
                f"defence.{key} is given, but defence.name is 'none'; name a defence "
                f"({', '.join(combiners.COMBINERS)}), or remove it."
            )
        return None
    share = None if attack is None else config.attack.fraction
    made = combiners.make(given.name, given.options, attack=share)
    refused = refusal(type(algorithm), given.name)
    if refused:
        raise ConfigError(refused)
    return made


def attack_seed(config: Config) -> int:
    """The seed of who is malicious and of what they draw."""
    return config.seed if config.attack.seed is None else config.attack.seed


def labels_of(config: Config) -> Poison:
    """What becomes of malicious clients' training labels."""
    if config.attack.labels is not None:
        return config.attack.labels
    return "auto" if config.attack.name == "labels" else "none"


@lru_cache(maxsize=8)
def _poisoned(federation: Federation, who: tuple[int, ...], how: Poison, seed: int) -> Federation:
    """The same object when asked for again."""
    return poisoned(federation, torch.tensor(who, dtype=torch.int64), how, seed)


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
