"""How many clients a sum is of, at least.

It is more than half of the clients that hold shares of each other's secrets. Then no server can
collect enough shares of both of a client's secrets, because each holder tells one of the two.
"""

from __future__ import annotations

from isonomy.config.schema import Config


def asked_at_once(config: Config, clients: int) -> int:
    """How many of so many clients a round asks."""
    return min(config.cohort.size or clients, clients)


def threshold_of(config: Config, clients: int) -> int:
    """The config's threshold, in a federation of so many clients; else two thirds of a round's."""
    if config.secure.threshold is not None:
        return config.secure.threshold
    return -(-2 * asked_at_once(config, clients) // 3)


def colluders(threshold: int, asked: int) -> int:
    """With how many of a round's clients a malicious server can learn the reply of another one.

    With all but one of a sum's clients, or with as many as fill up both kinds of shares.

    >>> colluders(2, 3), colluders(7, 10), colluders(10, 10)
    (1, 4, 9)
    """
    return min(2 * threshold - asked, threshold - 1)


def least(threshold: int, members: int) -> int:
    """The threshold among so many holders of shares, which may be more than a round asks."""
    return max(threshold, members // 2 + 1)
