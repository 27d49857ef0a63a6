"""From a config to what it names: federation, task, algorithm, attack, defence, engine."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterator
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
from isonomy.core.capabilities import GivesVerdict, LearnsFront
from isonomy.core.client import Pool
from isonomy.core.dynamo import without_dynamo
from isonomy.core.task import Params, Task
from isonomy.data.datasets import DATASETS, load, parts
from isonomy.data.download.fetch import CACHE
from isonomy.data.federation import Federation
from isonomy.data.tables.federate import fingerprint
from isonomy.engines import registry
from isonomy.engines.base import Engine, Note
from isonomy.engines.distributed import ranks
from isonomy.errors import ConfigError, FetchError, unknown
from isonomy.models import make_task
from isonomy.postprocess import METHODS, Method
from isonomy.postprocess import make as make_postprocess
from isonomy.privacy.evaluation import capped
from isonomy.privacy.ledger import Terms
from isonomy.privacy.noise import Key
from isonomy.privacy.secure.check import check as check_secure
from isonomy.robust import attacks, combiners
from isonomy.robust.attack import Attack, Roles, roles
from isonomy.robust.combiners import Combiner
from isonomy.robust.defence import refusal
from isonomy.robust.labels import Poison, flipped, malicious, poisoned
from isonomy.runs import coverage, preparation, trackers
from isonomy.runs.attack_check import check_attack
from isonomy.runs.engine_check import check_engine
from isonomy.runs.server_data import check_server_data, with_own_data
from isonomy.runs.threshold_check import check_data, check_method

SMALL = 200_000  # parameters up to which one thread is used; more threads would not be faster


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that a run needs, built and checked.

    In a real federation (`remote`) the organiser's `federation` is a placeholder that only knows
    how many examples each participant has, and a participant's holds its own rows only.
    """

    config: Config
    federation: Federation
    task: Task
    algorithm: Algorithm
    params: Params
    clean: Federation  # the federation without an attack on its labels
    attack: Attack | None = None
    malicious: Tensor = field(default_factory=lambda: torch.arange(0))
    defence: Combiner | None = None
    postprocess: Method | None = None
    fingerprint: str = ""  # of the user's own data, to recognise them
    remote: bool = False  # whether the examples are with the participants of a real federation
    privacy: Terms | None = None  # of differential privacy
    server_data: Pool | None = None  # the server's own examples, if the algorithm needs them

    @property
    def roles(self) -> Roles:
        """Which malicious clients forge replies, and which train on flipped groups."""
        if self.attack is None:
            return Roles(self.malicious[:0], self.malicious[:0])
        return roles(self.attack, self.malicious, attack_seed(self.config))

    @property
    def benign(self) -> NDArray[np.bool_]:
        """Which clients are not malicious."""
        out = np.ones(len(self.federation), dtype=np.bool_)
        out[self.malicious.numpy()] = False
        return out


def build(
    config: Config,
    note: Note = lambda _: None,
    *,
    federation: Federation | None = None,
    clients: int | None = None,
) -> Setting:
    """Build and check everything before anything is trained or written.

    This is the one builder: simulations, organisers and participants use it. In a real federation
    `federation` is what this process holds of it, in place of the config's data, and `clients` the
    number of participants. Raises ConfigError for what the config cannot have.
    """
    without_dynamo()
    remote = federation is not None
    config = coverage.private_config(with_recommended_work(config))
    algorithm, attack, defence = _method(config, remote=remote)
    check_engine(config, remote=remote)
    if federation is None:
        coverage.check(config, remote=False)
        config = effective(config, note)
        federation = federation_of(config)
        if federation.origin not in ("", CACHE):
            note(f"'{config.data.name}' came from {federation.origin}.")
    own: Pool | None = None
    if algorithm.needs_server_data:
        federation, own = with_own_data(federation, config)
    own_rows = clients is not None
    clients = len(federation) if clients is None else clients
    _check_cohort(config, clients, f"'{federation.source}'")
    check_secure(config, algorithm, clients)
    task = _task(federation, config.model.model_dump_json())
    check_data(config, federation, task)
    if attack is not None:
        check_attack(attack, algorithm, task)
    rules = _postprocess(config, algorithm, remote=remote)
    if rules is not None:
        _check_postprocess(rules, federation, task)
    terms = None
    if own_rows:  # a participant adds no noise: it only clips
        coverage.check(config, remote=remote)
    else:
        terms = coverage.terms_of(config, algorithm, task, federation, remote=remote)
    if coverage.counts_few(config):
        federation = capped(federation, config.privacy.counted, config.seed)
    params = task.init(config.seed)
    if federation not in _warned:
        _warned.add(federation)
        for text in federation.warnings:
            note(text)
    bad = malicious_clients(config, clients)
    if defence is not None:
        _warn_of_attackers(config, defence, len(bad), clients, note)
    used, known = federation, ""
    if not remote:
        flips = () if attack is None else tuple(roles(attack, bad, attack_seed(config)).flip)
        used = _poisoned(
            federation,
            tuple(bad.tolist()),
            labels_of(config),
            attack_seed(config),
            tuple(int(k) for k in flips),
            "" if attack is None else attack.attribute,
        )
        given = config.data.name in ("tables", "memory", "packed")
        known = fingerprint(federation) if given else ""
    return Setting(
        config=config,
        federation=used,
        task=task,
        algorithm=algorithm,
        params=params,
        clean=federation,
        attack=attack,
        malicious=bad,
        defence=defence,
        postprocess=rules,
        fingerprint=known,
        remote=remote,
        privacy=terms,
        server_data=own,
    )


