"""The gateway between the network and the SuperLink: it passes on participants' requests only.

A SuperLink serves everything at one port: participants, and also clients that start an app or
register a key, which need no password. It therefore listens on this machine only, and the gateway
listens on the network and passes on the requests of participants, which are signed.

A request is judged by its headers before its body is read, and bodies are passed on piece by piece,
so strangers cost little memory. A connection that sends no request is closed after `IDLE` seconds,
and if there are more than `MOST` of them, the oldest are closed at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isonomy.federation.flower import keys as key_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

PARTICIPANTS = "/v1/fleet/"
WHO = "/v1/isonomy/who"  # tells a participant whether its requests would be passed on
KEY, SIGNATURE, TIME = key_files.HEADERS
WINDOW = 300.0  # seconds by which the clock of a request may differ, as for Flower
LARGEST = 64 << 20  # bytes of one request; Flower sends arrays in pieces of 5 MB
AT_ONCE = 16  # requests of one key
IDLE = 10.0  # seconds in which a new connection must send a request
SLOW = 30.0  # seconds in which the next piece of a body must arrive
MOST = 2000  # connections without a request
_OURS = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


class Gate:
    """Whose requests pass: those signed with the key of a client, at about the right time.

    `others` are the keys, among `keys`, of participants that are not clients of this run. Their
    requests are refused too, with a reason of their own.
    """

    def __init__(
        self,
        keys: Mapping[bytes, EllipticCurvePublicKey],
        others: Collection[bytes] = (),
    ) -> None:
        self.keys = keys  # by the bytes that are in a request's header
        self.others = frozenset(others)
        self.heard: dict[bytes, float] = {}  # when a request of each key last passed
        self.open: Counter[bytes] = Counter()

    def sender(self, headers: Mapping[str, str]) -> bytes:
        """The key of a request; raises PermissionError with the reason why it does not pass."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            name = b64decode(headers[KEY], validate=True)
            signature = b64decode(headers[SIGNATURE], validate=True)
            stamp = headers[TIME]
            age = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(stamp)).total_seconds()
        except (KeyError, ValueError, TypeError):
            raise PermissionError("no key") from None
        if name not in self.keys:
            raise PermissionError("unknown key")
        try:
            self.keys[name].verify(signature, stamp.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise PermissionError("unknown key") from None
        if abs(age) > WINDOW:
            raise PermissionError("clock")
        if name in self.others:
            raise PermissionError("not a client")
        return name


def make(inside: str, ca: str, gate: Gate) -> Any:
    """The application that passes requests on to the SuperLink at `inside`."""
    import ssl

    import httpx
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    verify = ssl.create_default_context(cafile=ca)
    client = httpx.AsyncClient(
        base_url=f"https://{inside}",
        verify=verify,
        timeout=120,
        limits=httpx.Limits(max_connections=None),
    )

    def refused(reason: str, status: int) -> Response:
        now = dt.datetime.now(dt.UTC).isoformat()
        # the rest of a refused request is not read
        return JSONResponse({"reason": reason, "time": now}, status, {"connection": "close"})

    async def answer(request: Request) -> Response:
        path = request.url.path
        if path != WHO and (not path.startswith(PARTICIPANTS) or ".." in path):
            return refused("not for participants", 403)
        try:
            sender = gate.sender(request.headers)
        except PermissionError as error:
            return refused(str(error), 401)
        if path == WHO:
            heard = gate.heard.get(sender)
            return JSONResponse({"heard": None if heard is None else time.monotonic() - heard})
        if int(request.headers.get("content-length", "0")) > LARGEST:
            return refused("too large", 413)
        if gate.open[sender] >= AT_ONCE:
            return refused("busy", 503)
        gate.heard[sender] = time.monotonic()
        gate.open[sender] += 1
        try:
            return await pass_on(request)
        except httpx.HTTPError:
            return refused("the SuperLink does not answer", 503)
        except (TimeoutError, ClientDisconnect):
            return refused("too slow", 408)
        except OverflowError:
            return refused("too large", 413)
        finally:
            gate.open[sender] -= 1

    async def pass_on(request: Request) -> Response:
        headers = [(k, v) for k, v in request.headers.items() if k not in _OURS]
        if "content-length" in request.headers:
            headers.append(("content-length", request.headers["content-length"]))
        made = client.build_request(
            request.method, request.url.path, content=pieces(request.stream()), headers=headers
        )
        reply = await client.send(made, stream=True)
        kept = {k: v for k, v in reply.headers.items() if k not in _OURS}
        return StreamingResponse(
            reply.aiter_raw(), reply.status_code, kept, background=BackgroundTask(reply.aclose)
        )

    methods = ["GET", "POST", "PUT", "DELETE", "PATCH"]
    return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])


async def pieces(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A request's body; raises TimeoutError if it is slow, OverflowError if it is too large."""
    size = 0
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream), SLOW)
        except StopAsyncIteration:
            return
        size += len(piece)
        if size > LARGEST:
            raise OverflowError
        yield piece


def impatient() -> type:
    """The class of connections that are closed if they send no request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[H11Protocol, None] = {}  # in the order of their arrival

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            waiting[self] = None
            if len(waiting) > MOST:
                next(iter(waiting)).give_up()  # type: ignore[attr-defined]
            self.loop.call_later(IDLE, self.give_up)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None:
                waiting.pop(self, None)

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            super().connection_lost(exc)

        def give_up(self) -> None:
            """Close the connection, unless it has sent a request."""
            if self in waiting:
                del waiting[self]
                self.transport.abort()

    return Impatient


def gate_of(folder: Path, clients: Collection[str]) -> Gate:
    """The gate for the public keys in a folder, of which those of `clients` may pass."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    found = {path.stem: key_files.public_key(path) for path in sorted(folder.glob("*.pub"))}
    named = {
        name: key.public_bytes(serialization.Encoding.PEM, form) for name, key in found.items()
    }
    may = {named[name] for name in clients if name in named}
    return Gate(
        {named[name]: key for name, key in found.items()},
        {name for name in named.values() if name not in may},
    )


def allow_many_files() -> None:
    """Raise the limit of open files and connections as far as the system permits."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Listen until stopped."""
    import uvicorn

    parser = argparse.ArgumentParser()
    for name in ("host", "port", "inside", "keys"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--clients", nargs="+", required=True)
    given = parser.parse_args()
    keys = Path(given.keys)
    allow_many_files()
    uvicorn.run(
        make(given.inside, str(keys / "ca.crt"), gate_of(keys, given.clients)),
        host=given.host,
        port=int(given.port),
        http=impatient(),
        ws="none",
        ssl_certfile=str(keys / "server.crt"),
        ssl_keyfile=str(keys / "server.key"),
        log_level="warning",
    )


if __name__ == "__main__":
    main()
