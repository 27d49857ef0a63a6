"""Checks of the config's engine table, before anything is trained."""

from __future__ import annotations

from isonomy.config.schema import Config
from isonomy.errors import ConfigError


def check_engine(config: Config, *, remote: bool) -> None:
    """Refuse several processes where they cannot compute the run."""
    engine = config.engine
    if engine.name == "loop" and engine.device != "cpu":
        raise ConfigError(
            f"engine.device = '{engine.device}': engine.name = 'loop' is the reference and runs on "
            "the CPU; choose engine.name = 'batched', or engine.device = 'cpu'."
        )
    if engine.workers == 1 and engine.name != "distributed":
        if engine.name == "loop" and engine.shares != "auto":
            raise ConfigError(
                "engine.shares is set, but engine.name = 'loop' runs one client after the other; "
                "remove it, or choose engine.name = 'batched'."
            )
        return
    which = f"workers = {engine.workers}" if engine.workers > 1 else f"name = '{engine.name}'"
    if remote:
        raise ConfigError(
            f"engine.{which}: in a real federation clients run on the participants' machines; "
            "remove it."
        )
    if config.data.name == "memory":
        raise ConfigError(
            f"engine.{which}: the data are in the memory of this process, where other processes do "
            "not find them; write them to files and give their path, or remove it."
        )
    if engine.name == "loop":
        raise ConfigError(
            f"engine.{which}: engine.name = 'loop' is the reference and runs in one process; "
            "choose 'batched', or remove engine.workers."
        )
    if engine.shares != "auto" and engine.shares < engine.workers:
        raise ConfigError(
            f"engine.shares = {engine.shares} is less than engine.workers = {engine.workers}, so "
            "some processes would have no clients; raise it, or remove it."
        )
    if engine.workers > 1 and engine.name == "distributed":
        raise ConfigError(
            f"engine.{which} starts processes by itself, but engine.name = 'distributed' is for "
            "those that torchrun starts; remove one of them."
        )
