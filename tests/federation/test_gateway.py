"""Whom the gateway lets through, what it says to the others, and what they cannot do to it."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation.gates import Echo, Running, running
from isonomy.errors import ConfigError
from isonomy.federation.flower import connection, gateway, keys


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("gate")) as made:
        yield made


def ask(gate: Running, headers: dict[str, str], body: bytes = b"x", path: str = "push") -> tuple:
    context = ssl.create_default_context(cafile=str(gate.keys / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", gate.port, timeout=30, context=context)
    try:
        connection.request("POST", f"/v1/fleet/{path}", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def resident(pid: int) -> int:
    """Megabytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") >> 20


def test_a_signed_request_is_passed_on(gate: Running) -> None:
    headers = keys.signed_headers(gate.keys / "north")
    assert ask(gate, headers, b"y" * 5_000_000) == (200, {"got": 5_000_000})


def test_every_refusal_says_its_reason(gate: Running, tmp_path: Path) -> None:
    keys.make(tmp_path / "other", ["stranger"])
    signed = keys.signed_headers(gate.keys / "north")
    forged = {
        **signed,
        "flwr-signature": keys.signed_headers(gate.keys / "south")["flwr-signature"],
    }
    for headers, reason in (
        ({}, "no key"),
        (keys.signed_headers(tmp_path / "other" / "stranger"), "unknown key"),
        (forged, "unknown key"),
        (keys.signed_headers(gate.keys / "west"), "not a client"),
    ):
        status, said = ask(gate, headers)
        assert (status, said["reason"]) == (401, reason)
    assert ask(gate, signed, path="../../v1/control")[0] == 403


def test_a_clock_that_is_wrong_is_told_apart(
    gate: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = dt.datetime

    class Late(true):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
            return true.now(tz) + dt.timedelta(hours=1)

    monkeypatch.setattr(keys.dt, "datetime", Late)
    with pytest.raises(
        ConfigError, match=r"by more than 5 minutes; the server has 20.* UTC. Correct"
    ):
        connection.ask_gate(("127.0.0.1", gate.port), gate.keys / "north", gate.keys / "ca.crt")


def test_keys_in_use_and_unknown_and_of_others_are_told_apart(
    gate: Running, tmp_path: Path
) -> None:
    here, ca = ("127.0.0.1", gate.port), gate.keys / "ca.crt"
    assert connection.ask_gate(here, gate.keys / "south", ca) is None
    ask(gate, keys.signed_headers(gate.keys / "south"))
    heard = connection.ask_gate(here, gate.keys / "south", ca)
    assert heard is not None
    assert heard < 15
    keys.make(tmp_path / "other", ["stranger"])
    with pytest.raises(ConfigError, match="does not know the key"):
        connection.ask_gate(here, tmp_path / "other" / "stranger", ca)
    with pytest.raises(ConfigError, match=r"knows the key .* is not a client of this run; ask the"):
        connection.ask_gate(here, gate.keys / "west", ca)
    with pytest.raises(ConfigError, match="not signed by the authority in --ca"):
        connection.ask_gate(here, gate.keys / "south", tmp_path / "other" / "ca.crt")
    with pytest.raises(ConfigError, match="is not a private key"):
        connection.ask_gate(here, ca, ca)


def test_another_host_and_an_expired_certificate_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_hosts", lambda _: ["elsewhere.example.org"])
    keys.make(tmp_path / "host", ["north"])
    monkeypatch.undo()
    monkeypatch.setattr(keys, "DAYS", 0)  # it is valid from five minutes ago until then
    keys.make(tmp_path / "old", ["north"])
    monkeypatch.undo()
    for name, reason in (("host", "for another"), ("old", "has expired")):
        folder = tmp_path / name
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            at = ("127.0.0.1", server.server_address[1])
            with pytest.raises(ConfigError, match=reason):
                connection.ask_gate(at, folder / "north", folder / "ca.crt")
            server.shutdown()
    with pytest.raises(ConfigError, match=r"is valid from .* make new keys"):
        keys.check_certificate(tmp_path / "old" / "server.crt", "localhost")
    with pytest.raises(ConfigError, match=r"not for 127\.0\.0\.1, so participants would refuse it"):
        keys.check_certificate(tmp_path / "host" / "server.crt", "127.0.0.1")
    keys.check_certificate(tmp_path / "host" / "server.crt", "elsewhere.example.org")
    keys.check_certificate(tmp_path / "host" / "server.crt", "0.0.0.0")


def test_too_many_requests_of_one_key_are_refused_as_busy(gate: Running) -> None:
    """The requests before it are not finished; another participant is served."""
    context = ssl.create_default_context(cafile=str(gate.keys / "ca.crt"))
    signed = keys.signed_headers(gate.keys / "north")
    with contextlib.ExitStack() as stack:
        for _ in range(gateway.AT_ONCE):
            one = http.client.HTTPSConnection("127.0.0.1", gate.port, timeout=30, context=context)
            stack.callback(one.close)
            one.putrequest("POST", "/v1/fleet/push")
            for name, value in (*signed.items(), ("content-length", "1000")):
                one.putheader(name, value)
            one.endheaders(b"x")
        until = time.monotonic() + 20
        while (got := ask(gate, signed))[0] == 200 and time.monotonic() < until:
            time.sleep(0.05)
        assert (got[0], got[1]["reason"]) == (503, "busy")
        assert ask(gate, keys.signed_headers(gate.keys / "south"))[0] == 200
    until = time.monotonic() + 60
    while ask(gate, signed)[0] != 200:
        assert time.monotonic() < until
        time.sleep(0.2)


def test_large_requests_of_strangers_are_not_read(gate: Running) -> None:
    """Fifty at once, none of which is finished: a participant is still served."""
    context = ssl.create_default_context(cafile=str(gate.keys / "ca.crt"))
    head = "POST /v1/fleet/push HTTP/1.1\r\nhost: gate\r\ncontent-length: 60000000\r\n\r\n"
    before = resident(gate.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            plain = socket.create_connection(("127.0.0.1", gate.port), 30)
            one = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            with contextlib.suppress(OSError):  # it is closed while we write
                one.sendall(head.encode())
                for _ in range(4):
                    one.sendall(b"z" * 1_000_000)
        assert ask(gate, keys.signed_headers(gate.keys / "north"))[0] == 200
        assert resident(gate.pid) - before < 60


def test_idle_strangers_do_not_stop_a_participant(gate: Running) -> None:
    gateway.allow_many_files()
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", gate.port), 30))
        begin = time.monotonic()
        assert ask(gate, keys.signed_headers(gate.keys / "north"))[0] == 200
        assert time.monotonic() - begin < 10


def test_a_connection_without_a_request_is_closed(gate: Running) -> None:
    context = ssl.create_default_context(cafile=str(gate.keys / "ca.crt"))
    plain = socket.create_connection(("127.0.0.1", gate.port), gateway.IDLE + 10)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as one:
        one.sendall(b"POST /v1/fleet/push HT")  # and nothing more
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert one.recv(1) == b""
        assert time.monotonic() - begin < gateway.IDLE + 5
