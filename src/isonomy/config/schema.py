"""The configuration of an experiment: every key has a type, a default and a meaning.

A key that does not exist or a value that is not allowed raises a ConfigError that names the key.
Data sets, models, algorithms, attacks and defences also have options, which are in the same table
as `name`. They are checked later, when what is named is built (`isonomy.core.options`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from isonomy.config.errors import sentence
from isonomy.config.privacy import PrivacyConfig
from isonomy.config.section import Section
from isonomy.core.options import not_allowed
from isonomy.core.work import Work
from isonomy.errors import ConfigError


class NamedTable(BaseModel):
    """A table with a `name` and the options of what is named; a string stands for the name."""

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
        """The options of what is named."""
        return dict(self.model_extra or {})


class Data(NamedTable):
    """The data set, and how its examples are distributed over clients."""

    name: str = Field(
        "adult",
        description="name of a data set, see `isonomy ls`; with `path` and no name, your tables",
    )
    clients: int | None = Field(
        None, ge=1, description="number of clients (the data set's default if unset)"
    )
    seed: int | None = Field(
        None, ge=0, description="seed of split and partition (that of the run if unset)"
    )
    partition: str | dict[str, Any] | None = Field(
        None, description='how rows are assigned to clients, e.g. {name = "dirichlet", beta = 0.5}'
    )
    fallback: str | None = Field(
        None, description="data set to use instead if this one cannot be downloaded"
    )

    @model_validator(mode="before")
    @classmethod
    def _own(cls, value: Any) -> Any:
        """A path without a name means the user's own tables."""
        own = isinstance(value, dict) and "path" in value and "name" not in value
        return {"name": "tables", **value} if own else value


class Model(NamedTable):
    """The model, by name, or by 'package.module:Class' for your own."""

    name: str = Field("mlp", description="name of a model, or 'package.module:Class'")
    loss: Literal["cross_entropy", "logistic", "hinge", "squared"] | None = Field(
        None, description="loss (the model's default if unset)"
    )
    convert: bool = Field(False, description="replace BatchNorm by GroupNorm and disable dropout")


class AlgorithmConfig(NamedTable):
    """The algorithm and its hyper-parameters; see `isonomy show NAME`."""

    name: str = Field("fedavg", description="name of an algorithm, or 'package.module:Class'")


def _local_work(value: Any) -> Work:
    """The local work of a table of values."""
    if isinstance(value, Work):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{not_allowed('local', value, 'a table')}.")
    return Work.of_table(value)


class CohortConfig(Section):
    """The clients that take part in a round."""

    size: int | None = Field(None, ge=1, description="clients in a round (all if unset)")
    sampling: Literal["uniform", "size", "poisson"] = Field(
        "uniform",
        description="all clients equally likely, in proportion to size, or each independently of "
        "the others, so that `size` is the expected number (poisson)",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that a client drops out of a round"
    )
    max_weight: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest share of one client in the sizes of a round's clients; larger sizes "
        "are lowered to it",
    )


class AttackConfig(NamedTable):
    """Malicious clients and what they do. Metrics then cover the benign clients only."""

    name: str = Field("none", description="name of an attack, see `isonomy ls attacks`; or none")
    fraction: float = Field(
        0.2, ge=0, lt=1, description="share of clients that are malicious, drawn with the seed"
    )
    clients: list[int] | None = Field(
        None, description="numbers of the malicious clients, instead of a share"
    )
    labels: Literal["none", "auto", "random", "flip"] | None = Field(
        None,
        description="training labels of malicious clients: unchanged, drawn at random, flipped, or "
        "auto: flipped with two classes, otherwise random (none if unset, but auto for the attack "
        "'labels')",
    )
    seed: int | None = Field(
        None, ge=0, description="seed of the attack (that of the run if unset)"
    )


class DefenceConfig(NamedTable):
    """The rule that replaces the mean; the server then sees each client's update."""

    name: str = Field("none", description="name of a defence, see `isonomy ls defences`; or none")


