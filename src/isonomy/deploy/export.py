"""From a run to a model outside of it: one chosen model, its card, and its figures.

The figures are those of this very model: it is measured again on the run's data, if they can be
had, else they are the run's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.capabilities import objectives as objectives_of
from isonomy.core.mixture import Mixture
from isonomy.core.options import check
from isonomy.core.task import Params, Task
from isonomy.data.datasets import DATASETS
from isonomy.data.download import fetch
from isonomy.data.preparation import named
from isonomy.deploy import network
from isonomy.deploy.card import Architecture, Card, Data, Origin
from isonomy.deploy.folder import GRAPHS, free, save
from isonomy.deploy.measure import measured
from isonomy.deploy.model import Model
from isonomy.deploy.predictor import Examples, Predictor, predictor
from isonomy.errors import ConfigError, RunError, unknown
from isonomy.models import MODELS
from isonomy.report import front_choice
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import record

if TYPE_CHECKING:
    from isonomy.runs.record import Record

NAMED = 12  # clients that a sentence lists


@dataclass(frozen=True, eq=False)
class Exported:
    """A model that was written: where, its card, and what is to be said."""

    path: Path
    card: Card


def export(
    folder: str | Path,
    to: str | Path,
    *,
    client: str | int | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    also: Sequence[str] = (),
    overwrite: bool = False,
) -> Exported:
    """Write the one chosen model of a finished run to a folder.

    `preference` chooses on a front, `limits` (such as {"dp": 0.05}) have it chosen. `also` names
    graphs to write beside the weights: "pt2" (torch.export) and "onnx".
    """
    target = Path(to).expanduser()
    for name in also:
        if name not in GRAPHS:
            raise ConfigError(unknown("form of a model", name, GRAPHS))
        if name == "onnx":
            network.need_onnx()  # before any work
    free(target, overwrite)
    made = model_of(folder, client, preference, limits)
    return Exported(target, save(made, target, also))


def model_of(
    folder: str | Path,
    client: str | int | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    examples: Examples | str | Path | None = None,
    *,
    measure: bool = True,
) -> Model:
    """The one chosen model of a run, in memory; `examples` are a new client's.

    To be measured it has to be a model of the run: of one of its clients, or of all.
    """
    place = RunFolder(folder)
    if preference and limits:
        raise ConfigError("a preference and a limit are both given; give one of them.")
    preference = shares(preference)
    if limits:
        preference = _within(record(place), limits, client)
    if measure:
        _needs_client(place, client)
    found = predictor(place.path, client, examples, preference)
    weights = _whole(found.weights(), found.task)
    card = _card(place, found, weights, client, limits)
    task = network.task_of(card.architecture, trust=True)  # it ran here already
    made = Model(card, task, weights)
    return measured(place, found, made, client) if measure else made


# --- which model -----------------------------------------------------------------------------


def shares(preference: Sequence[float]) -> tuple[float, ...]:
    """A preference whose parts add up to 1, as they have to but for rounding."""
    given = tuple(float(v) for v in preference)
    if not given:
        return ()
    total = sum(given)
    text = ",".join(f"{v:g}" for v in given)
    if not all(math.isfinite(v) and v >= 0 for v in given):
        raise ConfigError(f"preference {text}: give numbers of at least 0 that sum to 1.")
    if abs(total - 1) > 2e-3:
        try_ = ",".join(f"{v / total:.3g}" for v in given) if total else "0.7,0.3"
        raise ConfigError(f"preference {text} sums to {total:g}, not 1; give e.g. {try_}.")
    return tuple(v / total for v in given)


def _within(
    made: Record, limits: Mapping[str, float], client: str | int | None
) -> tuple[float, ...]:
    """The preference of least error that keeps to the limits."""
    if not made.complete:
        raise RunError("the run is unfinished, so there is nothing to choose; resume it first.")
    if "preference.0" not in made.front:
        raise RunError(
            "this run's method learnt one model, not a front, so no bound can choose; leave the "
            "bound out to export that model."
        )
    names = [str(n) for n in made.clients.get("name", [])]
    ids = [int(k) for k in made.clients.get("client", [])]
    known = dict(zip(names, ids, strict=True))
    at = front_choice.TOGETHER
    if client is not None:
        wanted = str(client)
        if wanted not in known and not (wanted.isdecimal() and int(wanted) in ids):
            raise RunError(unknown("client", wanted, known))
        at = known.get(wanted, int(wanted) if wanted.isdecimal() else 0)
    elif front_choice.TOGETHER not in front_choice.parts(made.front):
        raise RunError(f"{_own(made.config['algorithm'])}; {_which(list(known))}.")
    found = front_choice.choose(made.front, limits, at)
    if found is None:
        said = " and ".join(f"{k} at most {v:g}" for k, v in limits.items())
        split = "validation" if "validation" in front_choice.splits(made.front) else None
        points = front_choice.parts(made.front, split)[at].points
        least = front_choice.coordinates(made.front)
        lows = ", ".join(f"{n} {v:.3g}" for n, v in zip(least, points.min(0), strict=True))
        raise RunError(
            f"no preference keeps to {said} on validation examples (the least of each is {lows}); "
            "raise the bound."
        )
    return found.preference


def _needs_client(place: RunFolder, client: str | int | None) -> None:
    """Refuse to choose for the user whose model it is."""
    if client is None and place.complete and not place.withheld:
        card = json.loads((place.path / "model" / "model.json").read_text(encoding="utf-8"))
        first = predictor(place.path, 0)
        if first.algorithm.personal(first.server):
            raise RunError(f"{_own(card['algorithm'])}; {_which(list(card['clients']))}.")


def _own(algorithm: Mapping[str, Any]) -> str:
    return (
        f"with '{algorithm['name']}' every client has a model of its own and there is none of all"
    )


def _which(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"name one with --client: {', '.join(names[:NAMED])}{more}"


def _whole(weights: Params | Mixture, task: Task) -> Params | Mixture:
    """A model with the network's buffers; a mixture without members that have no share in it."""
    buffers = {k: v.detach() for k, v in task.net.named_buffers()}
    if not isinstance(weights, Mixture):
        return {**weights, **buffers}
    keep = (weights.share > 0).nonzero().squeeze(-1)
    stacked = {k: v.expand(len(keep), *v.shape) for k, v in buffers.items()}
    return Mixture({**tree.take(weights.models, keep), **stacked}, weights.share[keep])


