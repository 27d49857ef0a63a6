"""The processes of a test, from the system's own table."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MARK = "ISONOMY_TEST"  # in the environment of all processes of a test, so that none is missed


def descendants(pid: int) -> list[int]:
    """A process and all that it started, from the system's own table."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    out = [pid]
    for one in out:
        out += [child for child, above in parent.items() if above == one]
    return out


def marked(folder: Path) -> dict[int, str]:
    """All processes of a test, however they were started: process id and command."""
    mark, out = f"{MARK}={folder}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    out[int(entry.name)] = (entry / "cmdline").read_bytes().decode()[:200]
    return out
