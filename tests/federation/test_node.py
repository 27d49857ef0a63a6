"""A participant's node: it fetches, answers, repeats what did not arrive, and says goodbye."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

from federation.fleet import NODE, Fleet
from isonomy.errors import ConfigError
from isonomy.federation.flower import connection, keys, node
from isonomy.federation.flower.message_content import content_of, record_of


def reverse(content: bytes) -> bytes:
    return content[::-1]


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Keeps a connection until every message is answered; returns what was noted."""
    keys.make(tmp_path / "keys", ["north"])
    monkeypatch.setattr(node, "SHORT", 0.01)
    monkeypatch.setattr(connection, "PAUSE", 0.01)
    monkeypatch.setattr(connection.Connection, "_wait_for_port", lambda _: False)
    monkeypatch.setattr(connection.Connection, "_ask_gate", lambda _: None)

    def join(fleet: Fleet, answer: Callable[[bytes], bytes] = reverse) -> list[str]:
        monkeypatch.setattr(node, "FleetHttpClient", fleet)
        ended, notes = threading.Event(), []
        fleet.done = ended.set
        connection.Connection(
            "127.0.0.1:1",
            key=tmp_path / "keys" / "north",
            ca=tmp_path / "keys" / "ca.crt",
            ended=ended,
            note=notes.append,
        ).keep(answer)
        return notes

    return join


class Clock:
    now = 50.0

    def monotonic(self) -> float:
        return self.now


def wait_for_message(pace: node.Pace, clock: Clock, gap: float) -> tuple[int, float]:
    """The requests until a message is found that is there after `gap` s, and the s lost."""
    there = clock.now + gap
    clock.now += pace.replied()
    asked = 1
    while clock.now < there:
        clock.now += pace.nothing()
        asked += 1
    pace.came()
    return asked, clock.now - there


def test_messages_are_asked_for_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(node, "time", clock)
    pace = node.Pace()
    first = wait_for_message(pace, clock, 6.0)
    later = [wait_for_message(pace, clock, 6.0) for _ in range(50)]
    assert max(asked for asked, _ in later) <= 6 < first[0]
    assert max(lost for _, lost in later) < 1.2  # a pause, of 0.8 s on average
    for _ in range(8):  # training becomes faster
        wait_for_message(pace, clock, 0.5)
    assert max(wait_for_message(pace, clock, 0.5)[1] for _ in range(50)) < 0.6
    for _ in range(3):  # a very slow one
        wait_for_message(pace, clock, 500.0)
    assert pace.replied() == node.LATEST  # a server that was started again does not wait for long


@pytest.mark.parametrize("size", [3, 6_000_000])
def test_messages_are_answered_whole(joining: Callable, size: int) -> None:
    """Also those that Flower sends in several pieces."""
    content = b"ab" * size
    fleet = Fleet(record_of(content), record_of(b"second"))
    assert joining(fleet) == []
    assert [content_of(fleet.answer(k)) for k in (0, 1)] == [content[::-1], b"dnoces"]
    about = fleet.replies[0].metadata
    assert (about.src_node_id, about.dst_node_id, about.group_id) == (NODE, 1, "1")
    assert fleet.asked[0] == "ActivateNode"
    assert fleet.asked[-2:] == ["DeactivateNode", "close"]
    assert "RegisterNode" not in fleet.asked  # the organiser registers keys
    assert all(keys.HEADERS[1] in headers for headers in fleet.headers)  # every request is signed


def test_what_is_not_isonomys_is_answered_with_an_error(joining: Callable) -> None:
    odd = RecordDict({"other": ConfigRecord({"x": 1})})
    fleet = Fleet(odd, record_of(b"good"))
    joining(fleet)
    assert fleet.answer(0).has_error()
    assert content_of(fleet.answer(1)) == b"doog"


