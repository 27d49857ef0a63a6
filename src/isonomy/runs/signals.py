"""Interruptions: a run that receives SIGINT or SIGTERM ends its round, saves, and stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isonomy.errors import IsonomyError


class Stopped(IsonomyError):
    """The run was interrupted; it saved its state first. `where` says how far it came."""

    def __init__(self, message: str, number: int, where: str = "") -> None:
        super().__init__(message)
        self.number, self.where = number, where
        self.exit_code = 128 + number


@contextmanager
def collected() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list; the second signal raises KeyboardInterrupt.

    Outside of the main thread, where Python allows no handlers, the list stays empty.
    """
    received: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    old = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)
