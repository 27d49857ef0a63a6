"""Training without attack, defence, folder and evaluation, for studies that measure a model."""

from __future__ import annotations

from typing import TypeVar

from isonomy.config.schema import AlgorithmConfig, Config
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.cohort import Cohort
from isonomy.engines.base import sample
from isonomy.errors import ConfigError
from isonomy.runs.build import Setting, build, engine_of

Server = TypeVar("Server")


def plain_setting(config: Config) -> Setting:
    """The config's data, model and local work, with the algorithm FedAvg."""
    if config.privacy.level != "none":
        raise ConfigError(
            f"privacy.level = '{config.privacy.level}': this measures the clients without noise; "
            "set privacy.level = 'none', or choose the option without it."
        )
    left_out = ("attack", "defence", "postprocess", "algorithm")
    kept = {k: v for k, v in config.plain().items() if k not in left_out}
    plain = AlgorithmConfig(name="fedavg", weight="equal")
    return build(Config.model_validate(kept).model_copy(update={"algorithm": plain}))


def trained(setting: Setting, algorithm: Algorithm[Server]) -> tuple[Server, Cohort]:
    """The server after the config's rounds, and a cohort of all clients."""
    config, engine, clients = setting.config, engine_of(setting), len(setting.federation)
    work = config.local
    engine.reset(algorithm.init_client(setting.task, setting.params))
    server = algorithm.init_server(setting.task, setting.params, clients)
    for r in range(config.rounds):
        count, how = config.cohort.size or clients, config.cohort.sampling
        ids = sample(setting.federation, count, seed=config.seed, round=r, how=how)
        cohort = engine.cohort(ids, work=work, round=r, rate=work.rate(r, config.rounds))
        server = algorithm.round(server, cohort)
    if not tree.finite(server):
        raise ConfigError(
            f"training diverged, so nothing can be measured; lower local.lr (now {work.lr:g})."
        )
    return server, engine.cohort(engine.everyone(), work=work, round=config.rounds)


def everyone(setting: Setting) -> Cohort:
    """A cohort of all clients, before training."""
    engine = engine_of(setting)
    return engine.cohort(engine.everyone(), work=setting.config.local, round=0)
