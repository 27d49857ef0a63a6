"""The organiser's process: wait for participants, fit the preprocessing, train, send the model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isonomy.config.schema import Config
from isonomy.core.examples import Attribute
from isonomy.data.federation import Federation
from isonomy.data.tables import fit, preprocessing
from isonomy.data.tables.federate import ranges_of
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError, RunError
from isonomy.federation import charter as charters
from isonomy.federation.flower.engine import Flower
from isonomy.federation.flower.phase_runner import AlgorithmPhases
from isonomy.federation.flower.secure_server import SecureServer
from isonomy.federation.flower.transport import NodeTransport
from isonomy.federation.sessions import Sessions
from isonomy.privacy.secure.simulated import room_of
from isonomy.privacy.secure.threshold import threshold_of
from isonomy.privacy.shares import shares_of
from isonomy.runs import folder as folders
from isonomy.runs.build import Setting, build, check_remote, versions, with_recommended_work
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener, Listeners
from isonomy.runs.measurements import measurement
from isonomy.runs.record import Record
from isonomy.runs.training import train

MUCH = 0.5  # a client with a larger share of all training rows is reported, if there are four


@dataclass
class Plan:
    """A run of a federation: its folder, its config, and the content of federation.json."""

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
    peers: Mapping[str, str] | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Check the config, write the charter, and create the run's folder.

    `peers` are the clients' public keys, if they have any.
    """
    if not names:
        raise ConfigError("no clients are named; name those that take part: --clients north,south.")
    check_remote(config, len(names))
    config = _adapted(with_recommended_work(config), note)
    charter, warnings = charters.make(config, names, peers)
    for text in warnings:
        note(text)
    place = RunFolder(folder)
    place.create(config, overwrite=overwrite)
    about = {"charter": charter, "nodes": {}, "fitted": None}
    plan = Plan(place, config, about)
    plan.save()
    return plan


def reopen(folder: Path) -> Plan:
    """The plan of an unfinished run."""
    place = RunFolder(folder)
    config = place.config()
    if not place.served:
        raise RunError(f"'{folder}' is not a run of a federation; use `isonomy resume {folder}`.")
    if place.complete:
        raise RunError(f"'{folder}' is complete; there is nothing to resume.")
    path = place.path / "federation.json"
    with folders.reading(path):
        about = json.loads(path.read_text())
        if not isinstance(about, dict) or set(about) != {"charter", "nodes", "fitted"}:
            raise ValueError
    charters.check(about["charter"])
    return Plan(place, config, about)


def _adapted(config: Config, note: Callable[[str], None]) -> Config:
    """The config with a checkpoint every round, and without surrogates on pooled rows."""
    change: dict[str, Any] = {"versions": versions()}
    if "every" not in config.checkpoint.model_fields_set:
        change["checkpoint"] = config.checkpoint.model_copy(update={"every": 1})
    if config.excess.clusters not in ("auto", "none"):
        note(
            f"excess.clusters = '{config.excess.clusters}': a federation does not train the "
            "surrogates that excess risk needs, so it is not measured."
        )
    change["excess"] = config.excess.model_copy(update={"clusters": "none"})
    name, cell = config.algorithm.name, config.privacy.cell
    if ":" not in name and charters.has_least(name) and "least" not in config.algorithm.options:
        change["algorithm"] = config.algorithm.model_copy(update={"least": cell})
    return config.model_copy(update=change)


