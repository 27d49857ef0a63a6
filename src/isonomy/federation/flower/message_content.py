"""Isonomy's bytes as the content of Flower's messages."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

CONTENT = "isonomy"


def content_of(message: Message) -> bytes:
    """The bytes in a message."""
    return bytes(message.content.array_records[CONTENT]["bytes"].data)


def record_of(content: bytes) -> RecordDict:
    """Bytes as a message's content: one array, which Flower sends in pieces if it is large."""
    array = Array(dtype="uint8", shape=(len(content),), stype="isonomy", data=content)
    return RecordDict({CONTENT: ArrayRecord({"bytes": array})})
