"""The organiser's end of the line to the ServerApp: a link by Flower's node ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection

from isonomy.errors import RunError
from isonomy.federation.flower import local_socket
from isonomy.federation.flower.transport import Silence


class Line:
    """Asks nodes by way of the ServerApp."""

    def __init__(self, connection: Connection) -> None:
        self._line = connection

    def nodes(self) -> set[int]:
        """The nodes that are online."""
        self._send({"do": "nodes"})
        return {int(node) for node in json.loads(self._receive())}

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | Silence]]:
        """Each node's reply, or why there is none; the same bytes travel to the ServerApp once."""
        contents: dict[int, int] = {}  # of the bytes object, the place
        order: list[bytes] = []
        for content in requests.values():
            if id(content) not in contents:
                contents[id(content)] = len(order)
                order.append(content)
        to = [[node, contents[id(content)]] for node, content in requests.items()]
        self._send(
            {"do": "ask", "to": to, "type": kind, "seconds": seconds, "group": group}
            | {"contents": len(order)}
        )
        for content in order:
            self._line.send_bytes(content)
        while about := json.loads(self._receive()):
            content = self._receive()
            yield int(about["node"]), Silence(about["why"]) if about["why"] else content

    def close(self) -> None:
        """Hang up: the ServerApp ends."""
        self._line.close()

    def _send(self, order: dict[str, object]) -> None:
        try:
            self._line.send_bytes(json.dumps(order).encode())
        except OSError:
            raise RunError(_GONE) from None

    def _receive(self) -> bytes:
        try:
            return self._line.recv_bytes(local_socket.MOST)
        except (EOFError, OSError):
            raise RunError(_GONE) from None


_GONE = (
    "Flower's SuperLink or ServerApp has ended; look into its log in the run's folder, then go on "
    "with `isonomy serve --resume RUN`."
)
