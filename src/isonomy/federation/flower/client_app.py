"""The ClientApp: it passes a message to the participant's own process and returns its answer.

Flower starts a new process for every message, so this module imports very little. The
participant's process is `isonomy join`; the node's config holds its address.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from isonomy.federation.flower import local_socket

CONTENT = "isonomy"
app = ClientApp()


def content_of(message: Message) -> bytes:
    """The bytes in a message."""
    return bytes(message.content.array_records[CONTENT]["bytes"].data)


def record_of(content: bytes) -> RecordDict:
    """Bytes as a message's content: one array, which Flower sends in pieces if it is large."""
    array = Array(dtype="uint8", shape=(len(content),), stype="isonomy", data=content)
    return RecordDict({CONTENT: ArrayRecord({"bytes": array})})


@app.query()
@app.train()
@app.evaluate()
def pass_on(message: Message, context: Context) -> Message:
    """Pass one message on and return its answer."""
    address = str(context.node_config["isonomy"])
    answer = local_socket.call(address, content_of(message))
    return Message(record_of(answer), reply_to=message)