def with_recommended_work(config: Config) -> Config:
    """The config whose local work is complete: what it leaves open is as the algorithm recommends.

    >>> from isonomy.config.schema import parse
    >>> given = {"algorithm": {"name": "propfair", "M": 4.0}}
    >>> with_recommended_work(parse(given)).local.lr
    0.4
    >>> with_recommended_work(parse(given | {"local": {"lr": 0.1}})).local.lr
    0.1
    """
    if not config.local.unset:
        return config
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    local = config.local.filled(algorithm.recommended_work())
    excess = config.excess
    if excess.lr is None and local.lr != config.local.lr:  # the reference is that of other methods
        excess = excess.model_copy(update={"lr": config.local.lr})
    return config.model_copy(update={"local": local, "excess": excess})


def check_remote(config: Config, clients: int) -> None:
    """Check what a real federation of so many participants can run, before anyone has joined."""
    trackers.require(config)
    algorithm = _method(config, remote=True)[0]
    coverage.check(config, remote=True)
    _postprocess(config, algorithm, remote=True)
    _check_cohort(config, clients, "the federation")
    check_secure(config, algorithm, clients)
    malicious_clients(config, clients)


def _method(config: Config, *, remote: bool) -> tuple[Algorithm, Attack | None, Combiner | None]:
    """The algorithm, the attack and the defence, with their options checked."""
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    check_method(config, algorithm, remote=remote)
    check_server_data(algorithm, remote=remote)
    attack = _attack(config)
    if attack is not None and remote:
        _check_remote_attack(config, attack)
    return algorithm, attack, _defence(config, algorithm, attack)


def _check_cohort(config: Config, clients: int, source: str) -> None:
    if config.cohort.size is not None and config.cohort.size > clients:
        raise ConfigError(
            f"cohort.size = {config.cohort.size}, but {source} has only {clients} clients; lower "
            "it or remove it."
        )


def malicious_clients(config: Config, clients: int) -> Tensor:
    """The numbers of the malicious clients among so many, drawn by the seed or listed."""
    if config.attack.name == "none":
        return torch.arange(0)
    given = config.attack
    return malicious(clients, fraction=given.fraction, ids=given.clients, seed=attack_seed(config))


def _attack(config: Config) -> Attack | None:
    """The config's attack, its options checked."""
    given = config.attack
    if given.name != "none":
        made = attacks.make(given.name, given.options)
        if made.name == "labels" and given.labels == "none":
            raise ConfigError(
                "attack.labels = 'none' leaves nothing for the attack 'labels' to do; choose "
                "auto, random or flip."
            )
        return made
    if given.options or given.labels not in (None, "none") or given.clients:
        key = next(iter(given.options), "labels" if given.labels else "clients")
        raise ConfigError(
            f"attack.{key} is set, but attack.name is 'none'; name an attack "
            f"({', '.join(attacks.ATTACKS)}), or remove it."
        )
    return None


def _check_remote_attack(config: Config, attack: Attack) -> None:
    """Refuse an attack that participants cannot carry out on their own machines."""
    possible = [
        name
        for name, kind in attacks.ATTACKS.items()
        if kind.forges and not kind.colludes and kind.flips == "none"
    ]
    remedy = (
        f"simulate it with `isonomy run`, or choose an attack that one participant can carry out "
        f"alone ({', '.join(possible)})."
    )
    if labels_of(config) != "none":
        raise ConfigError(
            f"attack.labels = '{labels_of(config)}': a real federation does not change the labels "
            f"of its participants; {remedy}"
        )
    if attack.flips != "none":
        raise ConfigError(
            f"attack.name = '{attack.name}': a real federation does not change the groups of its "
            f"participants' examples; {remedy}"
        )
    if not attack.alone:
        why = "needs the replies of several clients"
        if not attack.colludes:
            why = "sends replies of a wrong shape, which only a simulation makes"
        raise ConfigError(
            f"attack.name = '{attack.name}' {why}, so it cannot run in a real federation; {remedy}"
        )


