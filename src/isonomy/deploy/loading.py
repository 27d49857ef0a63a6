"""Load the model of a finished run, as one client uses it: for predictions and for export."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from isonomy import algorithms
from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront, objectives
from isonomy.core.client import State
from isonomy.core.mixture import Mixture
from isonomy.core.preference import ray_of
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.data import preparation as preparations
from isonomy.deploy.new_client import Examples, labelled_rows, misfit, state_of_new_client
from isonomy.errors import ConfigError, RunError, unknown
from isonomy.models import make_task
from isonomy.models.hypernet import head_of
from isonomy.postprocess import Rule
from isonomy.report.front_choice import Choice, choose
from isonomy.report.front_parts import TOGETHER, parts, splits
from isonomy.runs.folder import MALFORMED, RunFolder
from isonomy.runs.saved_model import ModelCard

if TYPE_CHECKING:
    from isonomy.data.preparation import Preparation


@dataclass(frozen=True, eq=False)
class ClientModel:
    """A run's model as one client uses it: what the server deploys, and the client's own state.

    `client` is the client's name, and None for a new client or for the model of all clients.
    `choice` is the model on the front, for a method that learns one.
    """

    config: Config
    card: ModelCard
    algorithm: Algorithm
    task: Task
    server: Tree
    state: State
    client: str | None = None
    preparation: Preparation | None = None
    choice: Choice | None = None
    warnings: tuple[str, ...] = ()  # about a new client
    rule: Rule | None = None  # of decisions, of this client alone

    @property
    def notes(self) -> tuple[str, ...]:
        """Why it is this model of a front, whether it is within its bounds, how it decides."""
        if self.choice is None:
            return rule_notes(self.rule, self.client)
        return (*self.choice.notes, *(bound.text() for bound in self.choice.bounds))

    @property
    def row_preparation(self) -> Preparation | None:
        """How rows become features; columns of named features are used as they are."""
        card = self.card
        if self.preparation is None and card.inputs == [len(card.features)]:
            return preparations.named(card.features, "label", card.labels)
        return self.preparation

    def weights(self) -> Params | Mixture:
        """The parameters of the one model, or mixture of models, that this client uses."""
        algorithm, task, choice = self.algorithm, self.task, self.choice
        if isinstance(algorithm, LearnsFront) and choice is not None:
            count = len(algorithm.objectives)
            ray = ray_of(torch.tensor(choice.preference or (1 / count,) * count))
            params = algorithm.at(task, self.server, self.state, ray)
            return _constant(task, params, choice.constant) if choice.constant else params
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
    limits: Mapping[str, float] | None = None,
    *,
    force: bool = False,
    constant: bool = False,
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
        limits: Upper bounds such as {"dp": 0.05}, instead of a preference.
        force: Whether to take a preference that is dominated, or a bound without its margin.
        constant: Whether the model may be a constant prediction.
        steps: How often a new client's step is repeated, such as FOCUS' E step.
    """
    place = RunFolder(folder)
    if preference and limits:
        raise ConfigError("a preference and a limit are both given; give only one of them.")
    config = place.config()
    require_own_decisions(place.path, config)
    saved = place.model()
    card, kept = saved.card, saved.preprocessing
    model = config.model
    task = make_task(model.name, card.shape, model.options, loss=card.loss, convert=model.convert)
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    try:
        preparation = preparations.of(kept) if kept is not None else None
    except MALFORMED:
        raise RunError(
            f"the preprocessing in '{place.path}' is damaged; start the run again with --overwrite."
        ) from None
    name, at, warned = None, TOGETHER, ""
    state: State
    if client is not None:
        at = client_number(card.clients, client)
        name, state = card.clients[at], saved.state(at)
    elif examples is None and not algorithm.personal(saved.server):
        state = None if isinstance(algorithm, LearnsFront) else ()
    else:
        own = labelled_rows(preparation, examples) if isinstance(examples, str | Path) else examples
        state = state_of_new_client(algorithm, task, saved.server, config, own, steps)
        table = place.clients()
        if own is not None and table is not None:
            warned = misfit(algorithm, task, saved.server, state, own, table.listed())
    wanted = checked_preference(preference, objectives(algorithm))
    if not isinstance(algorithm, LearnsFront):
        if limits:
            raise RunError(
                "this run's method learnt one model, not a front, so a limit cannot choose one; "
                "leave the limit out to use that model."
            )
        choice = None
    elif examples is not None:
        if limits:
            raise ConfigError(
                "a new client has no validation examples, so a limit cannot be checked; give a "
                "preference."
            )
        choice = _of_new_client(algorithm, place, wanted)
    else:
        fixed = tuple(getattr(algorithm, "preference", ()))
        default = not wanted and not limits and bool(fixed)
        choice = _chosen(
            place,
            at,
            name or "",
            tuple(v / sum(fixed) for v in fixed) if default else wanted,
            limits,
            len(algorithm.objectives),
            force=force or default,
            constant=constant,
        )
    about = (warned,) if warned else ()
    rule = None if saved.rule is None else saved.rule.only(None if name is None else at)
    return ClientModel(
        config, card, algorithm, task, saved.server, state, name, preparation, choice, about, rule
    )


