"""How the clients of a federation are divided among processes, and how their results are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")
Q = TypeVar("Q")
R = TypeVar("R")


class Joint(Protocol):
    """Several processes that compute the same run, each with its own clients."""

    def everyone(self, own: Callable[[], T]) -> list[T]:
        """What `own` returns in each process, in a fixed order; the same list in all of them.

        Every process must call it at the same point. If `own` raises an error in one process, all
        of them raise an error.
        """


class Division:
    """The shares of clients: replies are added up within a share, and then share by share.

    So sums do not depend on how many processes compute the shares. `shares` [clients] is each
    client's share, None if there is one; a chunk of replies never mixes shares. `joint` is None if
    one process computes all of them.
    """

    def __init__(self, shares: Tensor | None = None, joint: Joint | None = None) -> None:
        self._shares = shares
        self._joint = joint

    def share(self, ids: Tensor) -> int:
        """The share that the clients of a chunk are in."""
        return 0 if self._shares is None else int(self._shares[ids[0]])

    def everyone(self, own: Callable[[], T]) -> list[T]:
        """What `own` returns in each process."""
        return [own()] if self._joint is None else self._joint.everyone(own)

    def alone(self) -> Division:
        """The same shares, where every process has the replies of all clients."""
        return Division(self._shares)

    def whole(self, exchange: Callable[[Q], Iterator[R]]) -> Callable[[Q], Iterator[R]]:
        """An exchange that yields the replies of all processes in each of them, in one order."""

        def wrapped(ask: Q) -> Iterator[R]:
            for chunks in self.everyone(lambda: list(exchange(ask))):
                yield from chunks

        return exchange if self._joint is None else wrapped