class PostprocessConfig(NamedTable):
    """The rule of decisions that is fitted after training; simulations only."""

    name: str = Field(
        "none", description="name of a method, see `isonomy ls postprocessing`; or none"
    )


class ServerDataConfig(Section):
    """Examples of the server's own, for algorithms that need them (such as guardfed).

    They are training examples that are taken away from the clients; simulations only.
    """

    share: float = Field(
        0.05, gt=0, lt=1, description="share of all training examples that the server holds"
    )
    synthetic: float = Field(
        0.0,
        ge=0,
        le=1,
        description="synthetic examples in addition, as a share of all training examples, drawn "
        "from a Gaussian copula of those that the server holds; tables only",
    )


class EngineConfig(Section):
    """How clients are run; all engines give the same results up to rounding."""

    name: Literal["batched", "loop", "distributed"] = Field(
        "batched", description="engine; distributed: under torchrun, see docs/distributed.md"
    )
    workers: int = Field(
        1, ge=1, description="processes of this machine that compute the run together"
    )
    shares: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="shares that clients are divided into; the result does not depend on the "
        "number of processes, up to this number; auto: one per process",
    )
    timeout: float = Field(
        1800.0, gt=0, description="seconds that a process waits for the others, at most"
    )
    chunk: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="number of clients that run at once"
    )
    device: Literal["cpu", "cuda", "mps", "auto"] = Field(
        "cpu",
        description="where clients' data, states and training are; auto: a GPU, if any",
    )
    states: Literal["auto", "memory", "disk"] = Field(
        "auto",
        description="where clients' states are kept: all in memory, or those that changed on disk "
        "(auto: on disk if all of them are more than 32 MB)",
    )
    compile: bool = Field(False, description="compile local steps (needs a C++ compiler)")
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="precision of local steps; bf16: matrix products and convolutions in bfloat16, "
        "on a CPU with instructions for it",
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto", "probe"] = Field(
        "auto",
        description="torch threads; probe: a short timing chooses 1 or all cores; auto: 1 for "
        "small models, probe for others",
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class EvaluateConfig(Section):
    """When and on which examples metrics are computed."""

    every: int = Field(
        5, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    split: Literal["train", "validation", "test"] = Field(
        "test", description="examples to evaluate on"
    )
    clients: int | None = Field(
        None,
        ge=1,
        description="number of clients to evaluate, drawn once by the seed (all if unset); metrics "
        "then are estimates from these clients",
    )
    bootstrap: int = Field(
        1000, ge=0, description="bootstrap resamples of clients for intervals; 0: no intervals"
    )
    scores: Literal["last", "always", "never"] = Field(
        "last",
        description="when metrics of probabilities and of predicted numbers are measured (AUC, "
        "calibration, Brier score, RMSE, ...): at the last evaluation, at every one, or never",
    )
    threshold: (
        Annotated[float, Field(ge=0, le=1)] | Literal["balanced", "f1", "accuracy"] | None
    ) = Field(
        None,
        description="probability of class 1 above which a decision is counted as positive, or what "
        "it is fitted for on validation examples: balanced accuracy, F1 or accuracy (0.5 if unset)",
    )
    threshold_by: str | None = Field(
        None, description="protected attribute whose groups each have their own fitted threshold"
    )


class FrontConfig(Section):
    """How fronts are measured; a method with one model has a front of one point."""

    rays: int = Field(
        1000,
        ge=0,
        description="number of preferences to evaluate, minus one; with more than two objectives, "
        "the largest lattice with at most that many; 0: no fronts",
    )
    objectives: list[str] = Field(
        default_factory=list,
        description="coordinates: error, dp.ATTRIBUTE, eo.ATTRIBUTE (if empty: the objectives of "
        "the method, or error and dp of the first attribute)",
    )


class ExcessConfig(Section):
    """The surrogate model for the best attainable loss, for excess risk and FAA.

    The best of its checkpoints is chosen on held-out examples.
    """

    clusters: Literal["auto", "true", "found", "own", "one", "none"] = Field(
        "auto",
        description="train it for each true cluster, for each cluster that the method found (at "
        "the end), for each client, once for all, or not at all; auto: true clusters if the data "
        "set has them, otherwise each client",
    )
    steps: int = Field(500, ge=1, description="most training steps")
    checkpoints: int = Field(
        10, ge=1, description="checkpoints to choose from, at equal numbers of steps"
    )
    batch: int = Field(64, ge=0, description="examples in a batch; 0 means all")
    lr: float | None = Field(None, gt=0, description="learning rate (local.lr if unset)")

    @model_validator(mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        """`clusters = true`, as the command line reads the name, means "true".

        `excess = "none"` is short for `excess.clusters = "none"`, and so for the other rules.
        """
        if isinstance(value, str):
            value = {"clusters": value}
        if isinstance(value, dict) and value.get("clusters") is True:
            return {**value, "clusters": "true"}
        return value


class CheckpointConfig(Section):
    """When to save the state that a resumed run starts from."""

    every: int = Field(10, ge=1, description="rounds between checkpoints")
    keep: int = Field(2, ge=1, description="number of checkpoints to keep")


class SecureConfig(Section):
    """Secure aggregation: the server learns sums of replies and no single one.

    In a simulation, replies are quantised in the same way, so that its effect is measured.
    `secure = true` stands for `secure.enabled = true`; a table with other keys implies it.
    """

    enabled: bool = Field(False, description="whether replies of training are summed securely")
    threshold: int | None = Field(
        None,
        ge=2,
        description="clients that a sum is of, at least: more than half of those in a round (two "
        "thirds of them if unset)",
    )
    clip: float = Field(
        16.0, gt=0, description="models and updates are cut to numbers from -clip to clip"
    )
    bits: int = Field(
        32, ge=4, le=48, description="bits of a number of a model or an update, in its reply"
    )
    range: float = Field(
        2.0**24,
        ge=1,
        le=2.0**40,
        description="other numbers (statistics, gradients) are cut to -range to range",
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"enabled": value}
        on = isinstance(value, dict) and bool(value) and "enabled" not in value
        return {"enabled": True, **value} if on else value


class CompareConfig(Section):
    """What `isonomy compare` runs: every method with every seed."""

    seeds: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=0)]] = Field(
        1, description="number of seeds, or a list of seeds"
    )
    methods: list[dict[str, Any]] = Field(
        default_factory=list,
        description="one table per method: `label` and the changed keys, e.g. algorithm = 'local'",
    )


