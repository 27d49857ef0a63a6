"""Checks of the config's engine table, before anything is trained."""

from __future__ import annotations

from isonomy.config.schema import Config
from isonomy.errors import ConfigError


def check_engine(config: Config, *, remote: bool) -> None:
    """Refuse devices, precisions and several processes where they cannot compute the run."""
    engine = config.engine
    if engine.precision == "bf16":
        _check_bf16(config, remote=remote)
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


def _check_bf16(config: Config, *, remote: bool) -> None:
    """Refuse bfloat16 where steps cannot be computed in it."""
    from isonomy.engines.batched.precision import has_bf16  # imports torch, which is slow

    about, engine = "engine.precision = 'bf16'", config.engine
    if remote:
        raise ConfigError(
            f"{about}: in a real federation local steps run on the participants' machines, in "
            "float32; remove it."
        )
    if engine.name == "loop":
        raise ConfigError(
            f"{about}: engine.name = 'loop' is the reference and computes in float32; choose "
            "engine.name = 'batched', or remove it."
        )
    if engine.device != "cpu":
        raise ConfigError(
            f"{about} works on the CPU only; set engine.device = 'cpu', or remove it."
        )
    if engine.compile:
        raise ConfigError(
            f"{about}: compiled steps in bfloat16 have not been tested; set engine.compile = "
            "false, or remove it."
        )
    if config.privacy.level != "none":
        raise ConfigError(
            f"{about}: the noise of privacy.level = '{config.privacy.level}' is for steps in "
            "float32; remove one of them."
        )
    if not has_bf16():
        raise ConfigError(
            f"{about}: this CPU has no instructions for bfloat16 (avx512_bf16 or amx), so steps "
            "would be slower than in float32; remove it."
        )