def refusal(status: int, text: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://test")
    response = httpx.Response(status, text=text, request=request)
    return httpx.HTTPStatusError("refused", request=request, response=response)


def test_requests_that_do_not_arrive_are_repeated(joining: Callable) -> None:
    fleet = Fleet(record_of(b"abc"))
    fleet.errors = {
        "PullMessages": [httpx.ConnectError("down"), httpx.ReadTimeout("slow")],
        "PushObject": [refusal(503, '{"reason": "the SuperLink does not answer"}')],
        "SendNodeHeartbeat": [httpx.ConnectError("down")],
    }
    assert joining(fleet) == ["not connected; trying again."] * 2  # once before and once after it
    assert content_of(fleet.answer()) == b"cba"


def test_a_request_that_fails_in_the_superlink_is_repeated_for_a_while(
    joining: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LONG", 0.01)
    fleet = Fleet(record_of(b"lost"), record_of(b"abc"))
    locked = '{"detail": "Internal server error"}'
    fleet.errors = {"PushMessages": [refusal(500, locked) for _ in range(node.TRIES + 3)]}
    (note,) = joining(fleet)
    assert "Internal server error" in note  # of the first message
    assert fleet.asked.count("PushMessages") == node.TRIES + 4
    assert content_of(fleet.answer()) == b"cba"


def test_a_part_that_is_not_stored_is_sent_again(joining: Callable) -> None:
    fleet = Fleet(record_of(b"abc"))
    fleet.unstored = 3
    assert joining(fleet) == []
    assert content_of(fleet.answer()) == b"cba"


def test_a_server_that_does_not_know_the_node_is_joined_again(joining: Callable) -> None:
    fleet = Fleet(record_of(b"abc"))
    fleet.errors = {"PullMessages": [refusal(401, "")]}
    joining(fleet)
    assert fleet.asked.count("ActivateNode") == 2
    assert content_of(fleet.answer()) == b"cba"


def test_a_reply_that_is_refused_does_not_end_the_participant(joining: Callable) -> None:
    fleet = Fleet(record_of(b"first"), record_of(b"abc"))
    fleet.errors = {"PushMessages": [refusal(403, '{"code": 2006, "detail": "the run is over"}')]}
    (note,) = joining(fleet)
    assert "the run is over" in note
    assert content_of(fleet.answer()) == b"cba"


def test_a_key_in_use_is_tried_again_for_a_while(
    joining: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = '{"code": 2004, "detail": "activation failed"}'
    fleet = Fleet()
    fleet.errors = {"ActivateNode": [refusal(400, busy), refusal(400, busy)]}
    assert ["in use" in note for note in joining(fleet)] == [True]  # it is said once
    monkeypatch.setattr(connection, "PATIENCE", -1.0)
    fleet.errors = {"ActivateNode": [refusal(400, busy)]}
    with pytest.raises(ConfigError, match="another `isonomy join` uses the key"):
        joining(fleet)


def test_a_wrong_certificate_ends_it_at_once(joining: Callable) -> None:
    fleet = Fleet()
    fleet.errors = {"ActivateNode": [httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] no")]}
    with pytest.raises(ConfigError, match="was not signed by the authority"):
        joining(fleet)


def test_without_keys_a_node_registers_itself(
    joining: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(record_of(b"abc"))
    joining(Fleet())  # sets everything else up
    monkeypatch.setattr(node, "FleetHttpClient", fleet)
    ended = threading.Event()
    fleet.done = ended.set
    given = {"key": None, "ca": None, "ended": ended, "note": print}
    connection.Connection("127.0.0.1:1", **given).keep(reverse)
    assert fleet.asked[:2] == ["RegisterNode", "ActivateNode"]
    assert content_of(fleet.answer()) == b"cba"
    with pytest.raises(ConfigError, match="this machine only"):
        connection.Connection("example.org:1", **given)


def test_another_version_of_flower_is_refused(
    joining: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isonomy.federation import flower

    monkeypatch.setitem(sys.modules, "flwr.supernode.fleet_http_client", None)
    monkeypatch.delitem(sys.modules, "isonomy.federation.flower.node")
    monkeypatch.delattr(flower, "node")
    with pytest.raises(ConfigError, match="version of Flower cannot be used"):
        connection._flower()
