"""A finished run's model as one client uses it: a client of the run, or a new one.

A new client first does what its method asks of clients that were never in training
(`Algorithm.adapt`), on some labelled examples of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isonomy import algorithms, tree
from isonomy.algorithm import Algorithm, State
from isonomy.data.federation import Federation, build
from isonomy.data.tables import files
from isonomy.data.tables import preprocessing as prepared
from isonomy.data.tables.columns import Table
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError, DataError, RunError, unknown
from isonomy.experiments.folder import RunFolder, decode
from isonomy.experiments.schema import Config, Model
from isonomy.models import make_task
from isonomy.task import Task

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model and the state of the client that predicts with it."""

    algorithm: Algorithm
    task: Task
    server: Any
    state: State
    labels: tuple[str, ...] = ()
    preprocessing: prepared.Preprocessing | None = None

    def outputs(self, x: Tensor) -> Tensor:
        """The client's raw outputs [n, o]: logits, margins or numbers."""
        with torch.no_grad():
            return self.algorithm.predict(self.task, self.server, self.state, x)

    def predict(self, x: Tensor) -> Tensor:
        """The predicted class of every row, or the predicted number."""
        outputs = self.outputs(x)
        return self.task.decide(outputs) if self.task.classes else outputs.squeeze(-1)

    def probabilities(self, x: Tensor) -> Tensor | None:
        """The probability of each class [n, classes]; None where the loss knows none."""
        outputs = self.outputs(x)
        if self.task.loss_name == "cross_entropy":
            return outputs.softmax(-1)
        if self.task.loss_name == "logistic":
            return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], -1)
        return None


def predictor(
    folder: str | Path,
    client: str | int | None = None,
    examples: Examples | str | Path | None = None,
) -> Predictor:
    """The predictor of a run's client, by name or number, or of a new one.

    A new client's `examples` are (x, y), or a table with labels if the run was made from tables.
    """
    place = RunFolder(folder)
    config = place.config()
    if not place.complete:
        raise RunError(f"'{folder}' is unfinished; go on with `isonomy resume {folder}` first.")
    if place.withheld:
        raise RunError(
            f"'{folder}' has no model: the verdict on it is null (see verdict.json); to have it "
            f"anyway, `isonomy resume {folder} --keep`."
        )
    card, model = _stored(place)
    task = _task(config, card)
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    file = place.path / "model" / "preprocessing.json"
    preparation = prepared.load(file) if file.exists() else None
    if client is not None:
        names = card["clients"]
        at = client if isinstance(client, int) else _position(names, client)
        if not 0 <= at < len(names):
            raise ConfigError(f"client {at} of {len(names)}; give 0 to {len(names) - 1}.")
        state = tree.take(model["clients"], at)
    else:
        given = rows(preparation, examples) if isinstance(examples, str | Path) else examples
        state = joined(algorithm, task, model["server"], config, given)
    return Predictor(algorithm, task, model["server"], state, tuple(card["labels"]), preparation)


def joined(
    algorithm: Algorithm, task: Task, server: Any, config: Config, examples: Examples | None
) -> State:
    """The state of a client that was never in training, from its own labelled examples."""
    initial = algorithm.init_client(task, task.init(config.seed))
    if not tree.leaves(initial):
        return initial  # all that is needed is the server's
    name = config.algorithm.name
    if type(algorithm).adapt is Algorithm.adapt:
        raise RunError(
            f"'{name}' has no model for a client that was not in training; name one that was."
        )
    if examples is None:
        raise RunError(
            f"with '{name}' a new client needs some labelled examples of its own; give them, or "
            "name a client that was in training."
        )
    engine = Loop(task, _alone(*examples, classes=task.classes), seed=config.seed)
    engine.reset(initial)
    cohort = engine.cohort(engine.everyone(), work=config.local.work(), round=config.rounds)
    cohort.gather(algorithm.adapt, {"model": server})
    return tree.take(engine.states.stacked, 0)


def rows(preparation: prepared.Preprocessing | None, path: str | Path) -> Examples:
    """A table's features, and its labels where it has them; rows without a label are left out."""
    x, table = features(preparation, path)
    assert preparation is not None  # `features` has refused it
    label = preparation.table.label.name
    if label not in table.columns:
        raise DataError(f"{path} has no column '{label}'; a new client's examples need labels.")
    target, known = preparation.table.target(table)
    at = torch.from_numpy(np.flatnonzero(known))
    if not len(at):
        raise DataError(f"no row of {path} has a label in '{label}'; give some that do.")
    return x[at], torch.from_numpy(target)[at]


def features(preparation: prepared.Preprocessing | None, path: str | Path) -> tuple[Tensor, Table]:
    """A table's features, made as the run made them, and the table itself."""
    if preparation is None:
        raise RunError(
            "this run was not made from tables, so it cannot read one; predict from Python with "
            "isonomy.predictor(RUN).predict(x)."
        )
    found, several = files.find(path)
    if several:
        raise DataError(f"'{path}' is a folder; give one table.")
    table = files.read(found[0], preparation.table.missing)
    return torch.from_numpy(preparation.transform(table)), table


def _stored(place: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's card and its tensors."""
    folder = place.path / "model"
    try:
        card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        return card, decode((folder / "model.safetensors").read_bytes(), card["shapes"])
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"the model in '{folder}' cannot be read ({error}); run it again.") from None


def _task(config: Config, card: dict[str, Any]) -> Task:
    """The run's task, from what its card says of the data: no example is needed."""
    x = torch.zeros(2, *card["inputs"])
    model: Model = config.model
    like = _alone(x, torch.zeros(2), classes=card["classes"])
    return make_task(model.name, like, model.options, loss=card["loss"], convert=model.convert)


def _alone(x: Tensor, y: Tensor, *, classes: int) -> Federation:
    """A federation of one client with these examples."""
    y = y.to(torch.int64 if classes else torch.float32)
    parts = {"train": [torch.arange(len(y))]}
    none = torch.zeros(len(y), 0, dtype=torch.int64)
    return build(x, y, none, parts, classes=classes, source="a new client")  # type: ignore[arg-type]


def _position(names: list[str], name: str) -> int:
    if name not in names:
        raise RunError(unknown("client", name, names))
    return names.index(name)
