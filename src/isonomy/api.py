"""The package's functions for Python users; the command line stands on them too.

Heavy imports wait until they are needed, so that importing this is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from isonomy.config.schema import Config
    from isonomy.core.algorithm import Algorithm
    from isonomy.deploy.export import Exported
    from isonomy.deploy.model import Model
    from isonomy.deploy.predictor import Predictor
    from isonomy.runs.listener import Listener
    from isonomy.runs.record import Record
    from isonomy.studies.compare import Method
    from isonomy.studies.suggest import Suggestion

Format = Literal["text", "markdown", "latex", "csv"]


def make_config(base: str | Path | None = None, /, *overrides: str, **values: Any) -> Config:
    """An experiment: a TOML file or a packaged config's name, overrides, and tables of values.

    Overrides are as on the command line. Values are the top-level keys; a table is a mapping,
    and where only its name matters a plain text. An algorithm may be an instance.

    >>> made = make_config(data="synthetic", algorithm={"name": "fedprox", "mu": 1.0}, rounds=5)
    >>> made.algorithm.name, made.algorithm.options, made.rounds
    ('fedprox', {'mu': 1.0}, 5)
    >>> make_config("quickstart", "rounds=2", "local.lr=0.2").local.lr
    0.2
    """
    from isonomy.config import schema

    where, found = ("config", {}) if base is None else _read(base)
    for override in overrides:
        found = schema.merge(found, schema.parse_override(override))
    found = schema.merge(found, {key: _plain(value) for key, value in values.items()})
    return schema.parse(found, where=where)


def run(
    config: Config | str | Path,
    folder: str | Path | None = None,
    *,
    overwrite: bool = False,
    keep: bool = False,
    listeners: Sequence[Listener] = (),
) -> Record:
    """Run an experiment, in memory or in a folder from which it can be resumed.

    A method may end with a verdict (`record.verdict`). Where its status is "null" the model is
    withheld: the folder holds none, and `predictor` refuses, unless `keep` is true.
    """
    from isonomy.runs import training as runs

    return runs.run(_config(config), folder, overwrite=overwrite, keep=keep, listeners=listeners)


def suggest(
    config: Config | str | Path, *, malicious: float = 0.0, spread: float = 3.0
) -> Suggestion:
    """A lam for FMTL, from the variance within and between clients, by a Gaussian model."""
    from isonomy.studies import suggest as diagnostic

    return diagnostic.suggest(_config(config), malicious=malicious, spread=spread)


def compare(
    config: Config | str | Path | Sequence[Config | str | Path],
    folder: str | Path | None = None,
    *,
    algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None = None,
    seeds: int | Sequence[int] | None = None,
    overwrite: bool = False,
    listeners: Sequence[Listener] = (),
    jobs: int = 1,
) -> list[Record]:
    """Run methods side by side, each with every seed; one record a run.

    The methods are those of the configs' own `compare` tables, or `algorithms`. In a folder,
    runs that are complete are used again, unfinished ones go on, and `jobs` of them are made
    at once, each in a process of its own.
    """
    from isonomy.errors import ConfigError
    from isonomy.runs import training as runs
    from isonomy.studies import compare as comparison

    several = [config] if isinstance(config, str) or not isinstance(config, Sequence) else config
    configs = [_config(one) for one in several]
    chosen = methods(*configs, algorithms=algorithms)
    which = seeds_of(configs[0], seeds)
    if folder is not None:
        return comparison.run_all(
            chosen, which, folder, listeners=listeners, overwrite=overwrite, jobs=jobs
        )
    if jobs != 1:
        raise ConfigError(f"jobs = {jobs} needs a folder for the runs; name one, or give 1.")
    return [
        runs.run(method.config.model_copy(update={"seed": seed}), listeners=listeners)
        for method in chosen
        for seed in which
    ]


def methods(
    *configs: Config | str | Path,
    algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None = None,
) -> list[Method]:
    """What `compare` would run with each seed: labels and complete configs.

    Of a config's own methods `algorithms` picks those with that name; other names are added
    with their defaults, and tables and instances as they are.

    >>> [method.label for method in methods("quickstart", algorithms=["local", "fedavg"])]
    ['Local', 'FedAvg']
    """
    from isonomy.errors import ConfigError
    from isonomy.studies import compare as comparison

    wanted = None if algorithms is None else list(algorithms)
    found: list[Method] = []
    for given in configs:
        found += comparison.methods(narrowed(_config(given), wanted))
    labels = [comparison.slug(method.label) for method in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(
                f"two methods are called '{label}'; give each its own `label` in compare.methods."
            )
    return found


def narrowed(
    config: Config, algorithms: Iterable[str | Mapping[str, Any] | Algorithm] | None
) -> Config:
    """The config with its comparison's methods narrowed to these algorithms; None leaves it."""
    from isonomy.errors import ConfigError

    if algorithms is None:
        return config
    wanted = list(algorithms)
    if not wanted:
        raise ConfigError("no algorithm was named; give one or more, e.g. fedavg,local.")
    chosen: list[dict[str, Any]] = []
    for one in wanted:
        table = _plain(one)
        same = [m for m in config.compare.methods if isinstance(table, str) and _named(m) == table]
        chosen += same or [{"algorithm": table}]
    changed = config.compare.model_copy(update={"methods": chosen})
    return config.model_copy(update={"compare": changed})


