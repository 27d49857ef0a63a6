"""A guard that ends all processes of a soak test if it takes too long or is killed itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from federation.process_table import marked


def start(folder: Path, seconds: float) -> int:
    """Start the guard of this process and of the processes marked with the folder; returns its id.

    Call it before the process has threads.
    """
    tested = os.getpid()
    guard = os.fork()
    if guard:
        return guard
    os.setsid()  # so that Ctrl-C does not end it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _watch(tested, folder, time.monotonic() + seconds)
    finally:
        os._exit(0)


def _watch(tested: int, folder: Path, end: float) -> None:
    while os.getppid() == tested and time.monotonic() < end:
        time.sleep(0.5)
    if os.getppid() == tested:
        with contextlib.suppress(ProcessLookupError):
            os.kill(tested, signal.SIGKILL)
    while left := [pid for pid in marked(folder) if pid != os.getpid()]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def end(guard: int) -> None:
    """End the guard; the processes that it guarded have ended."""
    os.kill(guard, signal.SIGKILL)
    os.waitpid(guard, 0)
