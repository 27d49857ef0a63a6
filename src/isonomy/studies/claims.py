"""Claims: which process makes a run, where processes of one or several hosts share a folder.

A claim is a file beside the folder of the run. It is created by the process that makes the run, in
a way that only one can succeed, and its time of change is renewed while that process lives. A claim
that was not renewed for STALE seconds, or whose process is gone from this machine, is taken over by
a claim with the next number. So there is no server, and a killed process blocks nothing for long.

All times are those of the folder's file system, so that the clocks of the hosts do not matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from isonomy.errors import RunError
from isonomy.runs.listener import Listener

RENEWED = 10.0  # seconds between two signs of life
STALE = 120.0  # seconds without one after which a claim is taken over


class ClaimLost(RunError):
    """Another process makes the run now."""


class Claim(Listener):
    """A claim that this process holds; as a listener of the run, it ends a run that it lost."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self.lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._over.wait(RENEWED):
            try:
                os.utime(self.path)
            except OSError:  # somebody has deleted it, or the file system is gone
                self.lost = not self.path.exists()
            newest = max((number for number, _ in _claims(_target(self.path))), default=-1)
            self.lost = self.lost or newest > self.number

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """Check the claim after every round."""
        self.check()

    def check(self) -> None:
        """Raise ClaimLost if another process has taken over, because this one seemed dead."""
        if self.lost:
            raise ClaimLost(
                f"another process has taken over the run in '{_target(self.path)}', because this "
                f"one gave no sign of life for {STALE:g} seconds; nothing has to be done."
            )

    def release(self) -> None:
        """Delete the claim, and older ones that it replaced."""
        self._over.set()
        self._thread.join()
        for number, path in sorted(_claims(_target(self.path))):
            if number < self.number:
                path.unlink(missing_ok=True)
        if not self.lost:
            self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(target: Path) -> Iterator[Claim | None]:
    """Claim the run in a folder; yields None if another process has claimed it."""
    claim = _take(target)
    try:
        yield claim
    finally:
        if claim is not None:
            claim.release()


def busy(target: Path) -> str | None:
    """Which process has claimed the run in a folder, for a sentence; None if nobody has."""
    for _, path in sorted(_claims(target), reverse=True)[:1]:
        about = _read(path)
        if not _dead(path, about):
            return f"process {about.get('pid', '?')} on {about.get('host', '?')}"
    return None


def _take(target: Path) -> Claim | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    found = sorted(_claims(target))
    if any(not _dead(path, _read(path)) for _, path in found):
        return None
    number = found[-1][0] + 1 if found else 0
    path = target.with_name(f".{target.name}.claim-{number:04d}")
    about = {"host": socket.gethostname(), "pid": os.getpid(), "machine": _machine()}
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return None
    with os.fdopen(file, "w") as written:
        json.dump(about, written)
    for other, name in _claims(target):  # of two that came at the same time, both step back
        if other != number and not _dead(name, _read(name)):
            path.unlink(missing_ok=True)
            return None
    return Claim(path, number)


def _claims(target: Path) -> Iterator[tuple[int, Path]]:
    """The claims of a folder, with their numbers."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.claim-(\d{{4,}})")
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            if match := pattern.fullmatch(path.name):
                yield int(match[1]), path


def _target(claim: Path) -> Path:
    """The folder that a claim is about."""
    return claim.with_name(claim.name.rpartition(".claim-")[0].removeprefix("."))


def _read(path: Path) -> dict[str, object]:
    """Who made a claim; empty if it is being written, or was deleted."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _dead(path: Path, about: dict[str, object]) -> bool:
    """Whether the process of a claim is gone, or gave no sign of life for too long."""
    machine, pid = about.get("machine"), about.get("pid")
    if machine and machine == _machine() and isinstance(pid, int) and not _lives(pid):
        return True
    try:
        return _now(path.parent) - path.stat().st_mtime > STALE
    except FileNotFoundError:
        return True


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    with contextlib.suppress(OSError):  # a zombie has ended
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def _machine() -> str:
    """What identifies the processes of this machine and container; empty if it is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _now(folder: Path) -> float:
    """The time of the folder's file system."""
    probe = folder / f".clock-{uuid.uuid4().hex}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
