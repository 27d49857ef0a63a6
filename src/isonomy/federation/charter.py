"""The charter of a federation: the document that a participant reads before it takes part.

It holds the method, the model, the local work, the limits and the columns of one run: everything
that a participant's process needs, and everything that it is bound to. The organiser writes it, a
participant agrees to it without changes, and its digest, which every message carries, identifies
what was agreed to.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from isonomy import algorithms
from isonomy.config.schema import Config, parse
from isonomy.core.options import check as check_options
from isonomy.core.options import options_of
from isonomy.core.phase import declared
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
VERSION = 2
KEYS = {"version", "run", "config", "clients", "survey"}
PEERS = "peers"  # with secure aggregation and keys: each client's public key
_HEX = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[^\W](?:[\w .-]{0,98}[\w.-])?")


def make(
    config: Config, names: Sequence[str], peers: Mapping[str, str] | None = None
) -> tuple[Charter, list[str]]:
    """The charter of a config whose data is an example of the tables, and warnings on it.

    `peers` are the clients' public keys, by which they recognise each other.
    """
    if config.data.name != "tables":
        raise ConfigError(
            f"data.name = '{config.data.name}', but participants of a federation use their own "
            "tables; set data.path to an example of them (a table, or a folder of tables), and "
            "data.label."
        )
    roles, options = roles_of(config)
    example = _example(options, roles)
    schema, warnings = agree(LocalClients(example), example.names, roles)
    plain = config.plain()
    plain.pop("track", None)  # the organiser's own affair
    plain["data"] = {
        k: v for k, v in plain["data"].items() if k not in ("path", "exclude", "client")
    }
    charter = {
        "version": VERSION,
        "run": uuid.uuid4().hex,
        "config": plain,
        "clients": list(names),
        "survey": _survey(config, schema),
    }
    if config.secure.enabled and peers is not None:
        charter[PEERS] = {name: peers[name] for name in names}
    check(charter)
    return charter, warnings


def _survey(config: Config, schema: Schema) -> dict[str, Any]:
    """The only question about the tables whose answer the charter needs."""
    seed = config.seed if config.data.seed is None else config.data.seed
    return survey_message(schema, seed, roles_of(config)[1]["fractions"], config.privacy.cell)


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
    options = check_options("data", "tables", DATASETS["tables"].options, config.data.options)
    names = ("path", "exclude", "client", "fractions", "encoding")
    other = {name: options.pop(name) for name in names}
    return Roles(**options), other


def _example(options: dict[str, Any], roles: Roles) -> Source:
    if not options["path"]:
        raise ConfigError(
            'data.path is missing; set it to an example of the tables: data.path = "example.csv".'
        )
    paths, folder = files.find(options["path"], options["exclude"])
    if folder:
        return Files(paths, roles.missing, options["encoding"])
    table = files.read(paths[0], roles.missing, options["encoding"])
    if options["client"]:  # names the client of each row, so it is not used as a feature
        kept = {k: v for k, v in table.columns.items() if k != options["client"]}
        table = type(table)(kept, table.rows, table.place)
    return Pieces(table, [0, table.rows], ["the example"])


def is_id(text: object) -> bool:
    """Whether a text can identify a run or a session, and be the name of a folder.

    >>> is_id("0123456789abcdef" * 2), is_id("../" + "a" * 29)
    (True, False)
    """
    return isinstance(text, str) and _HEX.fullmatch(text) is not None


def printable(text: str) -> str:
    """Text from elsewhere, without characters that control a terminal or hide other text."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


# --- checks of a charter that somebody else wrote -------------------------------------------------


