"""What a federation is about, in one document: a participant reads it before it takes part.

It holds the method, the model, the local work and the columns, and is all that a participant's
process needs to do its half. It comes from the organiser; a participant agrees to it as it is,
and what it agreed to is known by its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from isonomy import algorithms
from isonomy.config.schema import Config, parse
from isonomy.core.algorithm import Algorithm
from isonomy.core.options import check
from isonomy.data.datasets import DATASETS
from isonomy.data.tables import files
from isonomy.data.tables.agreement import agree
from isonomy.data.tables.fit import survey_message
from isonomy.data.tables.local_clients import LocalClients
from isonomy.data.tables.preprocessing import Schema
from isonomy.data.tables.roles import Roles
from isonomy.data.tables.sources import Files, Pieces, Source
from isonomy.errors import ConfigError

Charter = dict[str, Any]


def draw(config: Config, names: Sequence[str]) -> tuple[Charter, list[str]]:
    """The charter of a config whose data is an example of the tables, and things to know of it."""
    if config.data.name != "tables":
        raise ConfigError(
            f"data is '{config.data.name}', and a federation is of participants' own tables; give "
            "data.path an example of them (a table, or a folder of tables) and data.label."
        )
    roles, options = roles_of(config)
    example = _example(options, roles)
    schema, warnings = agree(LocalClients(example), example.names, roles)
    seed = config.seed if config.data.seed is None else config.data.seed
    plain = config.plain()
    plain["data"] = {k: v for k, v in plain["data"].items() if k not in ("path", "client")}
    kind = algorithms.find(config.algorithm.name)
    return {
        "version": 1,
        "config": plain,
        "clients": list(names),
        "survey": survey_message(schema, seed, options["fractions"]),
        "reveals": kind.reveals,
    }, warnings


def digest(charter: Charter) -> str:
    """What a charter is known by."""
    text = json.dumps(charter, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def config_of(charter: Charter) -> Config:
    """The config in a charter."""
    return parse({**charter["config"], "data": {"name": "tables"} | charter["config"]["data"]})


def schema_of(charter: Charter) -> Schema:
    """The columns in a charter."""
    return Schema.model_validate(charter["survey"]["schema"])


def roles_of(config: Config) -> tuple[Roles, dict[str, Any]]:
    """The columns' roles, and the options that are not about columns."""
    options = check("data", "tables", DATASETS["tables"].options, config.data.options)
    other = {name: options.pop(name) for name in ("path", "client", "fractions", "encoding")}
    return Roles(**options), other


def _example(options: dict[str, Any], roles: Roles) -> Source:
    if not options["path"]:
        raise ConfigError(
            'where is an example of the tables; give a file or a folder: data.path = "example.csv".'
        )
    paths, folder = files.find(options["path"])
    if folder:
        return Files(paths, roles.missing, options["encoding"])
    table = files.read(paths[0], roles.missing, options["encoding"])
    if options["client"]:  # which tells clients apart where there are many; here it is no feature
        kept = {k: v for k, v in table.columns.items() if k != options["client"]}
        table = type(table)(kept, table.rows, table.place)
    return Pieces(table, [0, table.rows], ["the example"])


# --- in plain words -------------------------------------------------------------------------------


def words(charter: Charter) -> list[str]:
    """What a participant should know before it agrees, a line each."""
    config, schema = config_of(charter), schema_of(charter)
    kind: type[Algorithm] = algorithms.find(config.algorithm.name)
    local = config.local
    spent = f"{local.steps} steps" if local.steps else f"{local.epochs} passes over your rows"
    to_predict = schema.label.name
    if schema.label.classes:
        to_predict += f" ({', '.join(schema.label.classes)})"
    lines = [
        f"Method: {kind.name} ({kind.paper}), {config.rounds} rounds, {spent} in each; "
        f"model {config.model.name}.",
        f"Participants: {len(charter['clients'])} ({', '.join(charter['clients'])}).",
        f"To be predicted: {to_predict}.",
        f"From: {', '.join(schema.features)}.",
    ]
    if schema.protected:
        lines.append(f"Fairness is measured between the groups of: {', '.join(schema.protected)}.")
    lines += [
        "The organiser will learn, and no row will leave this machine:",
        "  to prepare: how many rows there are to train, validate and test; of each numeric column "
        "count, mean, spread, smallest and largest value; of each category its values and how "
        "often each occurs, all over training rows;",
        f"  in training: {charter['reveals']};",
        f"  in measuring ({config.evaluate.split} rows): how many rows of each group and label "
        "were predicted as what, and sums of losses.",
        "What is called a sum is added up on the organiser's machine, which each reply reaches by "
        "itself: there is no secure aggregation.",
        "Flower runs a small program that the organiser sends; take part only with organisers "
        "whom you trust with that.",
    ]
    return lines
