"""A participant that spoils its replies, each round in another way; started like `isonomy`."""

from __future__ import annotations

from isonomy.cli import main
from isonomy.core import tree
from isonomy.federation.flower import codec
from isonomy.federation.participant import Participant

_honest = Participant.answer


def _changed(reply: bytes, change) -> bytes:
    head, value = codec.unpack(reply)
    return codec.pack(head, tree.tmap(change, value))


WAYS = (
    lambda reply: _changed(reply, lambda t: t * float("nan")),
    lambda reply: _changed(reply, lambda t: t.unsqueeze(0)),
    lambda reply: reply + b"\0" * 3_000_000,
    lambda reply: b"\x80\x04\x95nonsense",
)
MEANINGS = ("not finite", "has shape", "too large", "malformed")


def answer(self: Participant, request: bytes) -> bytes:
    head = codec.header(request)
    reply = _honest(self, request)
    if head["kind"] == "phase" and not head["phase"].startswith("measure:") and head["round"] < 4:
        return WAYS[head["round"]](reply)
    return reply


if __name__ == "__main__":
    Participant.answer = answer  # type: ignore[method-assign]
    main()
