"""The organiser's socket to the ServerApp, through which it reaches Flower's nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection

from isonomy.errors import RunError
from isonomy.federation.flower import local_socket
from isonomy.federation.flower.transport import NoReply


class OrganiserSocket:
    """A transport to nodes: the ServerApp at the other end passes requests on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def nodes(self) -> set[int]:
        """The nodes that are online."""
        self._send({"do": "nodes"})
        return {int(node) for node in json.loads(self._receive())}

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | NoReply]]:
        """Each node's reply, or why there is none; equal requests are sent to the ServerApp once.

        Requests are equal here if they are the same bytes object.
        """
        places: dict[int, int] = {}  # from the id of the bytes object to its place in `contents`
        contents: list[bytes] = []
        for content in requests.values():
            if id(content) not in places:
                places[id(content)] = len(contents)
                contents.append(content)
        to = [[node, places[id(content)]] for node, content in requests.items()]
        self._send(
            {"do": "ask", "to": to, "type": kind, "seconds": seconds, "group": group}
            | {"contents": len(contents)}
        )
        for content in contents:
            self._connection.send_bytes(content)
        while about := json.loads(self._receive()):
            content = self._receive()
            yield int(about["node"]), NoReply(about["why"]) if about["why"] else content

    def close(self) -> None:
        """Close the connection, which ends the ServerApp."""
        self._connection.close()

    def _send(self, order: dict[str, object]) -> None:
        try:
            self._connection.send_bytes(json.dumps(order).encode())
        except OSError:
            raise RunError(_ENDED) from None

    def _receive(self) -> bytes:
        try:
            return self._connection.recv_bytes(local_socket.MOST)
        except (EOFError, OSError):
            raise RunError(_ENDED) from None


_ENDED = (
    "Flower's SuperLink or ServerApp has ended; see its log in the run's folder, then continue "
    "with `isonomy serve --resume RUN`."
)
