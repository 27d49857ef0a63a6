"""Isonomy's bytes as the content of Flower's messages."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

CONTENT = "isonomy"
SMALL = 4 << 20  # bytes that are sent as one value


def content_of(message: Message) -> bytes:
    """The bytes in a message."""
    content = message.content
    if CONTENT in content.config_records:
        value = content.config_records[CONTENT]["bytes"]
        if not isinstance(value, bytes):
            raise TypeError("it is not a message of isonomy")
        return value
    return bytes(content.array_records[CONTENT]["bytes"].data)


def record_of(content: bytes) -> RecordDict:
    """Bytes as a message's content: one value or, if it is large, an array.

    Flower sends the parts of a message one by one: three with a value, and five or more with an
    array, because an array is sent in pieces of 5 MB.
    """
    if len(content) <= SMALL:
        return RecordDict({CONTENT: ConfigRecord({"bytes": content})})
    array = Array(dtype="uint8", shape=(len(content),), stype="isonomy", data=content)
    return RecordDict({CONTENT: ArrayRecord({"bytes": array})})
