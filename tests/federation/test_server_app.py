"""What the ServerApp reports of nodes that do not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import ErrorCode

from isonomy.federation.flower import server_app
from isonomy.federation.flower.server_app import GONE, LATE, exchange


class Failing:
    """A grid on which every node fails with its own error of Flower."""

    def __init__(self, codes: dict[int, int]) -> None:
        self.codes = codes

    def push_messages(self, messages: list[Any]) -> list[str]:
        return [str(message.dst_node_id) for message in messages]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=key),
                has_error=lambda: True,
                error=SimpleNamespace(code=self.codes[int(key)]),
            )
            for key in ids
        ]


def test_flowers_errors_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "Message", SimpleNamespace)  # Flower's belong to a run
    assert LATE == (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
    assert GONE == ErrorCode.NODE_UNAVAILABLE
    codes = {100: 3, 101: 4, 102: 5, 103: 8}
    order = {"type": "train", "seconds": 40, "group": 1, "to": [[node, 0] for node in codes]}
    got = {node: why for node, why, _ in exchange(Failing(codes), order, [b"x"])}
    assert got[100] == got[101] == "it did not reply within 40 s"
    assert got[102] == "it has left"
    assert "Flower's error 8" in got[103]