def conduct(
    plan: Plan,
    transport: NodeTransport,
    *,
    nodes: dict[str, int] | None,
    wait: float,
    timeout: float,
    listeners: Sequence[Listener] = (),
) -> Record:
    """Run the federation over a transport to its nodes, from where its folder stands.

    `nodes` are the participants' nodes by name, None if they have no keys; `wait` and `timeout`
    are the seconds for all participants to join and for one to reply.
    """
    note = Listeners(listeners).note
    found = plan.place.newest()
    sessions = Sessions(
        transport,
        plan.about["charter"],
        session=uuid.uuid4().hex,
        done=found.round if found else 0,
        timeout=timeout,
        nodes=nodes,
        note=note,
    )
    fitted = plan.about["fitted"]
    sessions.prepared = None if fitted is None else fitted["preprocessing"]
    sessions.wait_for_all(wait)
    if fitted is None:
        fitted = plan.about["fitted"] = _fit(plan, sessions, note)
        plan.save()
        sessions.prepare(fitted["preprocessing"])
    setting = build(plan.config, note, federation=placeholder(plan))
    engines: list[Flower] = []

    def make_engine(setting: Setting, _note: Any) -> Engine:
        torch.set_num_threads(1)
        engine = Flower(
            setting.task,
            setting.federation,
            transport=sessions,
            phases=AlgorithmPhases(setting.algorithm, measurement),
            seed=setting.config.seed,
            charter=sessions.digest,
            secure=_secure(setting),
        )
        engines.append(engine)
        return engine

    record = train(setting, plan.place, listeners, make_engine)
    deployed = None if plan.place.withheld else plan.place.model().server
    told = sessions.end(deployed, record.verdict)
    for k, name in enumerate(plan.names):
        what = "that there is no model" if deployed is None else "the model"
        if k not in told:
            note(f"'{name}' was not connected at the end, so it was not sent {what}.")
        elif not told[k]:
            note(f"'{name}' was sent {what} and left without confirming it; it may have it.")
    plan.place.append(
        "timing.jsonl",
        {
            "round": len(record.rounds),
            "seconds": 0.0,
            "exchanges": [round(s, 3) for s in sessions.seconds],
            "traffic": {"sent": engines[0].sent, "received": engines[0].received},
        },
    )
    return record


def _secure(setting: Setting) -> SecureServer | None:
    """Secure aggregation, if the config says so."""
    config, sizes = setting.config, setting.federation.sizes()
    if not config.secure.enabled:
        return None
    return SecureServer(
        config.secure,
        threshold_of(config, len(sizes)),
        room_of(sizes),
        capped=config.cohort.max_weight < 1,
        shares=shares_of(config, len(sizes), config.privacy.noise or 0.0),
    )


def _fit(plan: Plan, sessions: Sessions, note: Callable[[str], None]) -> dict[str, Any]:
    """Fit the preprocessing to the participants' tables."""
    charter = plan.about["charter"]
    roles, _ = charters.roles_of(plan.config)
    survey = charter["survey"]
    try:
        found = fit.fit(
            sessions.ask_tables,
            charter["clients"],
            roles,
            seed=survey["seed"],
            fractions=survey["fractions"],
            schema=charters.schema_of(charter),
            least=survey["least"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RunError(
            f"a client's reply about its table has an unexpected form ({type(error).__name__}); "
            "make sure that every participant uses this version of isonomy."
        ) from error
    rows = dict(zip(plan.names, (sizes[0] for sizes in found.sizes), strict=True))
    warnings = [*found.warnings, *_dominating(rows, plan.config.cohort.max_weight)]
    for text in warnings:
        note(text)
    return {
        "preprocessing": found.preprocessing.model_dump(mode="json"),
        "sizes": found.sizes,
        "warnings": warnings,
    }


def _dominating(rows: Mapping[str, int], most: float) -> list[str]:
    """A warning if one client's number of training rows, which cannot be checked, decides the mean.

    >>> _dominating({"east": 60, "north": 4000, "south": 50}, 1.0)[0][:42]
    "'north' says that it has 97% of all traini"
    >>> _dominating({"east": 60, "north": 4000, "south": 50}, 0.5)
    []
    """
    name = max(rows, key=lambda name: rows[name])
    share = rows[name] / max(1, sum(rows.values()))
    if share <= max(MUCH, 2 / len(rows)) or share > most:
        return []
    return [
        f"'{name}' says that it has {share:.0%} of all training rows, so its replies decide every "
        "weighted mean. Nobody can check this number from outside: ask that participant, or limit "
        "its share with, for example, cohort.max_weight = 0.3."
    ]


def placeholder(plan: Plan) -> Federation:
    """What the organiser knows of the participants' rows: how many there are, and the columns."""
    fitted = plan.about["fitted"]
    found = preprocessing.of(fitted["preprocessing"])
    schema = found.table
    classes = len(schema.label.classes)
    return Federation(
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
