"""The card of an exported model: what it is, the data it was trained and measured on, checksums.

The card is a JSON file. `files` has the SHA-256 of every other file, and `seal` the SHA-256 of the
card itself, so an accidental change of weights or card is noticed. A person who changes a model on
purpose can compute a new seal; to notice that too, keep the seal elsewhere and pass it to
`load_model`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isonomy.core.examples import DataShape
from isonomy.core.task import Loss
from isonomy.errors import RunError

CARD = "card.json"
WEIGHTS = "model.safetensors"
FORMAT = "isonomy model 1"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Architecture(_Model):
    """The network: a model by name with all its options, and its sizes.

    With `shares` the model is a mixture: one member of this architecture for each share, and
    their predicted probabilities are averaged with the shares as weights.
    """

    name: str
    options: dict[str, Any]
    convert: bool = False
    inputs: tuple[int, ...]  # the shape of one row of features
    outputs: int
    classes: int  # 0 for a model that predicts a number
    loss: Loss  # decides what the outputs are: logits, a log-odds, a margin or a number
    parameters: int
    shares: tuple[float, ...] = ()

    @property
    def shape(self) -> DataShape:
        """The description of the data that a task is made from."""
        return DataShape(self.inputs, self.classes, source="the card")


class Origin(_Model):
    """Where the model comes from."""

    algorithm: str
    options: dict[str, Any]
    defence: str = "none"
    attack: str = "none"
    round: int
    seed: int
    clients: int
    client: str | None  # the client whose model it is; None: the model of all clients
    preference: dict[str, float] | None = None  # of a method that learns a front
    limits: dict[str, float] | None = None  # by which the preference was chosen
    constant: str | None = None  # the class that is predicted for every row, if it is constant
    choice: tuple[str, ...] = ()  # why this model of a front was chosen
    verdict: str | None = None  # the method's own verdict on its model
    versions: dict[str, str]


class Data(_Model):
    """The data that the run trained on."""

    name: str
    source: str
    options: dict[str, Any]
    partition: dict[str, Any]
    seed: int
    sizes: dict[str, int]  # of each split, over all clients
    digest: str = ""  # of all prepared examples, to recognise them
    files: dict[str, str] = {}  # published files and their SHA-256


class Measured(_Model):
    """Metrics, and the examples that they were measured on."""

    split: str
    rows: int
    clients: tuple[str, ...] | int  # the clients' names, or how many clients
    by: Literal["export", "run"]  # measured on this model at its export, or earlier by the run
    metrics: dict[str, float | None]


class MeasuredBound(_Model):
    """A bound by which the model was chosen: on which examples, and whether it held on others."""

    name: str
    metric: str
    most: float
    level: float
    split: str
    rows: int
    value: float
    upper: float | None  # the upper confidence limit; None if there was no margin
    evaluated: str
    evaluated_rows: int
    evaluated_value: float
    low: float
    high: float
    held: bool
    text: str


class Card(_Model):
    """Everything that is known about an exported model."""

    format: Literal["isonomy model 1"] = "isonomy model 1"
    architecture: Architecture
    labels: tuple[str, ...]
    attributes: dict[str, tuple[str, ...]]
    features: tuple[str, ...]
    preprocessing: dict[str, Any] | None
    origin: Origin
    data: Data
    measured: tuple[Measured, ...]
    rule: dict[str, Any] | None = None  # of decisions by group (`isonomy.postprocess`)
    bounds: tuple[MeasuredBound, ...] = ()
    notes: tuple[str, ...] = ()
    files: dict[str, str] = {}
    seal: str = ""

    def sealed(self, files: dict[str, str]) -> Card:
        """The card with the checksums of its files and its own seal."""
        card = self.model_copy(update={"files": files, "seal": ""})
        return card.model_copy(update={"seal": _seal(card.plain())})

    def plain(self) -> dict[str, Any]:
        """The card as JSON values."""
        return self.model_dump(mode="json")

    def dump(self) -> str:
        """The card as JSON text."""
        return json.dumps(self.plain(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _seal(plain: dict[str, Any]) -> str:
    text = json.dumps({**plain, "seal": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_model(folder: Path) -> bool:
    """Whether the folder holds an exported model."""
    return (folder / CARD).is_file()


def read(folder: Path, seal: str | None = None) -> Card:
    """The card in a folder; raises a RunError unless all checksums (and `seal`, if given) match."""
    path = folder / CARD
    if not path.is_file():
        raise RunError(
            f"'{folder}' is not an exported model: it has no {CARD}; make one with `isonomy export "
            "RUN --to FOLDER`."
        )
    again = "export the model again, or get an intact copy"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = values["seal"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the card {path} cannot be read ({_short(error)}); {again}.") from None
    if found != _seal(values):
        raise RunError(f"the card {path} was changed: its seal does not match; {again}.")
    if seal is not None and found != seal.strip().lower():
        raise RunError(
            f"the model in '{folder}' has the seal {found}, not the expected one; {again}."
        )
    if values.get("format") != FORMAT:
        raise RunError(
            f"the model in '{folder}' has the format '{values.get('format')}', but this version "
            f"reads '{FORMAT}'; load it with the version of isonomy that wrote it."
        )
    try:
        card = Card.model_validate(values)
    except ValidationError as error:
        raise RunError(f"the card {path} cannot be read ({_short(error)}); {again}.") from None
    for name, checksum in card.files.items():
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise RunError(f"'{file}', which the card lists, is missing; {again}.")
        if sha256(file) != checksum:
            raise RunError(f"'{file}' was changed: its checksum is not the card's; {again}.")
    if WEIGHTS not in card.files:
        raise RunError(f"the card {path} does not list {WEIGHTS}; {again}.")
    return card


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return " ".join(str(error).split())[:120] or type(error).__name__