def rule_notes(rule: Rule | None, client: str | None) -> tuple[str, ...]:
    """What a user of a model with a rule of decisions has to know."""
    if rule is None:
        return ()
    whose = f"of client '{client}'" if client else "for a client that was not in training"
    return (
        f"decisions are those of the rule '{rule.about.method}' {whose}: they depend on the "
        f"group '{rule.about.attribute}' of a row and can differ from the most probable class.",
    )


def require_own_decisions(path: Path, config: Config) -> None:
    """Raise a RunError if the run counted other decisions than those that its model makes."""
    if config.evaluate.threshold is not None:
        raise RunError(
            f"'{path}' counted its decisions with evaluate.threshold = "
            f"{config.evaluate.threshold!r}, which predictions and exported models do not apply; "
            "run it without this key to use the model."
        )


def _chosen(
    place: RunFolder,
    client: int,
    who: str,
    preference: tuple[float, ...],
    limits: Mapping[str, float] | None,
    count: int,
    *,
    force: bool,
    constant: bool,
) -> Choice:
    """The model chosen on the front of the run; without a front, the preference as given."""
    columns = place.front()
    if columns:
        return choose(
            columns,
            client,
            who=who,
            preference=preference,
            limits=limits,
            force=force,
            constant=constant,
        )
    if limits:
        raise RunError(
            "this run measured no front (front.rays = 0), so a limit cannot choose on it; run it "
            "again with front.rays above 0."
        )
    note = "The run measured no front, so it is not known whether another model is better."
    return Choice(preference or (1 / count,) * count, "", (), (), notes=(note,))


def _of_new_client(
    algorithm: LearnsFront, place: RunFolder, preference: tuple[float, ...]
) -> Choice:
    """The preference that is given, that of the config, or the mean of the other clients'."""
    if preference:
        return Choice(preference, "", (), ())
    fixed = tuple(getattr(algorithm, "preference", ()))
    columns = place.front()
    if fixed or "validation" not in splits(columns):
        given = fixed or (1,) * len(algorithm.objectives)
        return Choice(tuple(v / sum(given) for v in given), "", (), ())
    each = [choose(columns, k).preference for k in parts(columns, "validation") if k != TOGETHER]
    mean = tuple(sum(shares) / len(each) for shares in zip(*each, strict=True))
    note = "No preference was given: this is the mean of the preferences of the run's clients."
    return Choice(mean, "", (), (), notes=(note,))


def _constant(task: Task, params: Params, shares: Sequence[float]) -> Params:
    """The parameters with a last layer that gives all rows the same shares of the classes."""
    head = head_of(task)
    return {
        **params,
        head.weight: torch.zeros_like(params[head.weight]),
        head.bias: torch.tensor(shares).log().to(params[head.bias].dtype),
    }


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
