"""The gateway between the network and the SuperLink: it passes on participants' requests only.

A SuperLink serves everything at one port: participants, and also clients that start an app or
register a key, which need no password. It therefore listens on this machine only, and the gateway
listens on the network and passes on the requests of participants, which are signed.
"""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Any

PARTICIPANTS = "/v1/fleet/"
LARGEST = 64 << 20  # bytes of one request; Flower sends arrays in pieces of 5 MB
_OURS = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


def make(inside: str, ca: str) -> Any:
    """The application that passes requests on to the SuperLink at `inside`."""
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    verify = ssl.create_default_context(cafile=ca)
    client = httpx.AsyncClient(base_url=f"https://{inside}", verify=verify, timeout=120)

    async def pass_on(request: Request) -> Response:
        path = request.url.path
        if not path.startswith(PARTICIPANTS) or ".." in path:
            return Response("not for participants", 403)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST:
                return Response("too large", 413)
        headers = [(k, v) for k, v in request.headers.items() if k not in _OURS]
        try:
            answer = await client.request(
                request.method, path, content=bytes(body), headers=headers
            )
        except httpx.HTTPError:
            return Response("the SuperLink does not answer", 503)
        kept = {k: v for k, v in answer.headers.items() if k not in {*_OURS, "content-encoding"}}
        return Response(answer.content, answer.status_code, kept)

    methods = ["GET", "POST", "PUT", "DELETE", "PATCH"]
    return Starlette(routes=[Route("/{path:path}", pass_on, methods=methods)])


def main() -> None:
    """Listen until stopped."""
    import uvicorn

    parser = argparse.ArgumentParser()
    for name in ("host", "port", "inside", "keys"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    keys = Path(given.keys)
    uvicorn.run(
        make(given.inside, str(keys / "ca.crt")),
        host=given.host,
        port=int(given.port),
        ssl_certfile=str(keys / "server.crt"),
        ssl_keyfile=str(keys / "server.key"),
        log_level="warning",
    )


if __name__ == "__main__":
    main()
