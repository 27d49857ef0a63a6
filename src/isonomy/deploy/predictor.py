"""A finished run's model as one client uses it: a client of the run, or a new one.

A new client first does what its method asks of clients that were never in training
(`Algorithm.adapt`), on some labelled examples of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from isonomy import algorithms
from isonomy.config.schema import Config, Model
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import Adapts, LearnsFront, objectives
from isonomy.core.client import State
from isonomy.core.examples import Attribute
from isonomy.core.mixture import Mixture, outputs
from isonomy.core.task import Params, Task
from isonomy.data import preparation as preparations
from isonomy.data.federation import Federation, build
from isonomy.data.tables.columns import Table
from isonomy.data.tables.preprocessing import Preprocessing
from isonomy.deploy.network import probabilities
from isonomy.deploy.rows import prepared, read
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError, DataError, RunError, unknown
from isonomy.models import make_task
from isonomy.runs.folder import RunFolder, decode

if TYPE_CHECKING:
    from isonomy.data.preparation import Preparation

Examples = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""A new client's features, labels and, for a method that trades fairness, groups [n, A]."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model and the state of the client that predicts with it."""

    algorithm: Algorithm
    task: Task
    server: Any
    state: State
    labels: tuple[str, ...] = ()
    preprocessing: Preparation | None = None
    preference: tuple[float, ...] = ()  # of a method that learns a front; its own choice if empty

    def weights(self) -> Params | Mixture:
        """The one model that this client uses."""
        algorithm, task = self.algorithm, self.task
        if isinstance(algorithm, LearnsFront):
            ray = torch.tensor(self.chosen)
            return algorithm.at(task, self.server, self.state, ray / ray.sum())
        kind = type(algorithm)
        if kind.predict is not Algorithm.predict and kind.model is Algorithm.model:
            raise RunError(
                f"'{algorithm.name}' predicts in a way of its own (`predict`) and says by no "
                "`model` which model that is; write one for it."
            )
        return algorithm.model(task, self.server, self.state)

    @property
    def chosen(self) -> tuple[float, ...]:
        """The preference of a method that learns a front: as asked for, else the method's own."""
        count = len(objectives(self.algorithm))
        own = tuple(getattr(self.algorithm, "preference", ()))
        return self.preference or own or (1 / count,) * count

    def outputs(self, x: Tensor) -> Tensor:
        """The client's raw outputs [n, o]: logits, margins or numbers."""
        with torch.no_grad():
            if self.preference:
                return outputs(self.task, self.weights(), x)
            return self.algorithm.predict(self.task, self.server, self.state, x)

    def predict(self, x: Tensor) -> Tensor:
        """The predicted class of every row, or the predicted number."""
        outputs = self.outputs(x)
        return self.task.decide(outputs) if self.task.classes else outputs.squeeze(-1)

    def probabilities(self, x: Tensor) -> Tensor | None:
        """The probability of each class [n, classes]; None where the loss knows none."""
        return probabilities(self.task.loss_name, self.outputs(x))


