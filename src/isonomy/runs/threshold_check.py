"""Which runs can count decisions with another threshold than .5, or of some clients only."""

from __future__ import annotations

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import GivesVerdict, LearnsFront
from isonomy.core.task import Task
from isonomy.data.federation import Federation
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.scores import has_scores


def check_method(config: Config, algorithm: Algorithm, *, remote: bool) -> None:
    """Refuse thresholds, or a sample of clients, that the method or the config cannot use."""
    _check_sample(config, algorithm, remote=remote)
    given, by = config.evaluate.threshold, config.evaluate.threshold_by
    if by is not None and not isinstance(given, str):
        raise ConfigError(
            f"evaluate.threshold_by = '{by}' fits a threshold for each group; say what is fitted "
            "with evaluate.threshold = 'balanced', 'f1' or 'accuracy', or remove it."
        )
    if given is None:
        return
    if remote:
        raise ConfigError(
            "evaluate.threshold is for simulations: participants of a real federation count the "
            "decisions of the model itself; remove it."
        )
    if isinstance(algorithm, LearnsFront | GivesVerdict):
        raise ConfigError(
            f"evaluate.threshold: '{config.algorithm.name}' chooses its models, or gives its "
            "verdict, by decisions at .5; remove the threshold, or choose another method."
        )


def _check_sample(config: Config, algorithm: Algorithm, *, remote: bool) -> None:
    """Refuse an evaluation of some clients where all are needed."""
    if config.evaluate.clients is None:
        return
    about = f"evaluate.clients = {config.evaluate.clients}"
    if remote:
        raise ConfigError(
            f"{about} is for simulations: in a real federation every participant is evaluated; "
            "remove it."
        )
    if config.excess.clusters != "none":
        raise ConfigError(
            f"{about}, but excess risk is measured of all clients; set excess = 'none', or remove "
            "evaluate.clients."
        )
    if config.privacy.level != "none" and "evaluation" not in config.privacy.allow:
        raise ConfigError(
            f"{about}, but differential privacy counts the predictions of all clients; remove it, "
            "or allow an evaluation without noise (privacy.allow)."
        )
    if isinstance(algorithm, LearnsFront):
        raise ConfigError(
            f"{about}, but the fronts of '{config.algorithm.name}' are measured of all clients; "
            "remove it, or choose another method."
        )


def check_data(config: Config, federation: Federation, task: Task) -> None:
    """Refuse thresholds that the task or the data do not allow."""
    given, by = config.evaluate.threshold, config.evaluate.threshold_by
    if given is None:
        return
    names = [each.name for each in federation.attributes]
    if by is not None and by not in names:
        raise ConfigError(f"evaluate.threshold_by: {unknown('protected attribute', by, names)}")
    if not has_scores(task):
        raise ConfigError(
            "evaluate.threshold needs probabilities of two classes, and this task has "
            f"{task.classes} classes with the loss '{task.loss_name}'; remove it."
        )
    if isinstance(given, str) and not bool((federation.sizes("validation") > 0).any()):
        raise ConfigError(
            f"evaluate.threshold = '{given}' is fitted on validation examples, and no client has "
            "any; give a number, or data with a validation split."
        )
