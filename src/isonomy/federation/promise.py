"""What differential privacy promises to a participant, in words, before it agrees.

Epsilon follows from the charter's config: for whole participants from the noise and the number of
questions, for single rows also from how many rows the participant has.
"""

from __future__ import annotations

import math
from collections import Counter

import torch

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.examples import Attribute
from isonomy.core.phase import declared
from isonomy.data.federation import Federation
from isonomy.data.tables.preprocessing import Schema
from isonomy.errors import ConfigError
from isonomy.federation.schedule import Schedule
from isonomy.models import make_task
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.example_plan import rehearse_examples
from isonomy.privacy.secure.threshold import threshold_of
from isonomy.privacy.shares import shares_of
from isonomy.runs.build import with_recommended_work

UNCOVERED = {
    "preprocessing": "the preparation (what your program reports about columns)",
    "evaluation": "the evaluation (how many of your rows are predicted how, and sums of losses)",
}
"""What a real federation sends without noise, in the participant's words."""


def promise(
    config: Config, algorithm: Algorithm, schema: Schema, clients: int, rows: int | None
) -> list[str]:
    """Level, epsilon, delta, what is covered and what is not; `rows` are its training rows."""
    given = config.privacy
    if given.level == "none":
        return ["Differential privacy: none. No noise is added to what your program sends."]
    if given.level == "example":
        spent = example_epsilon(config, algorithm, schema, rows)
        lines = [_of_rows(config, spent)]
    elif config.secure.enabled:
        lines = [_of_shares(config, client_epsilon(config, algorithm), clients)]
    else:
        lines = [_of_clients(config, client_epsilon(config, algorithm))]
    open_parts = "; ".join(UNCOVERED.get(name, name) for name in given.allow) or "nothing"
    lines.append(
        "Covered by it: everything that your program sends in training. Not covered, and sent "
        f"without noise: {open_parts}."
    )
    return lines


def client_epsilon(config: Config, algorithm: Algorithm) -> float | None:
    """The epsilon of all rounds for a participant that is in each; None if the noise is open."""
    given, asked = config.privacy, Schedule(config, algorithm)
    phases = declared(type(algorithm))

    def releases(counts: dict[str, int]) -> int:
        return sum(n for name, n in counts.items() if name in phases and phases[name].parts)

    if given.noise is None:
        return None
    times = config.rounds * releases(asked.training) + releases(asked.final)
    how = "rdp" if config.secure.enabled else given.accountant
    return epsilon({Event(given.noise): times}, given.delta, how)


def example_epsilon(
    config: Config, algorithm: Algorithm, schema: Schema, rows: int | None
) -> float | None:
    """The epsilon of all rounds for a row of a participant with so many; None if it is open."""
    given, work = config.privacy, with_recommended_work(config).local
    if given.noise is None or rows is None:
        return None
    like = _blank(schema)
    model = config.model
    try:
        task = make_task(model.name, like, model.options, loss=model.loss, convert=model.convert)
        training = rehearse_examples(algorithm, task, like, work, given.batches)
    except ConfigError:  # it needs the real columns, or cannot be private: refused later
        return None
    each = given.noise / math.sqrt(max(training.calls, 1))
    times = config.rounds * training.rounds + training.final
    one = training_events(work, rows, each, given.batches)
    return epsilon(Counter({e: n * times for e, n in one.items()}), given.delta, given.accountant)


def _blank(schema: Schema) -> Federation:
    """A client with three rows, of as many numbers as there are columns."""
    classes, width = len(schema.label.classes), len(schema.features)
    return Federation(
        x=torch.zeros(3, width),
        y=torch.zeros(3, dtype=torch.int64 if classes else torch.float32),
        groups=torch.zeros(3, len(schema.protected), dtype=torch.int64),
        ranges=torch.tensor([[[0, 1], [1, 2], [2, 3]]]),
        classes=classes,
        attributes=tuple(Attribute(name, schema.levels(name)) for name in schema.protected),
        labels=schema.label.classes,
        features=tuple(schema.features),
    )


# --- in words -------------------------------------------------------------------------------------


def _of_rows(config: Config, spent: float | None) -> str:
    given = config.privacy
    return (
        f"Differential privacy of your single rows (level 'example'): {_epsilon(config, spent)}. "
        "Your program trains on gradients of rows, each shortened to a norm of "
        f"{given.clip:g}, with noise of {given.noise:g} times this, from a secret key of its own. "
        "You need not trust the organiser. Your program counts epsilon for your rows"
        f"{_refuses(config)}."
    )


def _of_clients(config: Config, spent: float | None) -> str:
    given = config.privacy
    size = "found for it" if given.noise is None else f"{given.noise:g} times the clip"
    return (
        "Differential privacy of whole participants (level 'client'): "
        f"{_epsilon(config, spent)}. Your program shortens what training sends to "
        f"{_norms(config)}; the organiser does so again and adds noise ({size}) to sums before it "
        "uses them. You trust the organiser to do so: it sees each reply without noise."
    )


def _of_shares(config: Config, spent: float | None, clients: int) -> str:
    given, threshold = config.privacy, threshold_of(config, clients)
    shares = shares_of(config, clients, given.noise or 0.0)
    assert shares is not None
    some = {0: "no participant of a sum tells", 1: "at most one participant of a sum tells"}
    told = some.get(given.colluding, f"at most {given.colluding} participants of a sum tell")
    return (
        "Differential privacy of whole participants (level 'client'): "
        f"{_epsilon(config, spent)}. Your program shortens what training sends to "
        f"{_norms(config)}, and your own program adds a share of the noise before it masks the "
        f"reply: the shares of {shares.honest} of the {threshold} or more participants of a sum "
        f"are {given.noise:g} times the clip. You need not trust the organiser; the promise holds "
        f"if {told} it the noise. Your program counts epsilon, also if a round is asked again"
        f"{_refuses(config)}."
    )


def _epsilon(config: Config, spent: float | None) -> str:
    given, budget = config.privacy, config.privacy.epsilon
    at = f"at delta = {given.delta:g}"
    if spent is None and budget is None:
        return f"epsilon depends on how many rows you have ({at})"
    if spent is None or (budget is not None and spent > budget):
        return f"epsilon is at most {budget:g} {at}"
    end = "" if budget is None else f"; training ends before it exceeds {budget:g}"
    return f"epsilon is {spent:.3g} {at} after all {config.rounds} rounds{end}"


def _refuses(config: Config) -> str:
    budget = config.privacy.epsilon
    return "" if budget is None else f", and refuses to answer beyond {budget:g}"


def _norms(config: Config) -> str:
    bounds = config.privacy.bounds.items()
    more = "".join(f", '{name}' to {bound:g}" for name, bound in bounds)
    return f"a norm of {config.privacy.clip:g}{more}"