def _defence(config: Config, algorithm: Algorithm, attack: Attack | None) -> Combiner | None:
    """The config's defence, its options checked; refused if the algorithm does not average."""
    given = config.defence
    if given.name == "none":
        if given.options:
            key = next(iter(given.options))
            raise ConfigError(
                f"defence.{key} is set, but defence.name is 'none'; name a defence "
                f"({', '.join(combiners.COMBINERS)}), or remove it."
            )
        return None
    made = combiners.make(given.name, given.options, attacked=attack is not None)
    refused = refusal(type(algorithm), given.name)
    if refused:
        raise ConfigError(refused)
    return made


def _postprocess(config: Config, algorithm: Algorithm, *, remote: bool) -> Method | None:
    """The config's post-processing, its options checked; refused where a rule does not apply."""
    given = config.postprocess
    if given.name == "none":
        if given.options:
            key = next(iter(given.options))
            raise ConfigError(
                f"postprocess.{key} is set, but postprocess.name is 'none'; name a method "
                f"({', '.join(METHODS)}), or remove it."
            )
        return None
    made = make_postprocess(given.name, given.options)
    if remote:
        raise ConfigError(
            f"postprocess.name = '{given.name}': a real federation cannot fit a rule of decisions "
            "yet; remove postprocess, or simulate it with `isonomy run`."
        )
    if config.evaluate.threshold is not None:
        raise ConfigError(
            f"postprocess.name = '{given.name}' and evaluate.threshold both say how to decide; "
            "remove one of them."
        )
    if isinstance(algorithm, LearnsFront):
        raise ConfigError(
            f"postprocess.name = '{given.name}' fits a rule to one model, but '{algorithm.name}' "
            "learns a front of models; remove postprocess, or choose an algorithm with one model."
        )
    if isinstance(algorithm, GivesVerdict):
        raise ConfigError(
            f"postprocess.name = '{given.name}' changes decisions, but the verdict of "
            f"'{algorithm.name}' is about the decisions of its model; remove postprocess, or "
            "choose another algorithm."
        )
    return made


def _check_postprocess(method: Method, federation: Federation, task: Task) -> None:
    """Raise a ConfigError if the method cannot fit a rule on this data or with this loss."""
    about = f"postprocess.name = '{method.name}'"
    if not federation.classes:
        raise ConfigError(
            f"{about} needs classes, but '{federation.source}' has a number to predict; remove "
            "postprocess."
        )
    method.about(federation.attributes, federation.classes, 0)
    if federation.classes > 2 and not method.several_classes:
        able = [name for name, kind in METHODS.items() if kind.several_classes]
        raise ConfigError(
            f"{about} needs two classes, but '{federation.source}' has {federation.classes}; "
            f"choose one of {', '.join(able)}, or remove postprocess."
        )
    if method.needs != "decisions" and task.loss_name not in ("cross_entropy", "logistic"):
        raise ConfigError(
            f"{about} needs probabilities, but the loss '{task.loss_name}' defines none; choose "
            "model.loss = 'logistic' or 'cross_entropy', or postprocess.name = 'fair_lp'."
        )
    if not bool((federation.sizes(method.split) > 0).any()):
        raise ConfigError(
            f"{about} is fitted on {method.split} examples, but '{federation.source}' has none; "
            "set postprocess.split = 'train', or make validation examples."
        )


def _warn_of_attackers(
    config: Config, defence: Combiner, bad: int, clients: int, note: Note
) -> None:
    """Warn if the defence expects fewer malicious clients than take part on average."""
    updates = config.cohort.size or clients
    here = math.floor(updates * bad / clients)
    if not combiners.outnumbered(defence, updates, here):
        return
    expected = getattr(defence, "expected", 0)
    note(
        f"defence '{defence.name}' expects {combiners.attackers(expected, updates)} malicious "
        f"clients among {updates} (defence.expected = {expected}), but the attack has {bad} of "
        f"{clients}; set defence.expected = 'attack' or a larger share."
    )


def attack_seed(config: Config) -> int:
    """The seed that decides which clients are malicious and what they draw."""
    return config.seed if config.attack.seed is None else config.attack.seed


def labels_of(config: Config) -> Poison:
    """How the training labels of malicious clients are changed."""
    if config.attack.labels is not None:
        return config.attack.labels
    return "auto" if config.attack.name == "labels" else "none"


@lru_cache(maxsize=8)
def _poisoned(
    federation: Federation,
    who: tuple[int, ...],
    how: Poison,
    seed: int,
    flips: tuple[int, ...],
    attribute: str,
) -> Federation:
    """The federation with poisoned labels of some clients, and flipped groups of others.

    It is cached, so it is the same object for the same arguments.
    """
    made = poisoned(federation, torch.tensor(who, dtype=torch.int64), how, seed)
    return flipped(made, torch.tensor(flips, dtype=torch.int64), attribute)


