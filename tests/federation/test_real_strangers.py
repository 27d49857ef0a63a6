"""Strangers flood the address of a real federation: its rounds go on. Slow: `pytest -m slow`."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation.real import Place
from isonomy.federation.flower import gateway

pytestmark = pytest.mark.slow
IDLE, LARGE = 1000, 50


def test_idle_strangers_and_large_requests_do_not_stop_a_round(tmp_path: Path) -> None:
    """1,000 connections that say nothing and 50 requests of 60 MB are open while rounds are done.

    Another participant joins meanwhile. The strangers come again before every round.
    """
    gateway.allow_many_files()
    with Place(tmp_path, ("east", "north"), algorithm="fedavg", rounds=6) as place:
        place.serve()
        place.join("east")
        place.until("it is open", lambda: "participants can join" in place.said("organiser"))
        host, port = place.address.split(":")
        context = ssl.create_default_context(cafile=str(tmp_path / "keys/ca.crt"))
        head = "POST /v1/fleet/push HTTP/1.1\r\nhost: gate\r\ncontent-length: 60000000\r\n\r\n"

        def flood(stack: contextlib.ExitStack) -> None:
            for _ in range(IDLE):
                stack.enter_context(socket.create_connection((host, int(port)), 60))
            for _ in range(LARGE):
                plain = socket.create_connection((host, int(port)), 60)
                one = stack.enter_context(context.wrap_socket(plain, server_hostname=host))
                with contextlib.suppress(OSError):  # it is closed while we write
                    one.sendall(head.encode() + b"z" * 1_000_000)

        joined = False
        while len(place.rounds()) < 3:
            with contextlib.ExitStack() as stack:
                flood(stack)
                if not joined:
                    place.join("north")
                    joined = True
                done = len(place.rounds())
                place.until("the next round", lambda done=done: len(place.rounds()) > done)
        assert place.ends("organiser") == 0, place.logs()
        for who in place.names:
            assert place.ends(who) == 0, place.logs()
        assert [line["answered"] for line in place.rounds()] == [2] * 6
