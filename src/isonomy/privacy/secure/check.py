"""Which algorithms and configs can be aggregated securely; others are refused with a sentence."""

from __future__ import annotations

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.asked import times_asked
from isonomy.core.cohort import Ask
from isonomy.core.phase import Declaration, declared
from isonomy.errors import ConfigError
from isonomy.privacy.secure.threshold import asked_at_once
from isonomy.privacy.shares import check_shares

REMEDY = "choose an algorithm that needs only sums, such as fedavg, or remove secure"


def seen(algorithm: Algorithm) -> Declaration | None:
    """The first phase of a run in which the server sees every client's reply; None if no phase."""
    phases = declared(type(algorithm))
    names = [*times_asked(algorithm, at_end=False), *times_asked(algorithm, at_end=True)]
    found = [phases[name] for name in names if phases[name].individual()]
    return found[0] if found else None


def check(config: Config, algorithm: Algorithm, clients: int | None) -> None:
    """Raise ConfigError if the config asks for secure aggregation and cannot have it.

    `clients` is the number of clients, None if it is not known yet.
    """
    if not config.secure.enabled:
        return
    phase = seen(algorithm)
    if phase is not None:
        raise ConfigError(f"secure = true: {of_every_client(algorithm.name, phase)}; {REMEDY}.")
    if config.defence.name != "none":
        raise ConfigError(
            f"secure = true: the defence '{config.defence.name}' examines every client's update, "
            "which secure aggregation hides; remove the defence, or remove secure."
        )
    check_shares(config, clients)
    if config.postprocess.name != "none":
        raise ConfigError(
            f"secure = true: postprocess.name = '{config.postprocess.name}' is fitted to the "
            "counts of every client; remove postprocess, or remove secure."
        )
    if clients is not None:
        _check_threshold(config, clients)


def of_every_client(name: str, phase: Declaration) -> str:
    """The clause that says which parts of which phase the server sees of every client."""
    parts = ", ".join(f"'{part}'" for part in phase.individual())
    return f"phase '{phase.name}' of '{name}' needs {parts} of every client"


def _check_threshold(config: Config, clients: int) -> None:
    asked, given = asked_at_once(config, clients), config.secure.threshold
    if asked < 2:
        raise ConfigError(
            "secure = true: a sum of one client's replies is its reply; have at least two clients "
            "in a round, or remove secure."
        )
    if given is not None and not asked < 2 * given <= 2 * asked:
        raise ConfigError(
            f"secure.threshold = {given}: a round has {asked} clients, and sums must be of more "
            f"than half of them; give a number from {asked // 2 + 1} to {asked}."
        )


def check_ask(ask: Ask) -> None:
    """Raise ConfigError for an exchange in which the server could see a single reply.

    A server that chooses weights, or sends each client its own message, can single out a client.
    """
    name = ask.declared.name
    if ask.verb not in ("mean", "sum"):
        raise ConfigError(
            f"secure = true: phase '{name}' is asked by `{ask.verb}`, which shows every client's "
            f"reply; {REMEDY}."
        )
    if ask.weighting == "given" or ask.each is not None:
        what = "weights clients as the server chooses"
        if ask.each is not None:
            what = "sends every client a message of its own"
        raise ConfigError(
            f"secure = true: phase '{name}' {what}, so a sum can be made to be of one client; "
            f"{REMEDY}."
        )
