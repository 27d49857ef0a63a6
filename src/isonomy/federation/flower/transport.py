"""What carries bytes to clients and brings bytes back. The engine knows no more of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Silence:
    """No reply, and why."""

    why: str


class Link(Protocol):
    """A way to the clients."""

    def present(self) -> set[int]:
        """The clients that can be asked now."""

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Silence]]:
        """Every client's reply to its request, or why there is none, in any order."""


class InProcess:
    """All clients in this process: the same messages and the same client code, no network."""

    def __init__(self, clients: Mapping[int, Answer]) -> None:
        self.clients = dict(clients)

    def present(self) -> set[int]:
        """All of them."""
        return set(self.clients)

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Silence]]:
        """One after another."""
        for k, content in requests.items():
            try:
                yield k, self.clients[k](content)
            except Exception as error:  # as it would be over a network: no reply
                yield k, Silence(f"it failed ({type(error).__name__}: {error})")
