"""The configuration of an experiment, typed; every key has a default, a meaning and a range.

A key that is unknown, misspelled or out of range is refused with one sentence that names it.
Data sets, models, algorithms, attacks and defences have options of their own, which sit in the same
table beside `name` and are checked by whoever they belong to.
"""

from __future__ import annotations

import os
import tomllib
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from isonomy.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from isonomy.core.work import Work

_Share = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",  # of the options below, which may be infinite
    )


class _Named(BaseModel):
    """A table with a `name` and options of its own; a plain string is its name."""

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        strict=True,
        ser_json_inf_nan="constants",  # options may be infinite; TOML has inf
    )
    name: str

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The keys that belong to the thing named."""
        return dict(self.model_extra or {})


class Data(_Named):
    """Where the examples come from and how they lie with clients."""

    name: str = Field(
        "adult",
        description="a data set's name, see `isonomy ls`; with `path` and no name, own tables",
    )
    clients: int | None = Field(
        None, ge=1, description="number of clients (data set's own if unset)"
    )
    seed: int | None = Field(
        None, ge=0, description="seed of split and partition (the run's if unset)"
    )
    partition: str | dict[str, Any] | None = Field(
        None, description='how rows go to clients, e.g. {name = "dirichlet", beta = 0.5}'
    )
    fallback: str | None = Field(
        None, description="data set to use instead when this one cannot be fetched"
    )

    @model_validator(mode="before")
    @classmethod
    def _own(cls, value: Any) -> Any:
        """A path and no name: the user's own tables."""
        own = isinstance(value, dict) and "path" in value and "name" not in value
        return {"name": "tables", **value} if own else value


class Model(_Named):
    """The model; a name, or 'package.module:Class' for one's own."""

    name: str = Field("mlp", description="a model's name, or 'package.module:Class'")
    loss: Literal["cross_entropy", "logistic", "hinge", "squared"] | None = Field(
        None, description="loss (the model's usual one if unset)"
    )
    convert: bool = Field(False, description="turn BatchNorm into GroupNorm and switch dropout off")


class AlgorithmConfig(_Named):
    """The algorithm and its hyper-parameters; see `isonomy show NAME`."""

    name: str = Field("fedavg", description="an algorithm's name, or 'package.module:Class'")


class LocalConfig(_Section):
    """Local work, the same for every method of a comparison."""

    epochs: int = Field(1, ge=1, description="passes over a client's examples in a round")
    steps: int | None = Field(None, ge=1, description="local steps in a round, instead of epochs")
    batch: int = Field(32, ge=0, description="examples in a batch; 0 means all")
    last: Literal["keep", "drop"] = Field("keep", description="a pass's last short batch")
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="local optimiser")
    lr: float = Field(0.1, gt=0, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD's momentum")
    nesterov: bool = Field(False, description="Nesterov's form of momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 weight decay, as in torch.optim")
    betas: tuple[_Share, _Share] = Field(
        (0.9, 0.999), strict=False, description="Adam's decay rates"
    )
    epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon")
    schedule: Literal["constant", "exponential", "step", "inverse_sqrt", "cosine"] = Field(
        "constant", description="learning rate over rounds"
    )
    decay: float = Field(0.99, gt=0, le=1, description="factor of the schedule")
    every: int = Field(1, ge=1, description="rounds between steps of the 'step' schedule")

    def work(self) -> Work:
        """As the engines take it."""
        from isonomy.core.work import Work  # here: torch is slow to import, and errors come first

        return Work(**{name: getattr(self, name) for name in type(self).model_fields})


class CohortConfig(_Section):
    """Who takes part in a round."""

    size: int | None = Field(None, ge=1, description="clients in a round (all if unset)")
    sampling: Literal["uniform", "size"] = Field(
        "uniform", description="equally likely, or in proportion to size"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="chance that a client falls silent")


class AttackConfig(_Named):
    """Malicious clients and what they do. Metrics are then of the benign clients only."""

    name: str = Field("none", description="an attack's name, see `isonomy ls attacks`; or none")
    fraction: float = Field(
        0.2, ge=0, lt=1, description="share of clients that are malicious, drawn by the seed"
    )
    clients: list[int] | None = Field(
        None, description="the malicious clients' numbers, instead of a share"
    )
    labels: Literal["none", "auto", "random", "flip"] | None = Field(
        None,
        description="their training labels: kept, drawn at random, flipped, or auto: flipped if "
        "there are two classes, else random (none if unset, but auto for the attack 'labels')",
    )
    seed: int | None = Field(None, ge=0, description="seed of the attack (the run's if unset)")


class DefenceConfig(_Named):
    """The combiner that takes the mean's place; the server then sees each client's update."""

    name: str = Field("none", description="a defence's name, see `isonomy ls defences`; or none")


class EngineConfig(_Section):
    """How clients are run; results agree to rounding."""

    name: Literal["batched", "loop"] = Field("batched", description="engine")
    chunk: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="clients at once"
    )
    compile: bool = Field(False, description="compile local steps (needs a C++ compiler)")
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="torch threads; auto: 1 if small"
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class EvaluateConfig(_Section):
    """When to measure."""

    every: int = Field(5, ge=1, description="rounds between evaluations; the last is always one")
    split: Literal["train", "validation", "test"] = Field("test", description="on which examples")
    bootstrap: int = Field(1000, ge=0, description="resamples of clients for intervals; 0: none")


