"""More functions for Python users: search for options, settings or a decision; check algorithms.

Heavy imports are inside the functions, so that importing this module is fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isonomy.api import configured, narrowed, run_methods, seeds_of

if TYPE_CHECKING:
    from isonomy.config.schema import Config
    from isonomy.contract.suite import Checked
    from isonomy.core.algorithm import Algorithm
    from isonomy.data.federation import Federation
    from isonomy.data.frames import Frames
    from isonomy.runs.listener import Listener
    from isonomy.runs.record import Record
    from isonomy.studies.decision import Decision
    from isonomy.studies.suggest_lam import LamSuggestion
    from isonomy.studies.suggest_zeta import ZetaSuggestion
    from isonomy.studies.tuned import Tuned


def sweep(
    config: Config | str | Path,
    axes: Mapping[str, Sequence[Any]],
    folder: str | Path | None = None,
    *,
    algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None = None,
    seeds: int | Sequence[int] | None = None,
    data: Frames | Federation | None = None,
    overwrite: bool = False,
    jobs: int = 1,
    listeners: Sequence[Listener] = (),
) -> list[Record]:
    """Run every combination of values of config keys, each with every seed.

    `axes` are the values by key, such as {"algorithm.mu": [0, 0.1, 1]}; the other arguments are
    those of `compare`. Returns one record per run.
    """
    from isonomy.studies.sweep import grid_of

    made = narrowed(configured(config, data), algorithms)
    return run_methods(
        grid_of(made, [(key, list(values)) for key, values in axes.items()]),
        seeds_of(made, seeds),
        folder,
        overwrite=overwrite,
        jobs=jobs,
        listeners=listeners,
    )


def check(
    algorithm: str | type[Algorithm] | Algorithm, engines: Sequence[str] | None = None
) -> Checked:
    """Check that an algorithm keeps the contract that every engine relies on.

    `algorithm` is a name, a class or an instance. `engines` are loop, batched and flower; by
    default all that are installed. `checked.passed` says whether every clause holds, and
    `checked.failures` have the reasons.
    """
    from isonomy import algorithms
    from isonomy.contract import suite
    from isonomy.core.algorithm import Algorithm
    from isonomy.errors import ConfigError

    made: object = algorithms.make(algorithm) if isinstance(algorithm, str) else algorithm
    if isinstance(made, type) and issubclass(made, Algorithm):
        made = made()
    if not isinstance(made, Algorithm):
        raise ConfigError(f"{made!r} cannot be checked; give an algorithm, by name or as a class.")
    return suite.check(made, engines)


def suggest(
    config: Config | str | Path,
    option: str | None = None,
    *,
    data: Frames | Federation | None = None,
) -> LamSuggestion | ZetaSuggestion:
    """Suggest a value for FMTL's `lam` or for PFFL's `zeta`, from measurements of all clients.

    By default, the option of the config's algorithm. For lam, the variance within and between
    clients, by a Gaussian model. For zeta, the least worst-group loss that the model can have, and
    that of the model without constraints.
    """
    from isonomy.studies import suggest as study

    return study.suggest(configured(config, data), option)


def tune(
    config: Config | str | Path,
    methods: Iterable[str | Mapping[str, Any] | Algorithm] | None = None,
    folder: str | Path | None = None,
    *,
    data: Frames | Federation | None = None,
    jobs: int = 1,
    listeners: Sequence[Listener] = (),
    **options: Any,
) -> Tuned:
    """Tune methods with equally many trials, on validation examples; needs Optuna.

    `options`: trials = 20, objectives (names of metrics; the accuracy, or the loss), seeds, fixed
    (keys that are not tuned) and overwrite. `tuned.best(method)` is a method's best trial. `data`
    are data from memory, in place of the config's.
    """
    from isonomy.studies.tune import tune as study

    made = narrowed(configured(config, data), methods)
    return study(made, folder, listeners, jobs=jobs, **options)


def decide(
    config: Config | str | Path,
    folder: str | Path,
    *,
    require: Sequence[str] | None = None,
    maximise: str | None = None,
    minimise: str | None = None,
    budget: str | None = None,
    trials: int | None = None,
    methods: Sequence[str | Mapping[str, Any]] | None = None,
    data: Frames | Federation | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    command: str = "",
    listeners: Sequence[Listener] = (),
) -> Decision:
    """Search for a model that meets requirements, verify it on test data, and say yes or no.

    What is not given is as in the config's table `decide`. The model, decision.json and
    decision.html are written to the folder; `decision.outcome` is "met" or "none". `data` are data
    from memory, in place of the config's.
    """
    from isonomy.runs.listener import Listeners
    from isonomy.studies import decide as study

    made = configured(config, data)
    given = {
        "require": None if require is None else list(require),
        "maximise": maximise,
        "minimise": minimise,
        "budget": budget,
        "trials": trials,
        "methods": None if methods is None else list(methods),
    }
    changed = {key: value for key, value in given.items() if value is not None}
    made = made.model_copy(update={"decide": made.decide.model_copy(update=changed)})
    limit = None if made.decide.trials else study.read_time(made.decide.budget)
    return study.decide(
        made,
        folder,
        study.Effort(limit, made.decide.trials, jobs),
        command=command,
        listener=Listeners(listeners),
        overwrite=overwrite,
    )
