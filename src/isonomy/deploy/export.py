"""Export one model of a finished run: choose it, describe it in a card, measure it, write it.

The metrics on the card are those of the exported model: it is measured again on the run's data, if
they are still available; otherwise the card has the run's own metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy import algorithms
from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.capabilities import objectives as objectives_of
from isonomy.core.mixture import Mixture
from isonomy.core.options import check
from isonomy.core.task import Params, Task
from isonomy.data.datasets import DATASETS
from isonomy.data.download import fetch
from isonomy.deploy import network
from isonomy.deploy.card import Architecture, Card, Data, MeasuredBound, Origin
from isonomy.deploy.folder import GRAPHS, check_target, save
from isonomy.deploy.loading import ClientModel, load, require_own_decisions, rule_notes
from isonomy.deploy.measure import measured
from isonomy.deploy.model import Model, task_of
from isonomy.errors import ConfigError, RunError, unknown
from isonomy.metrics.bounds import LEVEL
from isonomy.models import MODELS
from isonomy.report.front_choice import Bound
from isonomy.runs.folder import RunFolder
from isonomy.runs.saved_model import ModelCard

LISTED = 12  # clients that a message lists


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported model: its folder and its card."""

    path: Path
    card: Card


def export(
    folder: str | Path,
    to: str | Path,
    *,
    client: str | int | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    force: bool = False,
    constant: bool = False,
    also: Sequence[str] = (),
    overwrite: bool = False,
) -> Exported:
    """Write one model of a finished run to a folder.

    Args:
        folder: The run's folder.
        to: The folder to write.
        client: The client whose model it is, for a method with one model per client.
        preference: The point on the front, for a method that learns one. If it is dominated on
            validation examples, the nearest one that is not is exported, with a note.
        limits: Upper bounds such as {"dp": 0.05}, instead of a preference: the model of least
            error that is within them with a margin.
        force: Whether to take a preference that is dominated, or a bound without its margin.
        constant: Whether the model may be a constant prediction, if nothing else is offered.
        also: Graphs to write beside the weights: "pt2" (torch.export) and "onnx".
        overwrite: Whether a model in the folder `to` is replaced.
    """
    target = Path(to).expanduser()
    for name in also:
        if name not in GRAPHS:
            raise ConfigError(unknown("format", name, GRAPHS))
        if name == "onnx":
            network.need_onnx()  # before any work
    check_target(target, overwrite)
    place = RunFolder(folder)
    require_own_decisions(place.path, place.config())
    if client is None:
        _require_shared_model(place)
    loaded = load(
        folder, client, preference=preference, limits=limits, force=force, constant=constant
    )
    if loaded.rule is not None and also:
        raise RunError(
            f"a graph ({', '.join(also)}) gives probabilities and cannot hold the rule "
            f"'{loaded.rule.about.method}' by which this model decides; leave --{also[0]} out."
        )
    model = measured(place, loaded, _model(place, loaded, limits))
    return Exported(target, save(model, target, also))


# --- the choice of the model -----------------------------------------------------------------


def _require_shared_model(place: RunFolder) -> None:
    """Raise a RunError if the run has a model per client, so that one has to be chosen."""
    config, saved = place.config(), place.model()
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    if algorithm.personal(saved.server):
        raise _needs_client(saved.card.algorithm, saved.card.clients)


def _needs_client(algorithm: Mapping[str, Any], names: Sequence[str]) -> RunError:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return RunError(
        f"'{algorithm['name']}' trains one model for every client and none that all share; choose "
        f"a client with --client: {', '.join(names[:LISTED])}{more}."
    )


# --- the model and its card ------------------------------------------------------------------


def _model(place: RunFolder, loaded: ClientModel, limits: Mapping[str, float] | None) -> Model:
    """The model with its card, not measured yet."""
    weights = _with_buffers(loaded.weights(), loaded.task)
    card = _card(place, loaded, weights, limits)
    return Model(card, task_of(card.architecture, trust=True), weights)  # `load` ran its code