class FrontConfig(_Section):
    """How fronts are measured; a method of one model has a front of one point."""

    rays: int = Field(
        1000,
        ge=0,
        description="preferences tried are this and one more, of more than two objectives the "
        "largest lattice of at most so many; 0: no fronts",
    )
    objectives: list[str] = Field(
        default_factory=list,
        description="coordinates: error, dp.ATTRIBUTE, eo.ATTRIBUTE (the method's own if empty, "
        "or error and dp of the first attribute)",
    )


class ExcessConfig(_Section):
    """The surrogate of the best attainable loss, for excess risk and FAA."""

    clusters: Literal["auto", "true", "found", "own", "one", "none"] = Field(
        "auto",
        description="pool clients by true cluster, by the cluster that the method found (at its "
        "end), each alone, all, or not at all; auto: true clusters if the data set knows them, "
        "else each client alone",
    )
    steps: int = Field(500, ge=1, description="steps of the surrogate's training")
    batch: int = Field(64, ge=0, description="its batch; 0 means all")
    lr: float | None = Field(None, gt=0, description="its learning rate (local.lr if unset)")


class CheckpointConfig(_Section):
    """When to save what a resumed run needs."""

    every: int = Field(10, ge=1, description="rounds between checkpoints")
    keep: int = Field(2, ge=1, description="how many to keep")


class CompareConfig(_Section):
    """What `isonomy compare` runs: methods times seeds."""

    seeds: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=0)]] = Field(
        1, description="how many seeds, or which"
    )
    methods: list[dict[str, Any]] = Field(
        default_factory=list,
        description="one table a method: `label` and the keys it changes, e.g. algorithm = 'local'",
    )


