"""The trained model of a run, in its folder `model/`: the only writer and the only reader.

model.safetensors   the state that the server deploys, the clients' own states, and the rule of
                    decisions, if one was fitted
model.json          the card: what the model is, the shapes of its tensors, their checksum
preprocessing.json  how rows of a table become features, if the data are tables
clients.safetensors the states of many clients (`saved_states`); model.safetensors then has the
                    initial one
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.examples import SPLITS, Attribute, DataShape
from isonomy.core.task import Loss, Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.engines.states import Known
from isonomy.errors import RunError
from isonomy.postprocess import Rule, read_rule
from isonomy.runs.files import decode, encode, write_atomically
from isonomy.runs.saved_states import STATES, SavedStates, write_states

CARD, TENSORS, PREPROCESSING = "model.json", "model.safetensors", "preprocessing.json"
FILES = (CARD, TENSORS, PREPROCESSING)


@dataclass(frozen=True)
class ModelCard:
    """What a saved model is: its algorithm, its network, and the data it was trained on."""

    algorithm: dict[str, Any]  # name and options
    model: dict[str, Any]  # name and options
    loss: Loss
    classes: int  # 0 for a model that predicts a number
    labels: list[str]
    features: list[str]
    inputs: list[int]  # the shape of one row of features
    attributes: dict[str, list[str]]  # protected attributes and their groups
    clients: list[str]
    data: str
    splits: dict[str, int]  # examples of all clients
    versions: dict[str, str]
    rule: dict[str, Any] | None = None  # of decisions, without its tensors

    @property
    def shape(self) -> DataShape:
        """The description of the data that a task is made from."""
        return DataShape(
            inputs=tuple(self.inputs),
            classes=self.classes,
            attributes=tuple(Attribute(k, tuple(v)) for k, v in self.attributes.items()),
            source=self.data,
        )


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model as it was read: its card, the deployed state, the clients' states [clients, ...].

    Many clients' states are `sparse`, and read when they are needed.
    """

    card: ModelCard
    server: Tree
    clients: Tree
    preprocessing: Mapping[str, Any] | None
    rule: Rule | None = None
    sparse: SavedStates | None = None

    def state(self, client: int) -> State:
        """One client's state."""
        return tree.take(self.clients, client) if self.sparse is None else self.sparse.of(client)

    def states(self) -> Tree:
        """Every client's state, in memory."""
        return self.clients if self.sparse is None else self.sparse.stacked(len(self.card.clients))


def card_of(config: Config, task: Task, federation: Federation) -> ModelCard:
    """The card of a model that was trained with this config on this federation's data."""
    return ModelCard(
        algorithm=config.algorithm.model_dump(mode="json"),
        model=config.plain()["model"],
        loss=task.loss_name,
        classes=task.classes,
        labels=list(federation.labels),
        features=list(federation.features),
        inputs=list(federation.x.shape[1:]),
        attributes={a.name: list(a.levels) for a in federation.attributes},
        clients=[federation.name(k) for k in range(len(federation))],
        data=federation.source,
        splits=(
            {}  # which this level protects
            if config.privacy.level == "client" and "evaluation" not in config.privacy.allow
            else {split: int(federation.sizes(split).sum()) for split in SPLITS}
        ),
        versions=config.versions,
    )


def write(
    folder: Path,
    server: Tree,
    clients: Tree,
    card: ModelCard,
    preprocessing: Mapping[str, Any] | None = None,
    rule: Rule | None = None,
    known: tuple[Tensor, Iterable[Known]] | None = None,
) -> None:
    """Write a model; the card comes last, so a model that has one is complete.

    With `known`, these clients have other states than the others, whose state is `clients`.
    """
    (folder / STATES).unlink(missing_ok=True)
    if known is not None:
        write_states(folder / STATES, clients, *known)
    if preprocessing is not None:
        text = json.dumps(preprocessing, indent=1, allow_nan=False)
        write_atomically(folder / PREPROCESSING, text.encode())
    parts, about = saved(rule)
    content, description = encode({"server": server, "clients": clients, **parts})
    write_atomically(folder / TENSORS, content)
    text = json.dumps({**dataclasses.asdict(card), **about, **description}, indent=1)
    write_atomically(folder / CARD, text.encode())


def exists(folder: Path) -> bool:
    """Whether a complete model is in the folder."""
    return (folder / CARD).exists()


def read(folder: Path) -> SavedModel:
    """Read a model and verify its checksum; raises a RunError if it is missing or damaged."""
    try:
        values = json.loads((folder / CARD).read_text(encoding="utf-8"))
        description = {name: values.pop(name) for name in ("shapes", "sha256")}
        trees = decode((folder / TENSORS).read_bytes(), description)
        file = folder / PREPROCESSING
        preprocessing = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        card = ModelCard(**values)
        rule = restored(trees, values)
        many = folder / STATES
        sparse = SavedStates(many, trees["clients"]) if many.exists() else None
        return SavedModel(card, trees["server"], trees["clients"], preprocessing, rule, sparse)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"the model in '{folder}' cannot be read ({error}); start the run again with "
            "--overwrite."
        ) from None


def saved(rule: Rule | None) -> tuple[dict[str, Tree], dict[str, Any]]:
    """What a checkpoint or a model holds of a rule: trees of tensors, and JSON values."""
    if rule is None:
        return {}, {}
    about = {k: v for k, v in rule.plain().items() if k != "parts"}
    return {"rule": rule.parts}, {"rule": about}


def restored(trees: dict[str, Tree], values: dict[str, Any]) -> Rule | None:
    """The rule of `saved`."""
    about = values.get("rule")
    return None if about is None else read_rule(about, trees["rule"])
