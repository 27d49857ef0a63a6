"""Fast ClientApp processes: one process imports Flower once and forks for each message.

A SuperNode starts the program `flwr-clientapp` for every message, which spends nearly all of its
time on imports. `write_shim` puts a program of that name before Flower's own on the path. It passes
its arguments to the process of `main`, which forks and runs what Flower's program would have run,
with the participant's own app (`own_app`). If that process does not answer, the shim does the same.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from multiprocessing.connection import Listener
from pathlib import Path

PROGRAM = "flwr-clientapp"
_SHIM = """\
#!{python} -IS
import json, os, socket, struct, sys
try:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect({address!r})
        content = json.dumps(sys.argv[1:]).encode()
        connection.sendall(struct.pack("!i", len(content)) + content)
        taken = connection.recv(1) != b""
except OSError:
    taken = False
if not taken:
    own = [{python!r}, "-m", "isonomy.federation.flower.own_app"]
    os.execv(own[0], [*own, *sys.argv[1:]])
"""


def write_shim(folder: Path, address: str) -> Path:
    """Write the program; returns the folder to put on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    shim = folder / PROGRAM
    shim.write_text(_SHIM.format(python=sys.executable, address=address))
    shim.chmod(0o700)
    return folder


def main() -> None:
    """Wait for arguments, and fork for each."""
    import flwr.clientapp  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    from isonomy.federation.flower import client_app, local_socket, own_app  # noqa: F401

    own_app.use_own_app()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes children that ended
    os.umask(0o077)
    listener = Listener(sys.argv[1], "AF_UNIX", backlog=16)
    while True:
        with listener.accept() as connection:
            arguments = json.loads(connection.recv_bytes(1 << 16))
            if os.fork():
                connection.send_bytes(b"1")
                continue
            listener._listener._unlink = None  # type: ignore[attr-defined]  # the parent removes it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        local_socket.end_with_parent()
        sys.argv = [PROGRAM, *arguments]
        try:
            flwr_clientapp()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
