"""The trackers by name, and how those of a config are made."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from isonomy.config.schema import Config
from isonomy.errors import ConfigError, missing_extra
from isonomy.runs.folder import RunFolder
from isonomy.runs.results import method_label
from isonomy.runs.trackers.base import Backend, Tracker, about_run
from isonomy.runs.trackers.mlflow import MLflow
from isonomy.runs.trackers.tensorboard import TensorBoard
from isonomy.runs.trackers.wandb import WeightsAndBiases

BACKENDS: dict[str, tuple[Callable[[], Backend], str]] = {
    "mlflow": (MLflow, "MLflow"),
    "tensorboard": (TensorBoard, "TensorBoard"),
    "wandb": (WeightsAndBiases, "Weights & Biases"),
}
"""The trackers, each with its title; the name is also that of its package and its extra."""


def installed(package: str) -> bool:
    """Whether a package is installed, without importing it."""
    return importlib.util.find_spec(package) is not None


def require(config: Config) -> None:
    """Raise a ConfigError if the package of one of the config's trackers is not installed."""
    names = [given.name for given in config.track]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"track names '{name}' twice; keep one of them.")
        if not installed(name):
            raise ConfigError(missing_extra(f"tracking with {name}", BACKENDS[name][1], name))


def tracked(
    config: Config, place: RunFolder | None, note: Callable[[str], None]
) -> tuple[Tracker, ...]:
    """The config's trackers, for one run."""
    require(config)
    about = about_run(config, method_label(config), place)
    return tuple(
        Tracker(BACKENDS[given.name][0](), given, about, place, note) for given in config.track
    )
