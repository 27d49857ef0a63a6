"""Replies are taken as they become complete; one that never does holds nobody up."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from isonomy.federation.flower import server_app
from isonomy.federation.flower.message_content import content_of, record_of
from isonomy.federation.flower.reply_collector import MOST, BrokenReply, ReplyCollector

RUN = 5


class SuperLink:
    """Stands for Flower's client of the SuperLink: a reply can be announced without its parts."""

    def __init__(self) -> None:
        self.announced: list[tuple[Any, Any]] = []
        self.objects: dict[str, bytes] = {}
        self.lost: set[str] = set()
        self.confirmed: list[str] = []

    def announce(self, to: str, content: bytes) -> dict[str, bytes]:
        """Announce a reply; returns its parts."""
        about = Metadata(RUN, "", 7, 1, to, "1", 0.0, 1e9, "query")
        reply = make_message(about, record_of(content))
        about.__dict__["_message_id"] = reply.object_id
        proto = message_to_proto(remove_content_from_message(reply))
        self.announced.append((proto, get_object_tree(reply)))
        return {k: v.deflate() for k, v in get_all_nested_objects(reply).items()}

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        found = [
            p for p in self.announced if p[0].metadata.reply_to_message_id in request.message_ids
        ]
        self.announced = [p for p in self.announced if p not in found]  # each is given once
        return PullAppMessagesResponse(
            messages_list=[about for about, _ in found],
            message_object_trees=[pieces for _, pieces in found],
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.objects.get(request.object_id, b"")
        return PullObjectResponse(
            object_found=request.object_id not in self.lost,
            object_available=bool(content),
            object_content=content,
        )

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link() -> SuperLink:
    return SuperLink()


def collecting(link: SuperLink) -> ReplyCollector:
    run = SimpleNamespace(run_id=RUN)
    return ReplyCollector(SimpleNamespace(_runtime_client=link, node=Node(node_id=1), run=run))


def taken(collector: ReplyCollector, *messages: str) -> dict[str, Any]:
    return {
        to: content_of(got) if isinstance(got, Message) else str(got)
        for to, got in collector.take(messages)
    }


def test_a_reply_without_its_parts_does_not_hold_up_others(link: SuperLink) -> None:
    collector = collecting(link)
    link.objects |= link.announce("a", b"first")
    held = link.announce("b", b"second")
    link.objects |= link.announce("c", b"third")
    begin = time.monotonic()
    assert taken(collector, "a", "b", "c") == {"a": b"first", "c": b"third"}
    assert taken(collector, "b") == {}
    number, *others = held
    link.objects[number] = held[number]
    assert taken(collector, "b") == {}
    link.objects |= {k: held[k] for k in others}
    assert taken(collector, "b") == {"b": b"second"}
    assert len(link.confirmed) == 3
    assert time.monotonic() - begin < 1  # Flower would wait a second before its second attempt


def test_replies_that_cannot_be_put_together_are_named(link: SuperLink) -> None:
    collector = collecting(link)
    link.lost |= set(link.announce("a", b"first"))
    about, _ = link.announce("b", b"second") and link.announced.pop()
    many = ObjectTree(object_id="0" * 64)
    many.children.extend(ObjectTree(object_id=f"{k:064d}") for k in range(1, MOST + 2))
    link.announced.append((about, many))
    wrong = link.announce("c", b"third")
    link.objects |= dict.fromkeys(wrong, b"not what was announced")
    got = taken(collector, "a", "b", "c")
    assert got["a"] == "a part of it did not arrive"
    assert got["b"] == f"it has more than {MOST} parts"
    assert got["c"].startswith("it cannot be read")


def test_an_exchange_ends_in_time_if_a_reply_is_announced_but_not_sent(
    link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = HttpGrid(token="x")
    monkeypatch.setattr(HttpGrid, "_runtime_client", link)
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=RUN))
    monkeypatch.setattr(server_app, "Message", SimpleNamespace)  # Flower's belong to a run
    monkeypatch.setattr(HttpGrid, "get_node_ids", lambda _: [100, 101])

    def push(_: HttpGrid, messages: list[Any]) -> list[str]:
        link.announce("100", b"never sent")
        link.objects |= link.announce("101", b"sent")
        return [str(message.dst_node_id) for message in messages]

    monkeypatch.setattr(HttpGrid, "push_messages", push)
    order = {"type": "train", "seconds": 1.0, "group": 1, "to": [[100, 0], [101, 0]]}
    begin = time.monotonic()
    got = {}
    for node, why, content in server_app.exchange(grid, order, [b"x"]):
        got[node] = why, content, time.monotonic() - begin
    assert got[101][:2] == ("", b"sent")
    assert got[101][2] < 0.9
    assert got[100][:2] == ("it did not reply within 1 s", b"")
    assert got[100][2] < 3


def test_a_broken_reply_is_reported_as_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def take(self, messages: Any) -> Any:
            return [(key, BrokenReply("a part of it did not arrive")) for key in list(messages)]

    monkeypatch.setattr(server_app, "collector", lambda _: Broken())
    monkeypatch.setattr(server_app, "Message", SimpleNamespace)
    grid = SimpleNamespace(push_messages=lambda made: [str(m.dst_node_id) for m in made])
    order = {"type": "train", "seconds": 5, "group": 1, "to": [[100, 0]]}
    [(node, why, _)] = server_app.exchange(grid, order, [b"x"])
    assert (node, why) == (100, "its reply is malformed: a part of it did not arrive")