class DecideConfig(Section):
    """What `isonomy decide` is asked for: requirements, and what to maximise beyond them."""

    require: list[str] = Field(
        default_factory=list,
        description="bounds that must hold, e.g. 'demographic_parity(sex) <= 0.05', "
        "'worst_client_accuracy >= 0.75' or 'epsilon <= 4'",
    )
    maximise: str = Field("accuracy", description="quantity to maximise among what meets them")
    minimise: str | None = Field(None, description="quantity to minimise instead")
    budget: str = Field("10m", description="time for all trials, e.g. 90s, 10m or 2h")
    trials: int | None = Field(None, ge=1, description="trials of each method, in place of a time")
    methods: list[str | dict[str, Any]] = Field(
        default_factory=list,
        description="methods to try: names of algorithms, or tables as in compare.methods (plain "
        "averaging, local training, the package's five systems and more if empty)",
    )


class TrackConfig(Section):
    """A tracker of experiments that runs are reported to; a string stands for its name."""

    name: Literal["mlflow", "tensorboard", "wandb"] = Field(description="tracker")
    project: str = Field(
        "isonomy", min_length=1, description="experiment of MLflow, project of W&B, or folder"
    )
    to: str = Field(
        "", description="tracking URI of MLflow, or the folder of files (the tracker's default)"
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Config(Section):
    """The config of an experiment."""

    name: str | None = Field(None, description="name of the folder of the run")
    label: str | None = Field(None, description="name of the method in tables and figures")
    series: str | None = Field(
        None, description="curve that the run is a point of, in trade-off figures; set by a sweep"
    )
    seed: int = Field(0, ge=0, description="seed of all random numbers")
    rounds: int = Field(50, ge=1, description="communication rounds")
    data: Data = Field(default_factory=lambda: Data(name="adult"))
    model: Model = Field(default_factory=lambda: Model(name="mlp"))
    algorithm: AlgorithmConfig = Field(default_factory=lambda: AlgorithmConfig(name="fedavg"))
    local: Annotated[Work, BeforeValidator(_local_work)] = Field(
        default_factory=lambda: Work.of_table({})
    )
    cohort: CohortConfig = Field(default_factory=CohortConfig)
    attack: AttackConfig = Field(default_factory=lambda: AttackConfig(name="none"))
    defence: DefenceConfig = Field(default_factory=lambda: DefenceConfig(name="none"))
    postprocess: PostprocessConfig = Field(default_factory=lambda: PostprocessConfig(name="none"))
    server_data: ServerDataConfig = Field(default_factory=ServerDataConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    front: FrontConfig = Field(default_factory=FrontConfig)
    excess: ExcessConfig = Field(default_factory=ExcessConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    secure: SecureConfig = Field(default_factory=SecureConfig)
    compare: CompareConfig = Field(default_factory=CompareConfig)
    decide: DecideConfig = Field(default_factory=DecideConfig)
    track: list[TrackConfig] = Field(
        default_factory=list,
        description="trackers of experiments, one table [[track]] each: name (mlflow, tensorboard "
        "or wandb), project and to",
    )
    versions: dict[str, str] = Field(
        default_factory=dict, description="versions of the software that the run used"
    )

    def plain(self) -> dict[str, Any]:
        """The config as nested TOML values, without keys that are unset.

        The keys of `local` are all there once a run is built, because then the algorithm has filled
        in those that were unset.
        """
        values = dict(_without_none(self.model_dump(mode="json")))
        values["local"] = {k: v for k, v in values["local"].items() if k not in self.local.unset}
        if not self.track:
            del values["track"]
        return values

    def toml(self) -> str:
        """The complete config as TOML text."""
        return tomli_w.dumps(self.plain())

    @property
    def digest(self) -> str:
        """A hash of what decides the rounds of a run.

        It leaves out the path of the tables, which may be moved, and the number of rounds, unless
        the learning rate depends on it: a run may be made longer.
        """
        plain = self.plain()
        del plain["decide"]
        plain.pop("track", None)
        plain["data"] = {k: v for k, v in plain["data"].items() if k != "path"}
        if self.local.schedule != "cosine":
            del plain["rounds"]
        for key in ("workers", "timeout", "states"):  # the result does not depend on them
            del plain["engine"][key]
        if self.engine.device == "cpu":  # as in runs of versions without this key
            del plain["engine"]["device"]
        if self.engine.precision == "float32":  # as in runs of versions without this key
            del plain["engine"]["precision"]
        if self.engine.name == "distributed":  # the same result, by other processes
            plain["engine"]["name"] = "batched"
        if self.engine.shares == "auto":  # a checkpoint has their number
            del plain["engine"]["shares"]
        if self.postprocess.name == "none":  # as in runs of versions without it
            del plain["postprocess"]
        if not self.secure.enabled:
            del plain["secure"]
        if self.server_data == ServerDataConfig():  # as in runs of versions without it
            del plain["server_data"]
        if self.evaluate.scores == "last":  # as in runs of versions without this key
            del plain["evaluate"]["scores"]
        if self.privacy.level == "none":  # as in runs of versions without it
            limits = ("rows", "cell", "rounding", "repeats")
            plain["privacy"] = {k: v for k, v in plain["privacy"].items() if k in limits}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value


def _check_size(value: Any, where: str) -> None:
    """Raise ConfigError for an integer of more than 64 bits."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_size(inner, f"{where}: {key}" if ":" not in where else f"{where}.{key}")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(
            f"{where} is a number of {len(str(abs(value)))} digits; give a smaller one."
        )


def parse(values: dict[str, Any], *, where: str = "config") -> Config:
    """A config from nested values; raises a ConfigError that begins with `where`."""
    _check_size(values, where)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {sentence(error, Config)}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
