"""Bytes between two processes of one machine, over a socket that only their owner can open.

Flower starts the process of the ServerApp, which only passes bytes on: the work is done by the
process of `isonomy serve`.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

MOST = 1 << 31  # bytes of one message
GRACE = 10.0  # seconds in which Flower may end by itself


@contextmanager
def listening() -> Iterator[tuple[Listener, str]]:
    """A listener at a new address, and the address."""
    folder = tempfile.mkdtemp(prefix="isonomy-")  # short, because a socket's path has a limit
    address = str(Path(folder) / "socket")
    old = os.umask(0o077)
    try:
        listener = Listener(address, "AF_UNIX", backlog=64)
    finally:
        os.umask(old)
    try:
        yield listener, address
    finally:
        listener.close()
        os.rmdir(folder)


def connect(address: str) -> Connection:
    """A connection to a listener; use `send_bytes` and `recv_bytes` only, which do not pickle."""
    return Client(address, "AF_UNIX")


def end_with_parent() -> None:
    """End this process a few seconds after its parent ends.

    Flower's processes end by themselves too, but only after trying to reach a SuperLink that has
    ended as well.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
