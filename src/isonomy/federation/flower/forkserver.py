"""ClientApp processes without the wait: one process imports Flower once and forks for each message.

A SuperNode starts the program `flwr-clientapp` for every message, and nearly all of its time goes
into importing. `lay_out` puts a program of that name before Flower's own on the path; it hands its
arguments to a process that waits here, which forks and runs what Flower's program would have run.
Should nobody be waiting, it runs Flower's program itself.
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
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({address!r})
        content = json.dumps(sys.argv[1:]).encode()
        line.sendall(struct.pack("!i", len(content)) + content)
        taken = line.recv(1) != b""
except OSError:
    taken = False
if not taken:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def lay_out(folder: Path, address: str, real: str) -> Path:
    """Write the program that hands over; the folder to put on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    shim = folder / PROGRAM
    shim.write_text(_SHIM.format(python=sys.executable, address=address, real=real))
    shim.chmod(0o700)
    return folder


def main() -> None:
    """Wait for arguments; fork for each."""
    import flwr.clientapp  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    from isonomy.federation.flower import client_app, local_socket  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    os.umask(0o077)
    listener = Listener(sys.argv[1], "AF_UNIX", backlog=16)
    while True:
        with listener.accept() as line:
            arguments = json.loads(line.recv_bytes(1 << 16))
            if os.fork():
                line.send_bytes(b"1")
                continue
            listener._listener._unlink = None  # type: ignore[attr-defined]  # it is the parent's
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