def predictor(
    folder: str | Path,
    client: str | int | None = None,
    examples: Examples | str | Path | None = None,
    preference: Sequence[float] = (),
) -> Predictor:
    """The predictor of a run's client, by name or number, or of a new one.

    With neither client nor examples, a method that has a front for all clients together predicts
    with that. `preference` chooses on a front.

    A new client's `examples` are (x, y), or (x, y, groups) for a method that learns a front, or a
    table with labels if the run was made from tables.
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
    preparation = preparations.load(file) if file.exists() else None
    if client is not None:
        state = tree.take(model["clients"], _position(card["clients"], client))
    elif examples is None and not algorithm.personal(model["server"]):
        state = None if isinstance(algorithm, LearnsFront) else ()
    else:
        given = rows(preparation, examples) if isinstance(examples, str | Path) else examples
        state = joined(algorithm, task, model["server"], config, given)
    labels, chosen = tuple(card["labels"]), tuple(float(v) for v in preference)
    weighed = objectives(algorithm)
    if chosen and (len(chosen) != len(weighed) or min(chosen) < 0 or not sum(chosen)):
        known = ", ".join(weighed)
        what = f"one number for each of {known}" if known else "none: the run learnt one model"
        raise ConfigError(f"preference {list(chosen)}: give {what}.")
    return Predictor(algorithm, task, model["server"], state, labels, preparation, chosen)


def joined(
    algorithm: Algorithm, task: Task, server: Any, config: Config, examples: Examples | None
) -> State:
    """The state of a client that was never in training, from its own labelled examples."""
    initial = algorithm.init_client(task, task.init(config.seed))
    if not tree.leaves(initial):
        return initial  # all that is needed is the server's
    name = config.algorithm.name
    if not isinstance(algorithm, Adapts):
        raise RunError(
            f"'{name}' has no model for a client that was not in training; name one that was."
        )
    if examples is None:
        raise RunError(
            f"with '{name}' a new client needs some labelled examples of its own; give them, or "
            "name a client that was in training."
        )
    groups = examples[2] if len(examples) > 2 else None
    front = isinstance(algorithm, LearnsFront)
    if front and (groups is None or groups.shape[1] != len(task.levels)):
        raise RunError(
            f"with '{name}' a new client's examples need their groups; give (x, y, groups), with a "
            f"column for each of {', '.join(task.attributes)}, or a table that has these columns."
        )
    groups = groups if front else None
    named = zip(task.attributes, task.levels, strict=True) if groups is not None else ()
    attributes = {name: [str(level) for level in range(count)] for name, count in named}
    x, y = examples[:2]
    alone = _alone(x, y, groups, classes=task.classes, attributes=attributes)
    engine = Loop(task, alone, seed=config.seed)
    engine.reset(initial)
    cohort = engine.cohort(engine.everyone(), work=config.local.work(), round=config.rounds)
    cohort.gather(algorithm.adapt, {"model": server})
    return tree.take(engine.states.stacked, 0)


def rows(preparation: Preparation | None, path: str | Path) -> Examples:
    """A table's features, and its labels where it has them; rows without a label are left out."""
    x, table = features(preparation, path)
    assert isinstance(preparation, Preprocessing)  # `features` has refused others
    label = preparation.table.label.name
    if label not in table.columns:
        raise DataError(f"{path} has no column '{label}'; a new client's examples need labels.")
    target, known = preparation.table.target(table)
    at = torch.from_numpy(np.flatnonzero(known))
    if not len(at):
        raise DataError(f"no row of {path} has a label in '{label}'; give some that do.")
    kept = x[at], torch.from_numpy(target)[at]
    if not all(group.name in table.columns for group in preparation.table.groups):
        return kept
    return *kept, torch.from_numpy(preparation.table.group_codes(table))[at]


def features(preparation: Preparation | None, path: str | Path) -> tuple[Tensor, Table]:
    """A table's features, made as the run made them, and the table itself."""
    if not isinstance(preparation, Preprocessing):
        raise RunError(
            "this run was not made from tables, so it cannot read one; predict from Python with "
            "isonomy.predictor(RUN).predict(x)."
        )
    table = read(Path(path), preparation)
    return prepared(table, preparation).x, preparation.read(table)


def _stored(place: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's card and its tensors."""
    folder = place.path / "model"
    try:
        card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        content = (folder / "model.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != card["sha256"]:
            raise ValueError("its checksum does not match")
        return card, decode(content, card["shapes"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"the model in '{folder}' cannot be read ({error}); run it again.") from None


def _task(config: Config, card: dict[str, Any]) -> Task:
    """The run's task, from what its card says of the data: no example is needed."""
    x = torch.zeros(2, *card["inputs"])
    model: Model = config.model
    attributes = card.get("attributes", {})
    none = torch.zeros(2, len(attributes), dtype=torch.int64)
    like = _alone(x, torch.zeros(2), none, classes=card["classes"], attributes=attributes)
    return make_task(model.name, like, model.options, loss=card["loss"], convert=model.convert)


def _alone(
    x: Tensor,
    y: Tensor,
    groups: Tensor | None = None,
    *,
    classes: int,
    attributes: Mapping[str, Sequence[str]] | None = None,
) -> Federation:
    """A federation of one client with these examples."""
    y = y.to(torch.int64 if classes else torch.float32)
    return build(
        x,
        y,
        torch.zeros(len(y), 0, dtype=torch.int64) if groups is None else groups,
        {"train": [torch.arange(len(y))]},
        classes=classes,
        attributes=tuple(Attribute(k, tuple(v)) for k, v in (attributes or {}).items()),
        source="a new client",
    )


def _position(names: list[str], client: str | int) -> int:
    """Which client is meant: by its name, else by its number."""
    if client in names:
        return names.index(str(client))
    if isinstance(client, str) and not client.isdecimal():
        raise RunError(unknown("client", client, names))
    if not 0 <= int(client) < len(names):
        raise ConfigError(f"client {client} of {len(names)}; give 0 to {len(names) - 1}.")
    return int(client)
