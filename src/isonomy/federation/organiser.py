"""The organiser's half: wait for participants, fit the preparation, run, part."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isonomy import algorithms
from isonomy.config.schema import Config
from isonomy.core.examples import Attribute
from isonomy.data.federation import Federation
from isonomy.data.tables import fit
from isonomy.data.tables import preprocessing as prepared
from isonomy.data.tables.federate import ranges_of
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError, RunError
from isonomy.federation import charter as charters
from isonomy.federation.flower.engine import Flower
from isonomy.federation.flower.phase_runner import OfAlgorithm
from isonomy.federation.sessions import ByNode, Wire
from isonomy.models import make_task
from isonomy.runs import folder as folders
from isonomy.runs.build import Setting, versions
from isonomy.runs.folder import RunFolder
from isonomy.runs.front import measurement
from isonomy.runs.record import Record
from isonomy.runs.training import Listener, go


@dataclass
class Plan:
    """A federation's run: its folder, and what federation.json holds."""

    place: RunFolder
    config: Config
    about: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The clients, in the order of their numbers."""
        return list(self.about["charter"]["clients"])

    def save(self) -> None:
        """Write federation.json."""
        with folders.saving(self.place.path):
            self.place.write("federation.json", json.dumps(self.about, indent=1).encode())


def begin(
    config: Config,
    folder: Path,
    names: Sequence[str],
    *,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Draw the charter and begin a run's folder."""
    algorithms.make(config.algorithm.name, config.algorithm.options)
    if not names:
        raise ConfigError("which clients take part; name them: --clients north,south.")
    if config.cohort.size is not None and config.cohort.size > len(names):
        raise ConfigError(
            f"cohort.size = {config.cohort.size}, but there are {len(names)} clients; lower it or "
            "leave it out."
        )
    config = _suited(config, note)
    charter, warnings = charters.draw(config, names)
    for text in warnings:
        note(text)
    place = RunFolder(folder)
    place.create(config, overwrite=overwrite)
    about = {"run": uuid.uuid4().hex, "charter": charter, "nodes": {}, "fitted": None}
    plan = Plan(place, config, about)
    plan.save()
    return plan


def again(folder: Path) -> Plan:
    """A run that was begun."""
    place = RunFolder(folder)
    config = place.config()
    if not place.served:
        raise RunError(f"'{folder}' is no run of a federation; use `isonomy resume {folder}`.")
    if place.complete:
        raise RunError(f"'{folder}' is complete; there is nothing to resume.")
    about = json.loads((place.path / "federation.json").read_text())
    return Plan(place, config, about)


def _suited(config: Config, note: Callable[[str], None]) -> Config:
    """What a network calls for: a checkpoint every round; no surrogate on pooled rows."""
    change: dict[str, Any] = {"versions": versions()}
    if "every" not in config.checkpoint.model_fields_set:
        change["checkpoint"] = config.checkpoint.model_copy(update={"every": 1})
    if config.excess.clusters not in ("auto", "none"):
        note("excess risk needs a surrogate that a federation does not train; it is left out.")
    change["excess"] = config.excess.model_copy(update={"clusters": "none"})
    return config.model_copy(update=change)


def conduct(
    plan: Plan,
    line: ByNode,
    *,
    nodes: dict[str, int] | None,
    wait: float,
    timeout: float,
    listener: Listener,
) -> Record:
    """All of a run over a line to the nodes, from where its folder stands."""
    found = plan.place.newest()
    wire = Wire(
        line,
        plan.about["charter"],
        run=plan.about["run"],
        session=uuid.uuid4().hex,
        done=found[0] if found else 0,
        timeout=timeout,
        nodes=nodes,
        note=listener.note,
    )
    fitted = plan.about["fitted"]
    wire.prepared = None if fitted is None else fitted["preprocessing"]
    wire.gather(wait)
    if fitted is None:
        fitted = plan.about["fitted"] = _fit(plan, wire, listener.note)
        plan.save()
        wire.prepare(fitted["preprocessing"])
    setting = remote(plan)

    def engine(setting: Setting, _note: Any, _chunks: Any) -> Engine:
        torch.set_num_threads(1)
        phases = OfAlgorithm(setting.algorithm, measurement)
        made = Flower(
            setting.task, setting.federation, link=wire, phases=phases, seed=setting.config.seed
        )
        made.safe = min(plan.place.checkpoints(), default=0)
        engines.append(made)
        return made

    engines: list[Flower] = []
    record = go(setting, plan.place, listener, engine)
    have = wire.end(plan.place.model().server)
    for k, name in enumerate(plan.names):
        if k not in have:
            listener.note(f"'{name}' was not there to be given the model.")
    plan.place.append(
        "timing.jsonl",
        {
            "round": plan.config.rounds,
            "seconds": 0.0,
            "exchanges": [round(s, 3) for s in wire.seconds],
            "wire": {"sent": engines[0].sent, "received": engines[0].received},
        },
    )
    return record


def _fit(plan: Plan, wire: Wire, note: Callable[[str], None]) -> dict[str, Any]:
    charter = plan.about["charter"]
    roles, _ = charters.roles_of(plan.config)
    survey = charter["survey"]
    try:
        found = fit.fit(
            wire.table,
            charter["clients"],
            roles,
            seed=survey["seed"],
            fractions=survey["fractions"],
            schema=charters.schema_of(charter),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RunError(
            f"a client's reply about its table is not what was asked ({type(error).__name__}); "
            "have every participant use this version of isonomy."
        ) from error
    for text in found.warnings:
        note(text)
    return {
        "preprocessing": found.preprocessing.model_dump(mode="json"),
        "sizes": found.sizes,
        "warnings": found.warnings,
    }


def remote(plan: Plan) -> Setting:
    """The setting of a run whose rows are elsewhere: the server knows how many, no more."""
    config, fitted = plan.config, plan.about["fitted"]
    found = prepared.of(fitted["preprocessing"])
    schema = found.table
    classes = len(schema.label.classes)
    federation = Federation(
        x=torch.stack([torch.zeros(len(found.features)), torch.ones(len(found.features))]),
        y=torch.zeros(2, dtype=torch.int64 if classes else torch.float32),
        groups=torch.zeros(2, len(schema.protected), dtype=torch.int64),
        ranges=torch.from_numpy(ranges_of(fitted["sizes"])),
        classes=classes,
        attributes=tuple(Attribute(name, schema.levels(name)) for name in schema.protected),
        names=tuple(plan.names),
        labels=schema.label.classes,
        features=found.features,
        source=f"federation of {len(plan.names)} clients",
        warnings=tuple(fitted["warnings"]),
        preprocessing=fitted["preprocessing"],
    )
    model = config.model
    task = make_task(model.name, federation, model.options, loss=model.loss, convert=model.convert)
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    params = task.init(config.seed)
    return Setting(config, federation, task, algorithm, params, federation, remote=True)
