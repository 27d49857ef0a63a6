"""The clients of a simulation: their tables are on this machine."""

from __future__ import annotations

import json

from isonomy.data.tables.phases import Client, Kept, Message, Phase, Reply
from isonomy.data.tables.sources import Source


class LocalClients:
    """Runs phases on the tables of a simulation and keeps what each client keeps.

    Messages and replies are converted to JSON text and back, so whatever could not be sent over a
    network fails here too.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[Kept | None] = [None] * len(source.names)
        self.bytes = 0  # size of all replies

    def __call__(self, phase: Phase, message: Message) -> list[Reply]:
        """Return the reply of every client, in the clients' order."""
        sent = json.dumps(message, allow_nan=False)
        out = []
        for k in range(len(self._kept)):
            reply, kept = phase(json.loads(sent), self.client(k))
            self._kept[k] = kept if kept is not None else self._kept[k]
            text = json.dumps(reply, allow_nan=False)
            self.bytes += len(text)
            out.append(json.loads(text))
        return out

    def client(self, k: int) -> Client:
        """Return a client in its present state."""
        return Client(k, self._source.names[k], self._source.open(k), self._kept[k])
