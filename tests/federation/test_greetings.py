"""How often the organiser greets a participant that is connected, but does not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from isonomy.federation import sessions
from isonomy.federation.flower import codec
from isonomy.federation.flower.transport import NoReply


class Clock:
    """Time that passes only while someone is waited for."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Nodes:
    """Node 100 answers at once, node 101 only if it does not hang."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.online, self.hangs = clock, {100, 101}, True
        self.greeted: list[float] = []  # when node 101 was

    def nodes(self) -> set[int]:
        return self.online

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | NoReply]]:
        if 100 in requests:
            yield 100, codec.pack({"ok": True})
        if 101 in requests:
            self.greeted.append(self.clock.now)
            if self.hangs:
                self.clock.now += seconds
                yield 101, NoReply(f"it did not reply within {seconds:g} s")
            else:
                yield 101, codec.pack({"ok": True})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sessions, "time", made)
    return made


def start(clock: Clock) -> tuple[Nodes, sessions.Sessions]:
    nodes = Nodes(clock)
    charter = {"run": "0" * 32, "clients": ["east", "north"]}
    known = {"east": 100, "north": 101}
    made = sessions.Sessions(nodes, charter, session="0" * 32, done=0, timeout=40, nodes=known)
    return nodes, made


def test_others_do_not_wait_in_every_round_for_one_that_hangs(clock: Clock) -> None:
    nodes, made = start(clock)
    begin = clock.now
    for _ in range(200):  # rounds of 4 s
        assert made.present() == {0}
        clock.now += 4
    waited = clock.now - begin - 800
    assert waited == len(nodes.greeted) * sessions.GREETING
    assert waited < 0.25 * 800
    pauses = [
        b - a - sessions.GREETING for a, b in zip(nodes.greeted, nodes.greeted[1:], strict=False)
    ]
    for least, pause in zip((20, 40, 80, 160, 300), pauses, strict=False):
        assert least <= pause < least + 4  # it is asked in the next round
    nodes.hangs = False
    clock.now += sessions.MOST
    assert made.present() == {0, 1}


def test_one_that_leaves_and_comes_back_is_greeted_at_once(clock: Clock) -> None:
    nodes, made = start(clock)
    for _ in range(30):
        made.present()
        clock.now += 4
    nodes.online = {100}
    made.present()
    nodes.online, nodes.hangs = {100, 101}, False
    assert made.present() == {0, 1}
