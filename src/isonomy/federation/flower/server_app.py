"""The ServerApp: it connects the organiser's process with Flower's `Grid`.

`isonomy serve` runs the rounds. This process, which Flower starts, only sends its messages and
collects replies. It ends when the organiser's process ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from isonomy.federation.flower import local_socket
from isonomy.federation.flower.message_content import content_of, record_of
from isonomy.federation.flower.reply_collector import BrokenReply, collector

PAUSE, LONG = 0.3, 1.0  # seconds between checks for replies: after a reply, and at most
GROWTH = 1.25  # from one pause to the next
CHECK_NODES = 2.0  # seconds between checks for clients that have left
LATE = (3, 4)  # Flower's error codes: the message or the reply is gone, because its time is over
GONE = 5  # Flower's error code for a node that is not online any more
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the organiser until it closes the connection."""
    local_socket.end_with_parent()
    with local_socket.connect(str(context.run_config["isonomy"])) as organiser:
        while True:
            try:
                order = json.loads(organiser.recv_bytes(local_socket.MOST))
            except EOFError:
                return
            if order["do"] == "nodes":
                organiser.send_bytes(json.dumps(sorted(grid.get_node_ids())).encode())
            elif order["do"] == "ask":
                count = order["contents"]
                contents = [organiser.recv_bytes(local_socket.MOST) for _ in range(count)]
                for node, why, content in exchange(grid, order, contents):
                    organiser.send_bytes(json.dumps({"node": node, "why": why}).encode())
                    organiser.send_bytes(content)
                organiser.send_bytes(b"{}")
            else:
                return


def exchange(
    grid: Grid, order: dict[str, Any], contents: list[bytes]
) -> Iterator[tuple[int, str, bytes]]:
    """Every node's reply: its id, what went wrong (empty if nothing), and the bytes."""
    seconds = float(order["seconds"])
    made = [
        Message(
            content=record_of(contents[place]),
            message_type=order["type"],
            dst_node_id=node,
            ttl=seconds,
            group_id=str(order["group"]),
        )
        for node, place in order["to"]
    ]
    nodes = [node for node, _ in order["to"]]
    left = dict(zip(grid.push_messages(made), nodes, strict=True))
    replies = collector(grid)
    begin = checked = time.monotonic()
    gone: set[str] = set()  # nodes that had left at the last check; their replies may still come
    pause = PAUSE
    while left and time.monotonic() - begin < seconds:
        waiting = len(left)
        for key, message in replies.take(left):
            node = left.pop(key, None)
            if node is None:
                continue
            if isinstance(message, BrokenReply):
                yield node, f"its reply is malformed: {message}", b""
                continue
            if message.has_error():
                yield node, _reason(message.error.code, seconds), b""
                continue
            try:
                yield node, "", content_of(message)
            except (KeyError, AttributeError, TypeError, ValueError):
                yield node, "its reply is malformed: it is not a message of isonomy", b""
        if left and time.monotonic() - checked > CHECK_NODES:
            checked = time.monotonic()
            here = set(grid.get_node_ids())
            away = {key for key, node in left.items() if node not in here}
            for key in sorted(away & gone):
                yield left.pop(key), _reason(GONE, seconds), b""
            gone = away
        if left:
            pause = PAUSE if len(left) < waiting else min(GROWTH * pause, LONG)
            time.sleep(pause)
    for node in left.values():
        yield node, _reason(LATE[0], seconds), b""


def _reason(code: int, seconds: float) -> str:
    """What an error code of Flower means for a message that had so many seconds."""
    if code in LATE:
        return f"it did not reply within {seconds:g} s"
    return "it has left" if code == GONE else f"it could not answer (Flower's error {code})"
