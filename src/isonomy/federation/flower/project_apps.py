"""Apps for your own Flower project: they use Flower's `Grid` without `isonomy serve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from isonomy.federation.flower.message_content import content_of, record_of
from isonomy.federation.flower.server_app import exchange
from isonomy.federation.flower.transport import NoReply

Settings = Mapping[str, Any]


class GridTransport:
    """A transport to nodes over Flower's `Grid`."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> set[int]:
        """The nodes that are online."""
        return set(self._grid.get_node_ids())

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | NoReply]]:
        """Each node's reply, or why there is none."""
        to = [[node, place] for place, node in enumerate(requests)]
        order = {"to": to, "type": kind, "seconds": seconds, "group": group}
        for node, why, content in exchange(self._grid, order, list(requests.values())):
            yield node, NoReply(why) if why else content


def server_app(conduct: Callable[[GridTransport, Settings], None]) -> ServerApp:
    """A ServerApp that calls `conduct` with its transport and its run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        conduct(GridTransport(grid), dict(context.run_config))

    return app


def client_app(answering: Callable[[Settings], Callable[[bytes], bytes]]) -> ClientApp:
    """A ClientApp that answers with the function that `answering` makes from its node config."""
    app = ClientApp()

    @app.query()
    @app.train()
    @app.evaluate()
    def pass_on(message: Message, context: Context) -> Message:
        answer = answering(dict(context.node_config))
        return Message(record_of(answer(content_of(message))), reply_to=message)

    return app
