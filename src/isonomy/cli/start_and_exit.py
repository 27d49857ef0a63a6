"""Less work for Python's garbage collector when a command starts and ends.

The modules that a command imports consist of hundreds of thousands of objects that stay until the
end. Looking through them for garbage, again and again while they are imported and once more at the
exit, takes about .7 s of the 7 s of CPU time of a short run.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import Any

AT_START = 400_000  # new objects before the first collection: those of a short run


def collect_less() -> None:
    """Begin to collect after the imports, and not at the exit."""
    usual = gc.get_threshold()

    def after_the_first(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop":
            gc.callbacks.remove(after_the_first)
            gc.freeze()  # what exists now is not looked through again
            gc.set_threshold(*usual)

    gc.set_threshold(AT_START, *usual[1:])
    gc.callbacks.append(after_the_first)
    atexit.register(_leave)


def collect_as_usual() -> None:
    """Collect now, and as often as Python usually does from now on: for commands that run long."""
    gc.collect()  # the first collection, which ends the late start


def _leave() -> None:
    """Leave all objects to the operating system."""
    gc.disable()
    gc.freeze()
    if "_duckdb" in sys.modules:  # it would report them as leaks, after the interpreter's end
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
