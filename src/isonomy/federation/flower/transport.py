"""Transports carry bytes to clients and bring their replies back. The engine knows no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class NoReply:
    """A client did not reply, and why."""

    why: str


class Transport(Protocol):
    """Reaches clients by their numbers; the engine's only connection to them."""

    def present(self) -> set[int]:
        """The clients that can be asked now."""

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | NoReply]]:
        """Every client's reply to its request, or why there is none, in any order."""


class NodeTransport(Protocol):
    """Reaches Flower's nodes by their ids, which Flower assigns."""

    def nodes(self) -> set[int]:
        """The nodes that are online."""

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | NoReply]]:
        """Every node's reply to its request, or why there is none, in any order.

        `kind` is Flower's message type (train, evaluate or query), `seconds` the time to reply,
        and `group` the number of the exchange.
        """


class InProcessTransport:
    """All clients in this process: the same messages and client code, but no network."""

    def __init__(self, clients: Mapping[int, Answer]) -> None:
        self.clients = dict(clients)

    def present(self) -> set[int]:
        """All clients."""
        return set(self.clients)

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | NoReply]]:
        """One client after another."""
        for k, content in requests.items():
            try:
                yield k, self.clients[k](content)
            except Exception as error:  # over a network there would be no reply
                yield k, NoReply(f"it failed ({type(error).__name__}: {error})")
