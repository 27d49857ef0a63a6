"""The card of a model: what it is, what it was made and measured on, and the checksums.

It is JSON. `files` has the SHA-256 of every file beside it, and `seal` the SHA-256 of the card
itself, so that neither weights nor card can change unnoticed. Whoever changes a model on purpose
can seal it anew; who wants to be safe from that keeps the seal elsewhere and asks for it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isonomy.core.task import Loss
from isonomy.errors import RunError

CARD = "card.json"
WEIGHTS = "model.safetensors"
FORMAT = "isonomy model 1"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Architecture(_Model):
    """The network: a model by name with all its options, and its sizes.

    With `shares` the model is a mixture: so many members of this architecture, whose predicted
    probabilities are mixed by these shares.
    """

    name: str
    options: dict[str, Any]
    convert: bool = False
    inputs: tuple[int, ...]  # the shape of one row of features
    outputs: int
    classes: int  # 0 for a model that predicts a number
    loss: Loss  # which says what the outputs are: logits, a log-odds, a margin or a number
    parameters: int
    shares: tuple[float, ...] = ()


class Origin(_Model):
    """Where the model comes from."""

    algorithm: str
    options: dict[str, Any]
    defence: str = "none"
    attack: str = "none"
    round: int
    seed: int
    clients: int
    client: str | None  # whose model it is; None: the model of all clients
    preference: dict[str, float] | None = None  # of a method that learns a front
    limits: dict[str, float] | None = None  # that the preference was chosen by
    verdict: str | None = None  # what the method itself says of its model
    versions: dict[str, str]


class Data(_Model):
    """The data of the run."""

    name: str
    source: str
    options: dict[str, Any]
    partition: dict[str, Any]
    seed: int
    sizes: dict[str, int]  # of each split, over all clients
    digest: str = ""  # of all prepared examples, to know them again
    files: dict[str, str] = {}  # published files and their SHA-256


class Measured(_Model):
    """What was measured, and on which examples."""

    split: str
    rows: int
    clients: tuple[str, ...] | int  # whose examples, or how many clients'
    by: Literal["export", "run"]  # this very model, at its export; or the run, before
    metrics: dict[str, float | None]


class Card(_Model):
    """All that is known of a model."""

    format: Literal["isonomy model 1"] = "isonomy model 1"
    architecture: Architecture
    labels: tuple[str, ...]
    attributes: dict[str, tuple[str, ...]]
    features: tuple[str, ...]
    preprocessing: dict[str, Any] | None
    origin: Origin
    data: Data
    measured: tuple[Measured, ...]
    notes: tuple[str, ...] = ()
    files: dict[str, str] = {}
    seal: str = ""

    def sealed(self, files: dict[str, str]) -> Card:
        """The card with its files' checksums and its own."""
        made = self.model_copy(update={"files": files, "seal": ""})
        return made.model_copy(update={"seal": _seal(made.plain())})

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return self.model_dump(mode="json")

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(self.plain(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _seal(plain: dict[str, Any]) -> str:
    text = json.dumps({**plain, "seal": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: Path) -> str:
    """A file's checksum."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_model(folder: Path) -> bool:
    """Whether a folder is that of an exported model."""
    return (folder / CARD).is_file()


def read(folder: Path, seal: str | None = None) -> Card:
    """The card in a folder, all checksums verified."""
    path = folder / CARD
    if not path.is_file():
        raise RunError(
            f"'{folder}' is no exported model: it has no {CARD}; make one with `isonomy export RUN "
            "--to FOLDER`."
        )
    again = "export the model again, or get a whole copy"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        told = values["seal"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the card {path} cannot be read ({_short(error)}); {again}.") from None
    if told != _seal(values):
        raise RunError(f"the card {path} was changed: its seal does not match; {again}.")
    if seal is not None and told != seal.strip().lower():
        raise RunError(f"the model in '{folder}' has the seal {told}, not the one asked for.")
    if values.get("format") != FORMAT:
        raise RunError(
            f"the model in '{folder}' is of the format '{values.get('format')}', and this version "
            f"reads '{FORMAT}'; load it with the version of isonomy that wrote it."
        )
    try:
        card = Card.model_validate(values)
    except ValidationError as error:
        raise RunError(f"the card {path} cannot be read ({_short(error)}); {again}.") from None
    for name, right in card.files.items():
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise RunError(f"'{file}', which the card names, is not there; {again}.")
        if sha256(file) != right:
            raise RunError(f"'{file}' was changed: its checksum is not the card's; {again}.")
    if WEIGHTS not in card.files:
        raise RunError(f"the card {path} names no {WEIGHTS}; {again}.")
    return card


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return " ".join(str(error).split())[:120] or type(error).__name__
