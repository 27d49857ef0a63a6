"""Requests to the gateway, as bytes over TLS: it answers or closes, and serves participants."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from federation.gates import Running, running
from fuzz.fuzzer import Fuzzer, Try
from fuzz.guard import Bug
from fuzz.mutations import damaged
from isonomy.federation.flower import keys

KEY, SIGNATURE, TIME = keys.HEADERS
LINES = [
    b"POST /v1/fleet/push HTTP/1.1\r\n",
    b"GET /v1/isonomy/who HTTP/1.1\r\n",
    b"host: gate\r\n",
    b"content-length: 5\r\n",
    b"content-length: -1\r\n",
    b"content-length: 99999999999999999999\r\n",
    b"content-length: 5, 6\r\n",
    b"transfer-encoding: chunked\r\n",
    b"expect: 100-continue\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    KEY.encode() + b": x\r\n",
    SIGNATURE.encode() + b": \xff\xfe\r\n",
    TIME.encode() + b": 0001-01-01T00:00:00+23:59\r\n",
    TIME.encode() + b": 9999-12-31T23:59:59.999999-23:59\r\n",
    TIME.encode() + b": 2026-01-01\r\n",
    b"\x00" * 40,
    b"x: " + b"y" * 70_000 + b"\r\n",
]
SIGNED = b"@SIGNED@"  # stands for the headers of a participant, which are made anew
SAMPLES = [
    b"POST /v1/fleet/push HTTP/1.1\r\nhost: gate\r\ncontent-length: 5\r\n@SIGNED@\r\nhello",
    b"GET /v1/isonomy/who HTTP/1.1\r\nhost: gate\r\n@SIGNED@\r\n",
    b"POST /v1/fleet/push HTTP/1.1\r\nhost: gate\r\ntransfer-encoding: chunked\r\n@SIGNED@\r\n"
    b"5\r\nhello\r\n0\r\n\r\n",
    b"GET /v1/fleet/../control HTTP/1.1\r\nhost: gate\r\n\r\n",
    b"PUT /docs HTTP/1.0\r\n\r\n",
]
_single = damaged(SAMPLES, LINES, most=4)
_cases = _single | st.lists(_single, min_size=2, max_size=3).map(b"".join)


def _signed(gate: Running, who: str = "north") -> dict[str, str]:
    return keys.signed_headers(gate.keys / who)


@contextmanager
def requests(folder: Path) -> Iterator[Try]:

    with running(folder) as gate:
        context = ssl.create_default_context(cafile=str(gate.keys / "ca.crt"))

        def connected() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", gate.port), 60)
            return context.wrap_socket(plain, server_hostname="127.0.0.1")

        def one(case: bytes) -> None:
            lines = "".join(f"{k}: {v}\r\n" for k, v in _signed(gate, "south").items())
            with connected() as stream, contextlib.suppress(OSError):
                stream.sendall(case.replace(SIGNED, lines.encode()))
                stream.settimeout(0.02)  # an answer may come, or not
                stream.recv(1 << 16)
            with connected() as stream:  # a participant is served as before
                link = http.client.HTTPConnection("gate")
                link.sock = stream
                link.request("POST", "/v1/fleet/push", b"hello", _signed(gate))
                answer = link.getresponse()
                if (answer.status, json.loads(answer.read())) != (200, {"got": 5}):
                    raise Bug(f"a participant got {answer.status}")
            said = gate.log.read_text(errors="replace")
            if "Traceback" in said or "ERROR" in said:
                gate.log.write_text("")
                raise Bug(f"the gateway reports {said[-600:]}")

        yield one


FUZZERS = [Fuzzer("gate", _cases, requests)]
