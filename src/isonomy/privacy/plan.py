"""From a config to the terms of its differential privacy: noise, rounds, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from isonomy.config.privacy import PrivacyConfig
from isonomy.core.algorithm import Algorithm
from isonomy.core.phase import Part
from isonomy.errors import ConfigError
from isonomy.privacy.accounting import Event, epsilon, multiplier_for
from isonomy.privacy.ledger import Terms
from isonomy.privacy.rehearsal import Rehearsed
from isonomy.privacy.release import missing_bound

Sampled = Callable[[int], Tensor]
"""The clients of each round, if cohorts are known."""


@dataclass(frozen=True)
class Other:
    """What a run releases beside training: noise multipliers, and the part of delta used."""

    prepared: tuple[float, ...] = ()  # of the preprocessing
    evaluations: tuple[float, ...] = ()  # of the evaluations that count with training
    evaluation: float = 0.0  # of each evaluation; 0: none
    reserved: float = 0.0


def client_terms(
    options: PrivacyConfig,
    algorithm: Algorithm,
    rehearsed: Rehearsed,
    *,
    clients: int,
    rounds: int,
    cohort: int,
    poisson: bool,
    sampled: Sampled,
    other: Other | None = None,
) -> Terms:
    """The terms of client-level privacy; `cohort` is the (expected) number of clients in a round.

    `other` is what is released beside training. Raises ConfigError for what cannot be private.
    """
    other = other or Other()
    _check_parts(options, algorithm, rehearsed)
    secret = poisson and cohort < clients
    if secret and rehearsed.known:
        raise ConfigError(
            f"cohort.sampling = 'poisson' is counted as if nobody knew who takes part in a round, "
            f"but '{algorithm.name}' depends on it (it sees or weights single clients); set "
            "cohort.sampling = 'uniform', which is counted without sampling."
        )
    rate = cohort / clients if secret else 1.0
    most = _most_asked(sampled, rounds, clients, whole=secret or cohort >= clients)

    def events(z: float, done: int) -> Mapping[Event, int]:
        """What `done` rounds and the last phase release."""
        out: dict[Event, int] = {}
        each = rehearsed.releases
        whole = rehearsed.final + (0 if secret else int(most[done]) * each)
        if secret and each and done:
            out[Event(z / each**0.5, rate)] = done
        if whole:
            out[Event(z / whole**0.5)] = 1
        for multiplier in (*other.prepared, *other.evaluations):
            out[Event(multiplier)] = out.get(Event(multiplier), 0) + 1
        return out

    noise, allowed = noise_and_rounds(options, events, rounds, other.reserved)
    return Terms(
        level="client",
        delta=options.delta,
        budget=options.epsilon,
        multiplier=noise,
        rate=rate,
        clients=clients,
        rounds=allowed,
        releases=rehearsed.releases,
        final=rehearsed.final,
        accountant=options.accountant,
        reserved=other.reserved,
        evaluation=other.evaluation,
    )


def noise_and_rounds(
    options: PrivacyConfig,
    events: Callable[[float, int], Mapping[Event, int]],
    rounds: int,
    reserved: float = 0.0,
) -> tuple[float, int]:
    """The noise multiplier, given or found for epsilon, and the rounds that the budget allows."""
    target, delta, how = options.epsilon, options.delta - reserved, options.accountant
    if options.noise is None:
        if target is None:
            raise ConfigError(
                f"privacy.level = '{options.level}' needs privacy.epsilon, for which the noise is "
                "found, or privacy.noise; set one of them."
            )
        return multiplier_for(lambda z: events(z, rounds), target, delta, how), rounds
    z = options.noise
    if target is None or epsilon(events(z, rounds), delta, how) <= target:
        return z, rounds
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon(events(z, middle), delta, how) <= target:
            low = middle
        else:
            high = middle
    if not low:
        raise ConfigError(
            f"privacy.noise = {z:g} spends more than privacy.epsilon = {target:g} in the first "
            "round; raise the noise, or leave it out, so that it is found for epsilon."
        )
    return z, low


def _most_asked(sampled: Sampled, rounds: int, clients: int, *, whole: bool) -> np.ndarray:
    """How often the most often asked client was asked, after 0, 1, ... rounds."""
    if whole:
        return np.arange(rounds + 1)
    count, out = np.zeros(clients, dtype=np.int64), [0]
    for round in range(rounds):
        count[sampled(round).numpy()] += 1
        out.append(int(count.max()))
    return np.array(out)


def _check_parts(options: PrivacyConfig, algorithm: Algorithm, rehearsed: Rehearsed) -> None:
    """Raise ConfigError for replies that cannot be clipped in a useful way."""
    for ask in rehearsed.asks:
        for name, part in ask.declared.parts.items():
            if part.kind == "examples":
                raise ConfigError(
                    f"phase '{ask.declared.name}' of '{algorithm.name}' sends single examples "
                    f"('{name}'), which differential privacy cannot protect; choose another "
                    "algorithm, or options without this phase."
                )
            if part.kind == "model" and not _of_sent(part, ask.message, ask.each):
                raise ConfigError(
                    f"phase '{ask.declared.name}' of '{algorithm.name}' sends a model ('{name}') "
                    "that was not trained from one that the server sent, so it cannot be clipped "
                    "as an update; choose another algorithm, such as fedavg."
                )
    for phase, name in rehearsed.statistics():
        if name not in options.bounds:
            raise ConfigError(missing_bound(phase, name))
    known = {name for _, name in rehearsed.statistics()}
    strange = [name for name in options.bounds if name not in known] if not rehearsed.why else []
    if strange:
        listed = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"privacy.bounds.{strange[0]}: '{algorithm.name}' collects no statistic of this name "
            f"(it collects {listed}); remove it."
        )


def _of_sent(part: Part, message: Mapping[str, object], each: Mapping[str, object] | None) -> bool:
    return (part.of or "") in message or (part.of or "") in (each or {})
