"""The clients of a simulation: their tables are on this machine."""

from __future__ import annotations

import json

from isonomy.data.tables.phases import Client, Kept, Message, Phase, Reply
from isonomy.data.tables.sources import Source


class LocalClients:
    """The clients of a simulation: runs phases on their tables and keeps what they keep.

    Messages and replies pass as JSON text, so what could not cross a network cannot pass here.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[Kept | None] = [None] * len(source.names)
        self.bytes = 0  # of replies

    def __call__(self, phase: Phase, message: Message) -> list[Reply]:
        """Every client's reply, in the clients' order."""
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
        """A client as it is now."""
        return Client(k, self._source.names[k], self._source.open(k), self._kept[k])
