"""The charter of a federation: the document that a participant reads before it takes part.

It holds the method, the model, the local work and the columns: everything that a participant's
process needs. The organiser writes it, a participant agrees to it without changes, and its digest
identifies what was agreed to.
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
from isonomy.runs.build import malicious_clients

Charter = dict[str, Any]


def make(config: Config, names: Sequence[str]) -> tuple[Charter, list[str]]:
    """The charter of a config whose data is an example of the tables, and warnings on it."""
    if config.data.name != "tables":
        raise ConfigError(
            f"data.name = '{config.data.name}', but participants of a federation use their own "
            "tables; set data.path to an example of them (a table, or a folder of tables), and "
            "data.label."
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
    """The hash that identifies a charter."""
    text = json.dumps(charter, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def config_of(charter: Charter) -> Config:
    """The config in a charter."""
    return parse({**charter["config"], "data": {"name": "tables"} | charter["config"]["data"]})


def schema_of(charter: Charter) -> Schema:
    """The columns in a charter."""
    return Schema.model_validate(charter["survey"]["schema"])


def roles_of(config: Config) -> tuple[Roles, dict[str, Any]]:
    """The roles of columns, and the options that do not concern columns."""
    options = check("data", "tables", DATASETS["tables"].options, config.data.options)
    other = {name: options.pop(name) for name in ("path", "client", "fractions", "encoding")}
    return Roles(**options), other


def _example(options: dict[str, Any], roles: Roles) -> Source:
    if not options["path"]:
        raise ConfigError(
            'data.path is missing; set it to an example of the tables: data.path = "example.csv".'
        )
    paths, folder = files.find(options["path"])
    if folder:
        return Files(paths, roles.missing, options["encoding"])
    table = files.read(paths[0], roles.missing, options["encoding"])
    if options["client"]:  # names the client of each row, so it is not used as a feature
        kept = {k: v for k, v in table.columns.items() if k != options["client"]}
        table = type(table)(kept, table.rows, table.place)
    return Pieces(table, [0, table.rows], ["the example"])


# --- consent ---------------------------------------------------------------------------------


def consent_text(charter: Charter) -> list[str]:
    """What a participant should know before it agrees, as lines of text."""
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
        f"Predicted: {to_predict}.",
        f"Features: {', '.join(schema.features)}.",
    ]
    if schema.protected:
        lines.append(f"Fairness is measured between the groups of: {', '.join(schema.protected)}.")
    lines += _attack(charter, config)
    lines += [
        "No row leaves this machine. The organiser will learn:",
        "  for preparation: the number of training, validation and test rows; for each numeric "
        "column the count, mean, spread, smallest and largest value; for each category its values "
        "and how often each occurs, all on training rows;",
        f"  in training: {charter['reveals']};",
        f"  in evaluation ({config.evaluate.split} rows): how many rows of each group and label "
        "were predicted as which class, and sums of losses.",
        "Sums are computed on the organiser's machine, which receives each reply separately: there "
        "is no secure aggregation.",
    ]
    if config.defence.name != "none":
        lines.append(
            f"The defence '{config.defence.name}' replaces the mean: the organiser's program "
            "examines the update of every participant."
        )
    lines.append(
        "Flower runs a small program that the organiser sends; take part only if you trust the "
        "organiser with that."
    )
    return lines


def _attack(charter: Charter, config: Config) -> list[str]:
    """The warning that some participants' replies are falsified on purpose, if they are."""
    if config.attack.name == "none":
        return []
    names = charter["clients"]
    bad = [names[k] for k in malicious_clients(config, len(names)).tolist()]
    return [
        f"This is a trial with a simulated attack ('{config.attack.name}'): the programs of these "
        f"participants falsify their replies: {', '.join(bad) or 'none'}. Do not use its model."
    ]
