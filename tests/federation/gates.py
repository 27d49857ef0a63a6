"""The gateway as a process of its own, before a server that stands for the SuperLink."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from isonomy.federation.flower import keys
from isonomy.federation.flower.processes import free_port


class Echo(BaseHTTPRequestHandler):
    """Stands for the SuperLink: answers with the number of bytes that it got."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = 0
        if "content-length" in self.headers:
            while left := int(self.headers["content-length"]) - size:
                got = len(self.rfile.read(min(left, 1 << 20)))
                if not got:  # the sender has gone
                    self.close_connection = True
                    return
                size += got
        else:  # in chunks
            while chunk := int(self.rfile.readline(), 16):
                size += len(self.rfile.read(chunk + 2)) - 2
            self.rfile.readline()
        body = json.dumps({"got": size}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Running(NamedTuple):
    port: int
    keys: Path
    pid: int
    log: Path


@contextlib.contextmanager
def running(place: Path) -> Iterator[Running]:
    """A gateway for two participants and the key of a third, in a folder of its own."""
    folder, log = place / "keys", place / "gateway.log"
    keys.make(folder, ["north", "south", "west"])
    inside = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    inside.socket = context.wrap_socket(inside.socket, server_side=True)
    inside.handle_error = lambda *_: None  # type: ignore[method-assign]  # of requests cut off
    threading.Thread(target=inside.serve_forever, daemon=True).start()
    port = free_port()
    command = [sys.executable, "-m", "isonomy.federation.flower.gateway"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--keys", str(folder)]
    command += ["--inside", f"127.0.0.1:{inside.server_address[1]}", "--clients", "north", "south"]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stderr=out)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield Running(port, folder, child.pid, log)
    finally:
        child.kill()
        child.wait()
        inside.shutdown()
        inside.server_close()
