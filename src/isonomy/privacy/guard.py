"""A guard: clients of a private run are asked nothing that is not in the ledger.

It is the innermost middleware around every exchange of a run's engine. A question passes if it was
charged to the ledger since the last one, if it asks nothing of the clients' examples, or if the
config allows its kind without noise. Anything else is a fault of the program, and stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from isonomy.core.cohort import Ask, Exchange, Replies, ServerSide
from isonomy.privacy.example_ledger import ExampleLedger


class Entries(Protocol):
    """A ledger: the lines that were charged so far."""

    entries: list[dict[str, Any]]


class NotCounted(RuntimeError):
    """A question to clients that the ledger does not hold."""


def guard(
    ledger: Entries,
    exempt: Callable[[Ask], bool] = lambda _: False,
    *,
    after: int | None = None,
) -> ServerSide:
    """Middleware that lets only questions pass that were charged, or that are exempt.

    `after` is how many lines were charged before the first question; by default, all that are.
    """
    seen = [len(ledger.entries) if after is None else after]

    def around(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            charged = len(ledger.entries) != seen[0]
            seen[0] = len(ledger.entries)
            still = isinstance(ledger, ExampleLedger) and ask.declared.name in ledger.still
            if ask.declared.parts and not charged and not still and not exempt(ask):
                raise NotCounted(
                    f"phase '{ask.declared.name}' was asked of clients, but is not in the ledger"
                )
            yield from exchange(ask)

        return wrapped

    return around


def closed(exchange: Exchange) -> Exchange:
    """Middleware of a finished private run: its clients are asked nothing more."""

    def wrapped(ask: Ask) -> Iterator[Replies]:
        if ask.declared.parts:
            raise NotCounted(
                f"phase '{ask.declared.name}' was asked of clients of a finished private run, "
                "which no ledger counts"
            )
        yield from exchange(ask)

    return wrapped