def _with_buffers(weights: Params | Mixture, task: Task) -> Params | Mixture:
    """The weights and the network's buffers; members of a mixture whose share is 0 are left out."""
    buffers = {k: v.detach() for k, v in task.net.named_buffers()}
    if not isinstance(weights, Mixture):
        return {**weights, **buffers}
    keep = (weights.share > 0).nonzero().squeeze(-1)
    stacked = {k: v.expand(len(keep), *v.shape) for k, v in buffers.items()}
    return Mixture({**tree.take(weights.models, keep), **stacked}, weights.share[keep])


def _card(
    place: RunFolder,
    loaded: ClientModel,
    weights: Params | Mixture,
    limits: Mapping[str, float] | None,
) -> Card:
    config, card = loaded.config, loaded.card
    objectives, choice = objectives_of(loaded.algorithm), loaded.choice
    chosen = constant = None
    if choice is not None and choice.constant:
        top = choice.constant.index(max(choice.constant))
        constant = card.labels[top] if card.labels else str(top)
    elif choice is not None:
        chosen = dict(zip(objectives, choice.preference, strict=True))
    verdict = place.verdict()
    preparation = loaded.row_preparation
    return Card(
        architecture=_architecture(config, loaded.task, card, weights),
        labels=tuple(card.labels),
        attributes={k: tuple(v) for k, v in card.attributes.items()},
        features=tuple(card.features),
        preprocessing=None if preparation is None else preparation.model_dump(mode="json"),
        origin=Origin(
            algorithm=config.algorithm.name,
            options=config.algorithm.options,
            defence=config.defence.name,
            attack=config.attack.name,
            round=len(place.lines("rounds.jsonl")) or config.rounds,
            seed=config.seed,
            clients=len(card.clients),
            client=loaded.client,
            preference=chosen,
            limits=dict(limits) if limits else None,
            constant=constant,
            choice=() if choice is None else choice.notes,
            verdict=None if verdict is None else f"{verdict['status']}: {verdict['text']}",
            versions=config.versions,
        ),
        data=_data(config, card),
        measured=(),
        rule=None if loaded.rule is None else loaded.rule.plain(),
        notes=rule_notes(loaded.rule, loaded.client),
        bounds=() if choice is None else tuple(_bound(one) for one in choice.bounds),
    )


def _bound(one: Bound) -> MeasuredBound:
    return MeasuredBound(**vars(one), level=LEVEL, held=one.held, text=one.text())


def _architecture(
    config: Config, task: Task, card: ModelCard, weights: Params | Mixture
) -> Architecture:
    name, options = config.model.name, config.model.options
    if name in MODELS:
        complete = check("model", name, MODELS[name].options, options)
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in complete.items()}
    return Architecture(
        name=name,
        options=options,
        convert=config.model.convert,
        inputs=tuple(card.inputs),
        outputs=card.classes if task.loss_name == "cross_entropy" else 1,
        classes=card.classes,
        loss=task.loss_name,
        parameters=sum(p.numel() for p in task.net.parameters()),
        shares=tuple(weights.share.tolist()) if isinstance(weights, Mixture) else (),
    )


def _data(config: Config, card: ModelCard) -> Data:
    data = config.data
    partition = {"name": data.partition} if isinstance(data.partition, str) else data.partition
    options = {k: Path(v).name if k == "path" else v for k, v in data.options.items()}
    known = DATASETS.get(data.name)
    cache = fetch.folder()
    files: dict[str, str] = {}
    if known is not None and not data.options.get("path"):
        for choice in known.files:
            if not files and all((cache / file.name).is_file() for file in choice):
                files = {file.name: file.sha256 for file in choice}
    return Data(
        name=data.name,
        source=card.data,
        options=options,
        partition=dict(partition or (known.partition if known is not None else {})),
        seed=config.seed if data.seed is None else data.seed,
        sizes=card.splits,
        files=files,
    )
