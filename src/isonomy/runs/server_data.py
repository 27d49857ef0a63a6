"""The server's own examples in a run: where they come from, and what is said about it."""

from __future__ import annotations

from functools import lru_cache

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Pool
from isonomy.data.federation import Federation
from isonomy.data.server_data import with_server_data
from isonomy.errors import ConfigError


def check_server_data(algorithm: Algorithm, *, remote: bool) -> None:
    """Refuse an algorithm that needs examples of the server's own where there are none."""
    if algorithm.needs_server_data and remote:
        raise ConfigError(
            f"algorithm '{algorithm.name}' needs examples of the server's own, which the organiser "
            "of a real federation does not have; simulate it with `isonomy run`, or choose another "
            "algorithm."
        )


def with_own_data(federation: Federation, config: Config) -> tuple[Federation, Pool]:
    """The federation without the server's examples, and these; cached."""
    given = config.server_data
    seed = config.seed if config.data.seed is None else config.data.seed
    return _with_own_data(federation, given.share, given.synthetic, seed)


@lru_cache(maxsize=8)
def _with_own_data(
    federation: Federation, share: float, synthetic: float, seed: int
) -> tuple[Federation, Pool]:
    return with_server_data(federation, share, synthetic, seed)


def server_data_note(config: Config, own: Pool | None) -> list[str]:
    """A sentence on the server's examples, if there are any."""
    if own is None:
        return []
    given = config.server_data
    drawn = f", and synthetic ones, {given.synthetic:.3g} of that number" if given.synthetic else ""
    return [
        f"The server held {len(own.y):,} examples of its own: {given.share:.3g} of all training "
        f"examples, which were taken from the clients{drawn} (server_data)."
    ]
