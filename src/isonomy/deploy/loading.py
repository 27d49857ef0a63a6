"""Load the model of a finished run, as one client uses it: for predictions and for export."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from isonomy import algorithms
from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront, objectives
from isonomy.core.client import State
from isonomy.core.mixture import Mixture
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.data import preparation as preparations
from isonomy.deploy.new_client import Examples, labelled_rows, misfit, state_of_new_client
from isonomy.errors import ConfigError, RunError, unknown
from isonomy.models import make_task
from isonomy.runs.folder import RunFolder
from isonomy.runs.saved_model import ModelCard

if TYPE_CHECKING:
    from isonomy.data.preparation import Preparation


@dataclass(frozen=True, eq=False)
class ClientModel:
    """A run's model as one client uses it: what the server deploys, and the client's own state.

    `client` is the client's name, and None for a new client or for the model of all clients.
    `preference` is the point on the front that was asked for, and empty if none was.
    """

    config: Config
    card: ModelCard
    algorithm: Algorithm
    task: Task
    server: Tree
    state: State
    client: str | None = None
    preparation: Preparation | None = None
    preference: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()  # about a new client

    @property
    def chosen_preference(self) -> tuple[float, ...]:
        """For a method that learns a front: the preference asked for, or the method's default."""
        count = len(objectives(self.algorithm))
        default = tuple(getattr(self.algorithm, "preference", ()))
        return self.preference or default or (1 / count,) * count

    @property
    def row_preparation(self) -> Preparation | None:
        """How rows become features; columns of named features are used as they are."""
        card = self.card
        if self.preparation is None and card.inputs == [len(card.features)]:
            return preparations.named(card.features, "label", card.labels)
        return self.preparation

    def weights(self) -> Params | Mixture:
        """The parameters of the one model, or mixture of models, that this client uses."""
        algorithm, task = self.algorithm, self.task
        if isinstance(algorithm, LearnsFront):
            ray = torch.tensor(self.chosen_preference)
            return algorithm.at(task, self.server, self.state, ray / ray.sum())
        kind = type(algorithm)
        if kind.predict is not Algorithm.predict and kind.model is Algorithm.model:
            raise RunError(
                f"'{algorithm.name}' overrides `predict` but not `model`, so its model is unknown; "
                "add a method `model` that returns the parameters."
            )
        return algorithm.model(task, self.server, self.state)


def load(
    folder: str | Path,
    client: str | int | None = None,
    examples: Examples | str | Path | None = None,
    preference: Sequence[float] = (),
    steps: int = 1,
) -> ClientModel:
    """The model of a finished run, for one of its clients, a new client, or all clients.

    Args:
        folder: The run's folder.
        client: A client of the run, by name or number. Without it, and without `examples`, the
            model is the one that all clients share.
        examples: A new client's labelled examples: (x, y), or (x, y, groups) for a method that
            learns a front, or the path of a table if the run was made from tables.
        preference: The point on the front, for a method that learns one.
        steps: How often a new client's step is repeated, such as FOCUS' E step.
    """
    place = RunFolder(folder)
    config = place.config()
    saved = place.model()
    card, kept = saved.card, saved.preprocessing
    model = config.model
    task = make_task(model.name, card.shape, model.options, loss=card.loss, convert=model.convert)
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    try:
        preparation = preparations.of(kept) if kept is not None else None
    except ValueError:
        raise RunError(
            f"the preprocessing in '{place.path}' is damaged; start the run again with --overwrite."
        ) from None
    name, warned = None, ""
    state: State
    if client is not None:
        at = client_number(card.clients, client)
        name, state = card.clients[at], tree.take(saved.clients, at)
    elif examples is None and not algorithm.personal(saved.server):
        state = None if isinstance(algorithm, LearnsFront) else ()
    else:
        own = labelled_rows(preparation, examples) if isinstance(examples, str | Path) else examples
        state = state_of_new_client(algorithm, task, saved.server, config, own, steps)
        table = place.clients()
        if own is not None and table is not None:
            warned = misfit(algorithm, task, saved.server, state, own, table.to_pydict())
    chosen = checked_preference(preference, objectives(algorithm))
    about = (warned,) if warned else ()
    return ClientModel(
        config, card, algorithm, task, saved.server, state, name, preparation, chosen, about
    )


def client_number(names: Sequence[str], client: str | int) -> int:
    """The number of a client that is given by its name or its number."""
    if client in names:
        return names.index(str(client))
    if isinstance(client, str) and not client.isdecimal():
        raise RunError(unknown("client", client, names))
    if not 0 <= int(client) < len(names):
        raise ConfigError(f"there is no client {client}; give 0 to {len(names) - 1}.")
    return int(client)


def checked_preference(preference: Sequence[float], weighed: Sequence[str]) -> tuple[float, ...]:
    """A preference with one number for each objective; the numbers sum to 1 but for rounding."""
    given = tuple(float(v) for v in preference)
    if not given:
        return ()
    text = ",".join(f"{v:g}" for v in given)
    if len(given) != len(weighed):
        known = ", ".join(weighed)
        what = f"one number for each of {known}" if known else "none: the run learnt one model"
        raise ConfigError(f"preference {text}: give {what}.")
    if not all(math.isfinite(v) and v >= 0 for v in given):
        raise ConfigError(f"preference {text}: give numbers of at least 0 that sum to 1.")
    total = sum(given)
    if abs(total - 1) > 2e-3:
        example = ",".join(f"{v / total:.3g}" for v in given) if total else "0.7,0.3"
        raise ConfigError(f"preference {text} sums to {total:g}, not 1; give e.g. {example}.")
    return tuple(v / total for v in given)
