"""What a participant reads before it agrees: in the words of its own installation.

Nothing here is a sentence of the organiser's. Names of columns, values and clients come from the
charter and are shown without control characters.
"""

from __future__ import annotations

from isonomy import algorithms
from isonomy.config.privacy import PrivacyConfig
from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.phase import Declaration, declared
from isonomy.data.tables.preprocessing import Schema
from isonomy.federation.charter import (
    PEERS,
    Charter,
    config_of,
    has_least,
    printable,
    roles_of,
    schema_of,
)
from isonomy.federation.flower.identity import fingerprint
from isonomy.federation.promise import promise
from isonomy.federation.schedule import Schedule
from isonomy.privacy.secure.threshold import asked_at_once, colluders, threshold_of
from isonomy.runs.build import malicious_clients

DEFAULTS = PrivacyConfig()


def consent_text(charter: Charter, rows: int | None = None) -> list[str]:
    """What a participant should know before it agrees, as lines of text.

    `rows` is how many training rows it has, on which the privacy of single rows depends.
    """
    config, schema = config_of(charter), schema_of(charter)
    algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
    lines = _about(charter, config, schema, type(algorithm))
    lines += _attack(charter, config)
    lines += _questions(config, schema, algorithm, charter)
    lines += promise(config, algorithm, schema, len(charter["clients"]), rows)
    lines += _limits(config)
    if config.defence.name != "none":
        lines.append(
            f"The defence '{config.defence.name}' replaces the mean: the organiser's program "
            "examines the update of every participant."
        )
    return [printable(line) for line in lines]


def _about(charter: Charter, config: Config, schema: Schema, kind: type[Algorithm]) -> list[str]:
    local = config.local
    spent = f"{local.steps} steps" if local.steps else f"{local.epochs} passes over your rows"
    batch = f"batches of {local.batch}" if local.batch else "all rows at once"
    to_predict = schema.label.name
    if schema.label.classes:
        to_predict += f" ({', '.join(schema.label.classes)})"
    options = ", ".join(f"{k} = {v}" for k, v in sorted(config.algorithm.options.items()))
    lines = [
        f"Method: {kind.name} ({kind.paper}){f' with {options}' if options else ''}, "
        f"{config.rounds} rounds, {spent} in each, {batch}; model {config.model.name}.",
        f"Participants: {len(charter['clients'])} ({', '.join(charter['clients'])}).",
        f"Predicted: {to_predict}.",
        f"Features: {', '.join(schema.features)}.",
    ]
    if schema.protected:
        lines.append(f"Fairness is measured between the groups of: {', '.join(schema.protected)}.")
    return lines


def _questions(config: Config, schema: Schema, algorithm: Algorithm, charter: Charter) -> list[str]:
    """The questions that will be answered, and what the organiser learns from the answers."""
    kind, cell = type(algorithm), config.privacy.cell
    numbers = [name for name, of in schema.features.items() if of == "number"]
    median = roles_of(config)[0].impute == "median" and numbers
    lines = [
        "Your program answers these questions and no others, each as often as stated:",
        "  for preparation, once: the number of training, validation and test rows; for each "
        "numeric column the count, mean, spread, smallest and largest value; for each category its "
        f"values and how often each occurs (values of fewer than {cell} rows are not named), all "
        "on training rows" + ("; and counts at even marks, for medians;" if median else ";"),
        *(f"  {line};" for line in Schedule(config, algorithm).describe()),
        "The organiser learns:",
        f"  in training: {kind.reveals};",
        f"  in evaluation ({config.evaluate.split} rows): how many rows of each group and label "
        "were predicted as which class, and sums of losses;",
        *_who_sees(config, charter),
    ]
    asked = Schedule(config, algorithm).asked
    shared = [d for name, d in declared(kind).items() if name in asked and _single_rows(d)]
    if shared:
        parts = ", ".join(n for d in shared for n, p in d.parts.items() if p.kind == "examples")
        lines.append(
            f"WARNING: this method sends values of single rows ({parts}); it is refused unless you "
            "allow it with --share-rows."
        )
    else:
        lines.append("No row is sent.")
    return lines


def _who_sees(config: Config, charter: Charter) -> list[str]:
    """Whether the organiser learns single replies or only sums."""
    given, clients = config.secure, len(charter["clients"])
    if not given.enabled:
        return [
            "  each reply by itself, because sums are computed on the organiser's machine: there "
            "is no secure aggregation."
        ]
    asked, threshold = asked_at_once(config, clients), threshold_of(config, clients)
    lines = [
        "  in training only sums of replies, by secure aggregation: your program masks every reply "
        f"before it is sent, and only the sum of at least {threshold} participants' replies can be "
        f"unmasked; models are cut to {given.clip:g} and rounded to {given.bits} bits;",
        "  in preparation and evaluation each reply by itself: these are not masked.",
        f"A dishonest organiser together with {colluders(threshold, asked)} or more participants "
        "can still learn a reply, and so can one that has invented participants or keys.",
    ]
    if PEERS in charter:
        lines.append("Compare the participants' keys with them (`ssh-keygen -lf NAME.pub`):")
        lines += [f"  {name} {fingerprint(line)}" for name, line in charter[PEERS].items()]
    else:
        lines.append(
            "WARNING: the participants' keys are not in the charter, so you cannot know whether "
            "the organiser has put its own in their place."
        )
    if asked == 2:
        lines.append(
            "WARNING: a sum of two replies shows yours to the other participant, who knows its own."
        )
    return lines


def _limits(config: Config) -> list[str]:
    given = config.privacy
    cells = "" if not has_own_cells(config) else ", in training as in evaluation"
    lines = [
        f"Limits: a reply is computed from at least {given.rows} training rows; groups and labels "
        f"of fewer than {given.cell} rows are not counted{cells}; after the server has restarted, "
        f"{given.repeats} rounds at most are answered a second time to other messages.",
        "Models, gradients and losses are rounded to what a single row adds to them."
        if given.rounding
        else "WARNING: replies are not rounded, so single rows can be read from replies to models "
        "that were made for it; refused unless you allow it with --exact.",
        "An organiser who sends models that were made for it can still learn something about "
        "rows from the replies; see docs/threat-model.md.",
    ]
    for name in ("rows", "cell"):
        if getattr(given, name) < getattr(DEFAULTS, name):
            lines.append(
                f"WARNING: privacy.{name} = {getattr(given, name)} is below the usual "
                f"{getattr(DEFAULTS, name)}."
            )
    return lines


def has_own_cells(config: Config) -> bool:
    """Whether the method itself counts groups and withholds small cells."""
    return ":" not in config.algorithm.name and has_least(config.algorithm.name)


def _single_rows(declared: Declaration) -> bool:
    return any(part.kind == "examples" for part in declared.parts.values())


def shares_rows(config: Config, algorithm: Algorithm) -> bool:
    """Whether a question of the run asks for values of single rows."""
    phases, asked = declared(type(algorithm)), Schedule(config, algorithm).asked
    return any(name in phases and _single_rows(phases[name]) for name in asked)


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