_warned: WeakSet[Federation] = WeakSet()  # whose warnings were shown: once, not for each run


def effective(config: Config, note: Note = lambda _: None, *, key: Key | None = None) -> Config:
    """The config that is really run: with the fallback if the data cannot be downloaded, with the
    local work that the algorithm recommends where the config leaves it open, and, if the run is
    private, with the preprocessing fitted with noise (of `key`, or of a new one).

    This is the config that a run's folder holds, so that a resumed run uses the same data.
    """
    config = _reachable(config, note)
    return preparation.with_preparation(config, lambda fit: _loaded(config, fit), key)


def _reachable(config: Config, note: Note) -> Config:
    """The config with recommended work, absolute paths, and data that are available."""
    config = with_recommended_work(config)
    data = config.data
    path = data.options.get("path")
    if isinstance(path, str) and path:  # so that it is found from any folder
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
    note(f"{_unreachable[data.name]} Continuing with '{data.fallback}' instead.")
    instead = Data(name=data.fallback, clients=data.clients, seed=data.seed)
    return config.model_copy(update={"data": instead})


_unreachable: dict[str, str] = {}  # failed downloads of this process, and why


def federation_of(config: Config) -> Federation:
    """The config's examples; cached, so the same object for the same data."""
    data = config.data
    seed = config.seed if data.seed is None else data.seed
    stamp = _stamp(data.options.get("path"))
    private = config.privacy.level != "none"
    return _load(
        data.name,
        data.clients,
        seed,
        _freeze(data.partition),
        _freeze(data.options),
        stamp,
        (config.privacy.level, config.privacy.prepared) if private else ("none", ""),
    )


def _loaded(config: Config, fit: Any) -> Federation:
    """The config's examples with a preprocessing that `fit` fits."""
    data = config.data
    return load(
        data.name,
        clients=data.clients,
        seed=config.seed if data.seed is None else data.seed,
        partition=data.partition,
        options=dict(data.options),
        fit=fit,
    )


def parts_of(config: Config) -> Iterator[Federation]:
    """The config's examples, some clients at a time if the data set can be made in that way."""
    data = config.data
    return parts(
        data.name,
        clients=data.clients,
        seed=config.seed if data.seed is None else data.seed,
        partition=data.partition,
        options=data.options,
    )


def _stamp(path: Any) -> tuple[Any, ...]:
    """Names, sizes and times of a user's files, so that a changed table is read again."""
    if not isinstance(path, str) or not path:
        return ()
    place = Path(os.path.expanduser(path))
    try:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        return tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.exists())
    except (OSError, ValueError):  # reading it raises a proper error
        return ()


@lru_cache(maxsize=8)
def _load(
    name: str,
    clients: int | None,
    seed: int,
    partition: Any,
    options: Any,
    stamp: Any,
    prepared: tuple[str, str],
) -> Federation:
    del stamp  # part of the cache key only
    return load(
        name,
        clients=clients,
        seed=seed,
        partition=_thaw(partition),
        options=_thaw(options) or {},
        fit=preparation.fit_of(*prepared),
    )


@lru_cache(maxsize=8)
def _task(federation: Federation, model: str) -> Task:
    """The task; cached, so that its traced steps are used again."""
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


def engine_of(setting: Setting, note: Note = lambda _: None) -> Engine:
    """The config's engine; sets the number of torch's threads to what the config says."""
    config = setting.config
    threads = _threads(setting)
    torch.set_num_threads(threads)
    several = ranks.current() is not None
    made = registry.make(
        "distributed" if several else config.engine.name,
        setting.task,
        setting.federation,
        seed=config.seed,
        options=config.engine,
        note=note,
    )
    made.states_in = config.engine.states
    made.server_data = setting.server_data
    made.prepare(config.local)
    if config.engine.threads in ("auto", "probe"):
        made.try_threads(threads)
    return made


def _threads(setting: Setting) -> int:
    """The number of threads, or the most that a probe may choose."""
    asked = setting.config.engine.threads
    if isinstance(asked, int):
        return asked
    each = max(1, _CORES // ranks.on_this_machine())
    if asked == "probe":
        return each
    numbers = sum(p.numel() for p in setting.params.values())
    conv = any(isinstance(m, nn.modules.conv._ConvNd) for m in setting.task.net.modules())
    return each if conv or numbers > SMALL else 1


_CORES = torch.get_num_threads()


def versions() -> dict[str, str]:
    """The versions that a run uses."""
    return {
        "isonomy": version("isonomy"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