class Config(_Section):
    """A whole experiment."""

    name: str | None = Field(None, description="name of the run's folder")
    label: str | None = Field(None, description="the method's name in tables and figures")
    series: str | None = Field(
        None, description="the curve it is a point of, in figures of trade-offs; a sweep sets it"
    )
    seed: int = Field(0, ge=0, description="seed of everything random")
    rounds: int = Field(50, ge=1, description="communication rounds")
    data: Data = Field(default_factory=lambda: Data(name="adult"))
    model: Model = Field(default_factory=lambda: Model(name="mlp"))
    algorithm: AlgorithmConfig = Field(default_factory=lambda: AlgorithmConfig(name="fedavg"))
    local: LocalConfig = Field(default_factory=LocalConfig)
    cohort: CohortConfig = Field(default_factory=CohortConfig)
    attack: AttackConfig = Field(default_factory=lambda: AttackConfig(name="none"))
    defence: DefenceConfig = Field(default_factory=lambda: DefenceConfig(name="none"))
    engine: EngineConfig = Field(default_factory=EngineConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    front: FrontConfig = Field(default_factory=FrontConfig)
    excess: ExcessConfig = Field(default_factory=ExcessConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    compare: CompareConfig = Field(default_factory=CompareConfig)
    versions: dict[str, str] = Field(default_factory=dict, description="what the run was made with")

    def plain(self) -> dict[str, Any]:
        """As nested plain values, without what is unset."""
        return dict(_without_none(self.model_dump(mode="json")))

    def toml(self) -> str:
        """As TOML, complete."""
        return tomli_w.dumps(self.plain())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value


# --- reading -------------------------------------------------------------------------------------


def parse(values: dict[str, Any], *, where: str = "config") -> Config:
    """A config from nested values, or one sentence on what is wrong with them."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, where)) from None


def read(path: Path | str, overrides: list[str] | None = None) -> Config:
    """A config from a TOML file with `key=value` overrides."""
    path = Path(path)
    values = located(read_toml(path), path.parent)
    for override in overrides or []:
        values = merge(values, parse_override(override))
    return parse(values, where=path.name)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's values."""
    if path.is_dir() or (path.is_file() and path.suffix in (".csv", ".tsv", ".parquet", ".pq")):
        raise ConfigError(
            f"'{path}' is no config; `isonomy init {path}` makes one from the tables there."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file '{path}'; give the path of a TOML config.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' cannot be read ({error}); give a TOML text file.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}; mend that line.") from None


def located(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """With the path of data beside a config found from where the config is."""
    data = values.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("path"), str) or not data["path"]:
        return values
    return values | {"data": data | {"path": str(folder / os.path.expanduser(data["path"]))}}


def parse_override(text: str) -> dict[str, Any]:
    """`local.lr=0.1` as nested values; a bare word is a string.

    >>> parse_override("local.lr=0.1")
    {'local': {'lr': 0.1}}
    """
    key, found, value = text.partition("=")
    key = key.strip()
    if not found or not all(part for part in key.split(".")):
        raise ConfigError(f"'{text}' is not an override; write key=value, e.g. local.lr=0.1.")
    nested: Any = toml_value(value.strip())
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def toml_value(text: str) -> Any:
    """A value as TOML reads it; what TOML cannot read is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merge(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`other` over `base`, table by table; another name drops the options of the old one."""
    out = dict(base)
    for key, value in other.items():
        old, new = _table(key, out.get(key)), _table(key, value)
        if not isinstance(old, dict) or not isinstance(new, dict):
            out[key] = new
        elif key in _KEPT and new.get("name", old.get("name")) != old.get("name"):
            out[key] = {k: v for k, v in old.items() if k in _KEPT[key]} | new
        else:
            out[key] = merge(old, new)
    return out


_KEPT: dict[str, set[str]] = {  # what does not belong to the thing named
    "algorithm": set(),
    "model": {"convert"},
    "data": {"clients", "seed", "fallback"},
    "partition": set(),
    "attack": {"fraction", "clients", "labels", "seed"},
    "defence": set(),
}


def _table(key: str, value: Any) -> Any:
    """A name alone as the table it stands for."""
    named = key in _KEPT or key == "engine"
    return {"name": value} if named and isinstance(value, str) else value


# --- saying what is wrong ------------------------------------------------------------------------


def _sentence(error: ValidationError, where: str) -> str:
    errors = error.errors()
    first = errors[0]
    path = [str(p) for p in first["loc"] if not _is_branch(p)]
    key = ".".join(path)
    found = first.get("input")
    kind = first["type"]
    if kind == "extra_forbidden":
        known = _keys(path[:-1])
        table = ".".join(path[:-1])
        inside = f"table '{table}'" if table else "top level"
        hint = did_you_mean(path[-1], known) or f" Known there: {', '.join(known)}."
        text = f"{where}: unknown key '{key}' ({inside}).{hint}"
    elif kind == "missing":
        text = f"{where}: '{key}' is missing; give it."
    else:
        text = f"{where}: {key} = {_short_repr(found)} is not allowed; {_allowed(first, path)}."
    if len(errors) > 1:
        others = sorted(
            {".".join(str(p) for p in e["loc"] if not _is_branch(p)) for e in errors[1:]} - {key}
        )
        if others:
            text += f" (Also look at: {', '.join(others[:5])}.)"
    return text


def _is_branch(part: Any) -> bool:
    """Pydantic names the branch of a union in the path; a user never wrote it."""
    if not isinstance(part, str):
        return False
    return part in {"int", "str", "float", "bool"} or "[" in part or part.startswith("constrained-")


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _allowed(error: Any, path: list[str]) -> str:
    field = _field(path)
    if field is not None:
        return f"give {_allowed_words(field)}"
    message = str(error["msg"])
    return message[0].lower() + message[1:]


def _allowed_words(field: Any) -> str:
    """What a field takes: its type, and its limits."""
    return " ".join([_type_words(field.annotation), " and ".join(_limits(field.metadata))]).strip()


def _limits(metadata: Any) -> list[str]:
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return [
        f"{words} {getattr(bound, name)}"
        for bound in metadata
        for name, words in signs.items()
        if getattr(bound, name, None) is not None
    ]


def _type_words(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *bounds = get_args(annotation)
        limits = " and ".join(w for b in bounds for w in _limits(b.metadata))
        return f"{_type_words(inner)} {limits}".strip()
    if origin is Literal:
        if len(get_args(annotation)) == 1:
            return repr(get_args(annotation)[0])
        return "one of " + ", ".join(repr(a) for a in get_args(annotation))
    if origin in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        return " or ".join(_type_words(a) for a in inner)
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    if origin in (list, tuple):
        return "a list"
    if origin is dict or annotation is dict:
        return "a table"
    return names.get(annotation, "another value")


def _model_at(path: list[str]) -> type[BaseModel] | None:
    model: type[BaseModel] = Config
    for part in path:
        field = model.model_fields.get(part)
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            return None
        model = field.annotation
    return model


def _keys(path: list[str]) -> list[str]:
    model = _model_at(path)
    return list(model.model_fields) if model else []


def _field(path: list[str]) -> Any:
    model = _model_at(path[:-1]) if path else None
    return model.model_fields.get(path[-1]) if model else None


# --- the reference page --------------------------------------------------------------------------


def reference() -> str:
    """All keys with their meanings, defaults and ranges, as Markdown (docs/configuration.md)."""
    lines = [
        "# Configuration",
        "",
        "A config is a TOML file. Every key has a default, so it holds only what differs. On the",
        "command line any key can be given as `key=value`: `isonomy run my.toml local.lr=0.05`.",
        "This page is made from the schema (`isonomy.config.schema.reference`).",
        "",
        "## Top level",
        "",
    ]
    sections = []
    lines += ["| key | allowed | default | meaning |", "| --- | --- | --- | --- |"]
    for name, about in Config.model_fields.items():
        kind = about.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections.append((name, kind))
        else:
            lines.append(_reference_row(name, about))
    for name, model in sections:
        lines += ["", f"## [{name}]", "", (model.__doc__ or "").strip(), ""]
        lines += ["| key | allowed | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_reference_row(key, about) for key, about in model.model_fields.items()]
        if issubclass(model, _Named):
            lines += ["", "Other keys are options of what is named: see `isonomy show NAME`."]
    return "\n".join(lines) + "\n"


def _reference_row(name: str, about: Any) -> str:
    default = about.get_default(call_default_factory=True)
    shown = "unset" if default is None else f"`{default!r}`"
    allowed = _allowed_words(about).removeprefix("a ")
    return f"| `{name}` | {allowed} | {shown} | {about.description or ''} |"