def seeds_of(config: Config, seeds: int | Sequence[int] | None = None) -> list[int]:
    """The seeds of a comparison: the config's, or so many from its own, or those given."""
    from isonomy.studies import compare as comparison

    if seeds is not None:
        wanted = seeds if isinstance(seeds, int) else list(seeds)
        changed = config.compare.model_copy(update={"seeds": wanted})
        config = config.model_copy(update={"compare": changed})
    return comparison.seeds(config)


def load(*folders: str | Path) -> list[Record]:
    """The runs in folders and below them, finished or not."""
    from isonomy.errors import RunError
    from isonomy.runs.folder import RunFolder
    from isonomy.runs.training import record

    found = []
    for folder in folders:
        places = run_folders(folder)
        if not places:
            raise RunError(
                f"there is no run in '{folder}'; give the folder of a run or of several."
            )
        found += [record(RunFolder(place)) for place in places]
    return found


def run_folders(folder: str | Path) -> list[Path]:
    """The folders of runs at or below a folder, in the order of their names."""
    found = [path.parent for path in Path(folder).rglob("config.toml")]
    return sorted(found, key=lambda path: [_number_last(part) for part in path.parts])


def predictor(
    folder: str | Path,
    client: str | int | None = None,
    examples: tuple[Tensor, ...] | str | Path | None = None,
    preference: Sequence[float] = (),
) -> Predictor:
    """A finished run's model as one client uses it.

    `client` is a client of the run, by name or number. Without it the model is that of a client
    that was not in training; where the method gives each client something of its own, such a one
    needs `examples`: tensors (x, y), for a method that learns a front (x, y, groups), or the path
    of a labelled table if the run is of tables. `preference` chooses a model on such a front.
    """
    from isonomy.deploy import predictor as predictors

    return predictors.predictor(folder, client, examples, preference)  # type: ignore[arg-type]


def export(
    folder: str | Path,
    to: str | Path,
    *,
    client: str | int | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    also: Sequence[Literal["pt2", "onnx"]] = (),
    overwrite: bool = False,
) -> Exported:
    """Write the one chosen model of a finished run to a folder, with a card that says what it is.

    A method that gives every client a model of its own needs `client`. Of a method that learns a
    front, `preference` chooses the model, or `limits`, such as {"dp": 0.05}: the least error
    within them. `also` adds graphs for other programs.
    """
    from isonomy.deploy import export as exports

    return exports.export(
        folder,
        to,
        client=client,
        preference=preference,
        limits=limits,
        also=also,
        overwrite=overwrite,
    )


def load_model(folder: str | Path, *, seal: str | None = None, trust: bool = False) -> Model:
    """A model that `export` wrote; one that was changed since is refused.

    `model.predict("rows.csv")` predicts raw rows. `seal` is the seal that the card has to have,
    and `trust` lets a model of a class of your own import it.
    """
    from isonomy.deploy.model import load_model as load_exported

    return load_exported(folder, seal=seal, trust=trust)


def table(
    records: Record | Sequence[Record],
    columns: Sequence[str] | None = None,
    *,
    format: Format = "text",
) -> str:
    """Methods side by side: mean and standard deviation over seeds; best values marked."""
    from isonomy.errors import ConfigError, unknown
    from isonomy.report.tables import comparison

    known = ("text", "markdown", "latex", "csv")
    if format not in known:
        raise ConfigError(unknown("format", format, known))
    made = comparison(_list(records), list(columns) if columns is not None else None)
    return str(getattr(made, format)())


def write_report(records: Record | Sequence[Record], path: str | Path = "report.html") -> Path:
    """Write one page, tables and figures, that needs no network; returns its path."""
    from isonomy.report import page

    path = Path(path)
    page.write(_list(records), path)
    return path


# --- the parts -----------------------------------------------------------------------------------


def _read(base: str | Path) -> tuple[str, dict[str, Any]]:
    """A config file's name and values: a path, or the name of one that comes with the package."""
    from importlib.resources import files

    from isonomy.config.schema import located, read_toml
    from isonomy.errors import ConfigError, did_you_mean

    path = Path(base)
    if not path.exists() and path.suffix == "" and path.name == str(base):
        folder = Path(str(files("isonomy.config"))) / "presets"
        packaged = folder / f"{base}.toml"
        if not packaged.exists():
            plain = [p.stem for p in folder.glob("*.toml") if "preset" not in read_toml(p)]
            raise ConfigError(
                f"there is no file '{base}' and no packaged config of that name; give the path of "
                f"a TOML config, or {' or '.join(sorted(plain))}.{did_you_mean(str(base), plain)}"
            )
        path = packaged
    values = located(read_toml(path), path.parent)
    if "preset" in values:
        raise ConfigError(
            f"'{base}' is a paper's experiment, not a plain config; run it with `isonomy "
            f"reproduce {path.stem}`."
        )
    return path.name, values


def _config(given: Config | str | Path) -> Config:
    return make_config(given) if isinstance(given, str | Path) else given


def _list(records: Record | Sequence[Record]) -> list[Record]:
    return list(records) if isinstance(records, Sequence) else [records]


def _plain(value: Any) -> Any:
    """An algorithm's instance as its table; anything else as it is."""
    import dataclasses

    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    from isonomy import algorithms

    kind = type(value)
    names = [name for name, known in algorithms.registry().items() if isinstance(value, known)]
    own = f"{kind.__module__}:{kind.__qualname__}"
    return {"name": names[0] if names else own, **dataclasses.asdict(value)}


def _named(method: Mapping[str, Any]) -> str | None:
    algorithm = method.get("algorithm")
    return algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm


def _number_last(part: str) -> tuple[str, int]:
    """`seed-10` after `seed-9`."""
    head = part.rstrip("0123456789")
    return head, int(part[len(head) :] or -1)
