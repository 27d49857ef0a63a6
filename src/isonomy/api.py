"""The functions of the package for Python users, also used by the command line.

Those in `isonomy.__all__` are public; the others serve the command line. Heavy imports are inside
the functions, so that importing this module is fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from isonomy.api_data import data_table

if TYPE_CHECKING:
    from torch import Tensor

    from isonomy.config.schema import Config
    from isonomy.core.algorithm import Algorithm
    from isonomy.data.federation import Federation
    from isonomy.data.frames import Frames
    from isonomy.deploy.export import Exported
    from isonomy.deploy.model import Model
    from isonomy.deploy.predictor import Predictor
    from isonomy.runs.excess import ExcessRisk
    from isonomy.runs.listener import Listener
    from isonomy.runs.record import Record
    from isonomy.studies.compare import Method


def make_config(base: str | Path | None = None, /, *overrides: str, **values: Any) -> Config:
    """Make the config of an experiment from a file, overrides and values.

    `base` is a TOML file or the name of a packaged config. `overrides` are texts such as
    "local.lr=0.2", as on the command line. `values` are top-level keys; a table is a mapping, or a
    plain text if only its name is given. An algorithm may also be an instance.

    >>> made = make_config(data="synthetic", algorithm={"name": "fedprox", "mu": 1.0}, rounds=5)
    >>> made.algorithm.name, made.algorithm.options, made.rounds
    ('fedprox', {'mu': 1.0}, 5)
    >>> make_config("quickstart", "rounds=2", "local.lr=0.2").local.lr
    0.2
    """
    from isonomy.config.overrides import merge, parse_override
    from isonomy.config.schema import parse

    _refuse_objects(values.get("data"))
    where, found = ("config", {}) if base is None else _read(base)
    for override in overrides:
        found = merge(found, parse_override(override))
    found = merge(found, {key: _as_table(value) for key, value in values.items()})
    return parse(found, where=where)


def run(
    config: Config | str | Path,
    folder: str | Path | None = None,
    *,
    data: Frames | Federation | None = None,
    overwrite: bool = False,
    keep: bool = False,
    listeners: Sequence[Listener] = (),
) -> Record:
    """Run an experiment, in memory or in a folder from which it can be resumed.

    `data` are data from memory (see `federation`), in place of the config's.
    A method may end with a verdict (`record.verdict`). If its status is not "met", the model is
    withheld: the folder has no model and `predictor` raises an error, unless `keep` is true.
    """
    from isonomy.runs import training

    return training.run(
        configured(config, data), folder, overwrite=overwrite, keep=keep, listeners=listeners
    )


def resume(
    folder: str | Path,
    *,
    data: Frames | Federation | None = None,
    keep: bool = False,
    listeners: Sequence[Listener] = (),
) -> Record:
    """Continue the unfinished run in a folder, to the same result as without the interruption.

    A run on data from memory needs the same `data` again; other data are refused. With `keep`, a
    complete run also writes the model that its verdict withheld.
    """
    from isonomy.runs import training

    if data is not None:
        from isonomy.runs.folder import RunFolder

        training.require_given(RunFolder(folder), data_table(data))
    return training.resume(folder, keep=keep, listeners=listeners)


def compare(
    config: Config | str | Path | Sequence[Config | str | Path],
    folder: str | Path | None = None,
    *,
    algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None = None,
    seeds: int | Sequence[int] | None = None,
    data: Frames | Federation | None = None,
    overwrite: bool = False,
    jobs: int = 1,
    listeners: Sequence[Listener] = (),
) -> list[Record]:
    """Run methods side by side, each with every seed; returns one record per run.

    The methods are those of the configs' `compare` tables, or `algorithms`. In a folder, complete
    runs are reused, unfinished runs are continued, and `jobs` runs are executed in parallel, each
    in its own process. `data` are data from memory, in place of the configs'.
    """
    several = [config] if isinstance(config, str) or not isinstance(config, Sequence) else config
    configs = [configured(one, data) for one in several]
    return run_methods(
        methods(*configs, algorithms=algorithms),
        seeds_of(configs[0], seeds),
        folder,
        overwrite=overwrite,
        jobs=jobs,
        listeners=listeners,
    )


def methods(
    *configs: Config | str | Path,
    algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None = None,
) -> list[Method]:
    """The methods that `compare` runs with each seed: labels and complete configs.

    `algorithms` selects methods of the config by name. Other names are added with their defaults;
    tables and instances are added unchanged.

    >>> [method.label for method in methods("quickstart", algorithms=["local", "fedavg"])]
    ['Local', 'FedAvg']
    """
    from isonomy.errors import ConfigError
    from isonomy.studies import compare as comparison

    wanted = None if algorithms is None else list(algorithms)
    found: list[Method] = []
    for given in configs:
        found += comparison.methods(narrowed(configured(given), wanted))
    labels = [comparison.slug(method.label) for method in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(
                f"two methods have the label '{label}'; set a different `label` in compare.methods."
            )
    return found


def run_methods(
    chosen: Sequence[Method],
    seeds: Sequence[int],
    folder: str | Path | None = None,
    *,
    overwrite: bool = False,
    jobs: int = 1,
    listeners: Sequence[Listener] = (),
) -> list[Record]:
    """Run each method with every seed, in memory or in a folder; returns one record per run."""
    from isonomy.errors import ConfigError
    from isonomy.runs import training
    from isonomy.studies import compare as comparison

    if folder is not None:
        return comparison.run_all(
            list(chosen), list(seeds), folder, overwrite=overwrite, jobs=jobs, listeners=listeners
        )
    if jobs != 1:
        raise ConfigError(f"jobs = {jobs} needs a folder for the runs; give a folder, or jobs = 1.")
    return [
        training.run(method.config.model_copy(update={"seed": seed}), listeners=listeners)
        for method in chosen
        for seed in seeds
    ]


def check_methods(
    chosen: Sequence[Method],
    seed: int,
    *,
    columns: Sequence[str] | None = None,
    listeners: Sequence[Listener] = (),
) -> None:
    """Build every method without running it, so that a mistake in any of them is found early.

    Raises ConfigError for a metric among `columns` that none of the methods will have.
    """
    from isonomy.errors import ConfigError, unknown
    from isonomy.metrics.registry import COSTS
    from isonomy.runs.build import build
    from isonomy.runs.evaluate import measurable
    from isonomy.runs.listener import Listeners

    note = Listeners(listeners).note
    known = set(COSTS)
    for method in chosen:
        known |= measurable(build(method.config.model_copy(update={"seed": seed}), note))
    for name in columns or ():
        if name not in known:
            there = [one for one in known if ":" not in one]
            raise ConfigError(unknown("metric of these runs", name, there))


def narrowed(
    config: Config, algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None
) -> Config:
    """The config with `compare.methods` reduced to these algorithms; unchanged if None."""
    from isonomy.errors import ConfigError

    if algorithms is None:
        return config
    wanted = list(algorithms)
    if not wanted:
        raise ConfigError("no algorithm was given; give one or more, e.g. fedavg,local.")
    chosen: list[dict[str, Any]] = []
    for one in wanted:
        table = _as_table(one)
        same = [
            method
            for method in config.compare.methods
            if isinstance(table, str) and _algorithm_name(method) == table
        ]
        chosen += same or [{"algorithm": table}]
    changed = config.compare.model_copy(update={"methods": chosen})
    return config.model_copy(update={"compare": changed})


def seeds_of(config: Config, seeds: int | Sequence[int] | None = None) -> list[int]:
    """The seeds of a comparison: those given, that many from the config's seed, or the config's."""
    from isonomy.studies import compare as comparison

    if seeds is not None:
        wanted = seeds if isinstance(seeds, int) else list(seeds)
        changed = config.compare.model_copy(update={"seeds": wanted})
        config = config.model_copy(update={"compare": changed})
    return comparison.seeds(config)


def load(*folders: str | Path) -> list[Record]:
    """The records of all runs in these folders and below them, finished or not."""
    from isonomy.errors import RunError

    found = []
    for folder in folders:
        places = run_folders(folder)
        if not places:
            raise RunError(
                f"there is no run in '{folder}'; give the folder of a run or of several runs."
            )
        found += [load_one(place) for place in places]
    return found


def load_one(folder: str | Path) -> Record:
    """The record of the run in a folder, finished or not."""
    from isonomy.runs.folder import RunFolder
    from isonomy.runs.training import record

    return record(RunFolder(folder))


def run_folders(folder: str | Path) -> list[Path]:
    """The folders of runs at or below a folder, sorted by name, numbers by value."""
    from isonomy.runs.folder import RunFolder

    found = [path.parent for path in Path(folder).rglob("config.toml")]
    found = [path for path in found if RunFolder(path).exists]  # not, say, Flower's own config.toml
    return sorted(found, key=lambda path: [_sort_key(part) for part in path.parts])


def packaged_configs() -> dict[str, Path]:
    """The TOML files that come with the package, by name."""
    from importlib.resources import files

    folder = Path(str(files("isonomy.config"))) / "presets"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def predictor(
    folder: str | Path,
    client: str | int | None = None,
    examples: tuple[Tensor, ...] | str | Path | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    *,
    force: bool = False,
    constant: bool = False,
    steps: int = 1,
) -> Predictor:
    """The model of a finished run, as one client uses it.

    `client` is a client of the run, by name or number. Without it, the model is that of a client
    that was not in training. If the method is personalised, a new client needs `examples`: tensors
    (x, y), or (x, y, groups) for a method that learns a front, or the path of a labelled table if
    the run used tables. `preference`, `limits`, `force` and `constant` choose a point on the front,
    as in `export`. `steps` repeats the step by which a new client finds its own state; for FOCUS it
    is an E step. `predictor.warnings` says if a new client fits none of the clusters that the
    method found.
    """
    from isonomy.deploy import predictor as predictors

    return predictors.predictor(
        folder,
        client,
        examples,  # type: ignore[arg-type]
        preference,
        limits,
        force=force,
        constant=constant,
        steps=steps,
    )


def postprocess_run(
    folder: str | Path,
    to: str | Path,
    name: str,
    *,
    overwrite: bool = False,
    listeners: Sequence[Listener] = (),
    **options: Any,
) -> Record:
    """Fit a rule of decisions to the model of a finished run, and write the result as a new run.

    `name` is a post-processing method, such as "logofair", and `options` are its options, such as
    budget=0.02. Nothing is trained: the result is that of the same run with `postprocess` in its
    config.
    """
    from isonomy.runs import reapply

    return reapply.postprocess_run(
        folder, to, name, options, overwrite=overwrite, listeners=listeners
    )


def excess(
    folder: str | Path,
    *,
    steps: int | None = None,
    checkpoints: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    clusters: str | None = None,
) -> ExcessRisk:
    """The excess risk of a finished run, measured again against newly trained surrogates.

    What is not given is as in the run's config. The result has each client's excess with its
    standard error, FAA with its interval, and FAA by the length of a surrogate of a fixed length.
    """
    from isonomy.runs import excess as risk

    return risk.recompute(
        folder, steps=steps, checkpoints=checkpoints, batch=batch, lr=lr, clusters=clusters
    )


def export(
    folder: str | Path,
    to: str | Path,
    *,
    client: str | int | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    force: bool = False,
    constant: bool = False,
    also: Sequence[Literal["pt2", "onnx"]] = (),
    overwrite: bool = False,
) -> Exported:
    """Write one model of a finished run to a folder, with a card that describes it.

    A method that trains one model per client needs `client`. For a method that learns a front, the
    model is chosen on validation examples by `preference` (one share per objective, more for less
    of it; a dominated one is moved to the nearest that is not), or by `limits` such as
    {"dp": 0.05}: the least error that is within them with 95 % confidence. `force` takes a
    preference as given, or a bound without the margin; `constant` accepts a constant prediction.
    `also` adds files in formats that other programs read.
    """
    from isonomy.deploy import export as exports

    return exports.export(
        folder,
        to,
        client=client,
        preference=preference,
        limits=limits,
        force=force,
        constant=constant,
        also=also,
        overwrite=overwrite,
    )


def load_model(folder: str | Path, *, seal: str | None = None, trust: bool = False) -> Model:
    """Load a model that `export` wrote; raises an error if it was changed since then.

    `model.predict("rows.csv")` predicts raw rows. `seal` is the seal that the card must have, and
    `trust` allows the model to import your own class.
    """
    from isonomy.deploy.model import load_model as load_exported

    return load_exported(folder, seal=seal, trust=trust)


def trust(*names: str) -> None:
    """Allow configs, run folders and models to import code that is not part of isonomy.

    A name is `package.module:Class`, or a module or package for everything in it. Classes of
    modules that you have imported yourself need no permission.
    """
    from isonomy.core.importing import trust as allow

    allow(*names)


def _read(base: str | Path) -> tuple[str, dict[str, Any]]:
    """The name and the values of a config: a file, or a packaged config."""
    from isonomy.config.files import read_toml, with_data_path
    from isonomy.errors import ConfigError, did_you_mean

    path = Path(base)
    if not path.exists() and path.suffix == "" and path.name == str(base):
        packaged = packaged_configs()
        if str(base) not in packaged:
            plain = [name for name, file in packaged.items() if "preset" not in read_toml(file)]
            raise ConfigError(
                f"there is no file and no packaged config '{base}'; give the path of a TOML file, "
                f"or {' or '.join(plain)}.{did_you_mean(str(base), plain)}"
            )
        path = packaged[str(base)]
    values = with_data_path(read_toml(path), path.parent)
    if "preset" in values:
        raise ConfigError(
            f"'{base}' is a paper's experiment and not a plain config; run it with `isonomy "
            f"reproduce {path.stem}`."
        )
    return path.name, values


def configured(given: Config | str | Path, data: Frames | Federation | None = None) -> Config:
    """The config itself, or the one that is named; with data from memory, if they are given."""
    config = make_config(given) if isinstance(given, str | Path) else given
    if data is None:
        return config
    from isonomy.config.schema import Data

    table = {"seed": config.data.seed, **data_table(data)}
    return config.model_copy(update={"data": Data.model_validate(table)})


def _refuse_objects(data: Any) -> None:
    """Raise a ConfigError for a frame or another object as data, which a config cannot hold."""
    from isonomy.errors import ConfigError

    inside = [data.get("path")] if isinstance(data, Mapping) else [data]
    for one in inside:
        if one is not None and not isinstance(one, str | Path | int | float | list | tuple):
            raise ConfigError(
                f"data is a {type(one).__name__}, which a config cannot hold; pass it when you run "
                'it: isonomy.run(config, data=isonomy.federation(frame, label="...")).'
            )


def _as_table(value: Any) -> Any:
    """The config table of an algorithm's instance; any other value is returned unchanged."""
    import dataclasses

    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    from isonomy import algorithms

    kind = type(value)
    names = [name for name, known in algorithms.registry().items() if isinstance(value, known)]
    path = f"{kind.__module__}:{kind.__qualname__}"
    return {"name": names[0] if names else path, **dataclasses.asdict(value)}


def _algorithm_name(method: Mapping[str, Any]) -> str | None:
    algorithm = method.get("algorithm")
    return algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm


def _sort_key(part: str) -> tuple[str, int]:
    """Sorts `seed-10` after `seed-9`."""
    head = part.rstrip("0123456789")
    return head, int(part[len(head) :] or -1)
