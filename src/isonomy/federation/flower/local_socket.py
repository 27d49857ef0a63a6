"""Bytes between two processes on one machine, over a socket that only their owner can open.

Flower starts a new process for every message. Such a process only carries bytes: the work is done
by one that stays, so that neither torch nor the table is loaded for each message.
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
GRACE = 10.0  # seconds that Flower has to end by itself


@contextmanager
def listening() -> Iterator[tuple[Listener, str]]:
    """A listener at a fresh address, and the address."""
    folder = tempfile.mkdtemp(prefix="isonomy-")  # short: a socket's path has a limit
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
    """A connection to a listener; `send_bytes` and `recv_bytes` only, which pickle nothing."""
    return Client(address, "AF_UNIX")


def call(address: str, content: bytes) -> bytes:
    """Send one request and wait for its answer."""
    with connect(address) as line:
        line.send_bytes(content)
        return line.recv_bytes(MOST)


def end_with_parent() -> None:
    """End this process some time after the one that started it.

    Flower's processes would do so, but first try to reach a SuperLink that is gone as well.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