# --- its card --------------------------------------------------------------------------------


def _card(
    place: RunFolder,
    found: Predictor,
    weights: Any,
    client: str | int | None,
    limits: Mapping[str, float] | None,
) -> Card:
    config = place.config()
    stored = json.loads((place.path / "model" / "model.json").read_text(encoding="utf-8"))
    objectives = objectives_of(found.algorithm)
    chosen = dict(zip(objectives, found.chosen, strict=True)) if objectives else None
    verdict = place.verdict()
    names = stored["clients"]
    kept = found.preprocessing
    if (
        kept is None
        and len(stored["inputs"]) == 1
        and len(stored["features"]) == stored["inputs"][0]
    ):
        kept = named(stored["features"], "label", stored["labels"])
    who = None
    if client is not None:
        who = str(client) if client in names else names[int(client)]
    return Card(
        architecture=_architecture(config, found.task, stored, weights),
        labels=tuple(stored["labels"]),
        attributes={k: tuple(v) for k, v in stored.get("attributes", {}).items()},
        features=tuple(stored["features"]),
        preprocessing=None if kept is None else kept.model_dump(mode="json"),
        origin=Origin(
            algorithm=config.algorithm.name,
            options=config.algorithm.options,
            defence=config.defence.name,
            attack=config.attack.name,
            round=config.rounds,
            seed=config.seed,
            clients=len(names),
            client=who,
            preference=chosen,
            limits=dict(limits) if limits else None,
            verdict=None if verdict is None else f"{verdict['status']}: {verdict['text']}",
            versions=config.versions,
        ),
        data=_data(config, stored),
        measured=(),
    )


def _architecture(config: Config, task: Task, stored: dict[str, Any], weights: Any) -> Architecture:
    name, entry = config.model.name, MODELS.get(config.model.name)
    given = config.model.options
    one = dict(task.net.named_parameters())
    return Architecture(
        name=name,
        options=given if entry is None else _plain(check("model", name, entry.options, given)),
        convert=config.model.convert,
        inputs=tuple(stored["inputs"]),
        outputs=stored["classes"] if task.loss_name == "cross_entropy" else 1,
        classes=stored["classes"],
        loss=task.loss_name,
        parameters=sum(p.numel() for p in one.values()),
        shares=tuple(weights.share.tolist()) if isinstance(weights, Mixture) else (),
    )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}


def _data(config: Config, stored: dict[str, Any]) -> Data:
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
        source=stored["data"],
        options=options,
        partition=dict(partition or (known.partition if known is not None else {})),
        seed=config.seed if data.seed is None else data.seed,
        sizes=stored.get("splits", {}),
        files=files,
    )