def check(charter: Any) -> None:
    """Raise ConfigError for a charter that contradicts itself or that this version cannot read.

    What a participant is asked to agree to must follow from the charter's config and columns, so
    the same holds for everybody who reads it.
    """
    if not isinstance(charter, dict) or charter.get("version") != VERSION:
        raise ConfigError(
            "the organiser's charter is of another version of isonomy; use the organiser's version."
        )
    names = charter.get("clients")
    if set(charter) - {PEERS} != KEYS or not is_id(charter["run"]):
        raise _wrong("it has other parts than a charter, or its run has no proper id")
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in names
    ):
        raise _wrong("it names clients by something else than letters, digits, '-', '_' and '.'")
    if not names or len(set(names)) < len(names):
        raise _wrong("it names no clients, or one of them twice")
    config = _config(charter)
    schema = _schema(charter)
    if charter["survey"] != json.loads(json.dumps(_survey(config, schema))):
        raise _wrong("the survey of tables is not the one of its config")
    _check_peers(charter, config)
    _check_columns(schema, roles_of(config)[0])
    _check_work(config)
    check_least(config)


def _config(charter: Charter) -> Config:
    try:
        return config_of(charter)
    except (KeyError, TypeError, AttributeError):
        raise _wrong("its config cannot be read") from None


def _schema(charter: Charter) -> Schema:
    try:
        return schema_of(charter)
    except (KeyError, TypeError, ValueError):
        raise _wrong("its columns cannot be read") from None


def _check_peers(charter: Charter, config: Config) -> None:
    """The public keys must be those of the clients, each with its own."""
    if PEERS not in charter:
        return
    from isonomy.federation.flower.identity import parsed

    peers = charter[PEERS]
    if not config.secure.enabled or not isinstance(peers, dict):
        raise _wrong("it lists keys, but does not use secure aggregation")
    if list(peers) != charter["clients"] or len(set(map(str, peers.values()))) < len(peers):
        raise _wrong("its keys are not those of its clients, or two have the same")
    try:
        for line in peers.values():
            parsed(line)
    except ValueError:
        raise _wrong("a client's key cannot be read") from None


def _check_columns(schema: Schema, roles: Roles) -> None:
    """The columns must have the roles that the config gives them."""
    out = {roles.label, roles.split, *roles.drop}
    if not roles.keep_protected:
        out |= set(roles.protected_columns)
    same = (
        schema.label.name == roles.label
        and schema.protected == roles.protected
        and tuple(group.name for group in schema.groups) == roles.protected_columns
        and schema.split == roles.split
        and schema.missing == roles.missing
    )
    if not same or out & set(schema.features) or not schema.features:
        raise _wrong("its columns do not have the roles that its config gives them")
    if roles.features and not set(schema.features) <= set(roles.features):
        raise _wrong("it uses features that its config does not name")


def _check_work(config: Config) -> None:
    """Raise ConfigError if local steps use fewer rows than a reply must come from."""
    local, rows = config.local, config.privacy.rows
    if local.steps and local.batch and local.steps * local.batch < rows:
        raise ConfigError(
            f"local.steps = {local.steps} with local.batch = {local.batch} uses at most "
            f"{local.steps * local.batch} rows, but privacy.rows = {rows}; raise local.steps or "
            "local.batch, or lower privacy.rows."
        )


def has_least(name: str) -> bool:
    """Whether an algorithm can withhold the sums of small cells."""
    kind = algorithms.find(name)
    groups = any(
        p.kind == "group statistic" for d in declared(kind).values() for p in d.parts.values()
    )
    return groups and "least" in options_of(kind)


def check_least(config: Config) -> None:
    """Raise ConfigError if the algorithm's sums may cover smaller cells than the charter says."""
    name = config.algorithm.name
    if ":" in name or not has_least(name):
        return
    least = int(config.algorithm.options.get("least", 0))
    if least < config.privacy.cell and config.privacy.cell > 1:
        raise ConfigError(
            f"algorithm.least = {least} is below privacy.cell = {config.privacy.cell}, which "
            "participants insist on; raise it, or remove it."
        )


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"the organiser's charter cannot be trusted: {what}; nothing was sent.")
