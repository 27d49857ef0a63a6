"""What a case may do: end soon, with a result or one of the package's errors, and write nowhere.

A hook of the interpreter sees every file that is opened to write, renamed or deleted, every program
that is started and every connection; while a case runs, only files below its own folder may change.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from isonomy.cli.shell import one_line
from isonomy.errors import IsonomyError
from isonomy.federation.flower.codec import MalformedError

COMPUTING, WAITING = 10.0, 300.0  # seconds of one case: of the processor, and in all
LONGEST = 3000  # letters of a message
MEMORY = 12 << 30  # bytes of address space that a fuzzer may use


class Escaped(BaseException):
    """A case did what no input may lead to; no handler of the package catches it."""


class Bug(AssertionError):
    """What a case led to, in place of a result or an error of the package."""


_PATHS = {  # events, and which of their arguments are paths that change
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "shutil.rmtree": (0,),
}
_NEVER = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "socket.connect",
    "socket.bind",
    "pty.spawn",
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_allowed: list[str] = []  # while a case runs: the folders below which files may change
_seen: list[str] = []
_hooked = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    if event == "socket.connect" and args[1][:1] == ("127.0.0.1",):
        return  # the fuzzer of the gateway
    if event in _NEVER:
        _refuse(f"{event} {args[:2]!r:.200}")
    elif event == "open" and isinstance(args[0], str | bytes | Path):
        flags = args[2] if isinstance(args[2], int) else 0
        if flags & _WRITES:
            _check(event, args[0])
    elif event in _PATHS:
        for k in _PATHS[event]:
            if isinstance(args[k], str | bytes | Path):
                _check(event, _below(args[k], args[-1]))


def _below(path: Any, folder: Any) -> str:
    """The path, which may be relative to an open folder."""
    name = os.fsdecode(path)
    if os.path.isabs(name) or not isinstance(folder, int) or folder < 0:
        return name
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)


def _check(event: str, path: Any) -> None:
    place = os.path.realpath(os.fsdecode(path))
    inside = any((place + os.sep).startswith(folder) for folder in _allowed)
    if place != os.devnull and not inside:
        _refuse(f"{event} of {place}")


def _refuse(what: str) -> None:
    _seen.append(what)
    raise Escaped(what)


def _late(_number: int, _frame: FrameType | None) -> None:
    raise Escaped(f"no end within {COMPUTING:g} s of computing or {WAITING:g} s of waiting")


@contextmanager
def watching(*folders: Path) -> Iterator[None]:
    """Raise Bug for whatever a case may not do."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)  # it cannot be removed; without folders it does nothing
        _hooked = True
    sys.dont_write_bytecode = True
    before = [signal.signal(number, _late) for number in (signal.SIGVTALRM, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_VIRTUAL, COMPUTING)
    signal.setitimer(signal.ITIMER_REAL, WAITING)
    _seen.clear()
    _allowed[:] = [os.path.realpath(folder) + os.sep for folder in folders]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    except Escaped as escaped:
        raise Bug(str(escaped)) from escaped
    finally:
        _allowed.clear()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGVTALRM, before[0])
        signal.signal(signal.SIGALRM, before[1])
    if _seen:
        raise Bug(_seen[0])


def check_sentence(text: str) -> None:
    """Raise Bug if a message is not one that a user can read."""
    shown = one_line(text)
    if not shown.rstrip(")'\"").endswith((".", "?", "!")) or len(shown) > LONGEST:
        raise Bug(f"not a sentence of at most {LONGEST} letters: {shown[:300]!r} ({len(shown)})")


def attempt(work: Callable[[], Any], *also: type[Exception]) -> Any:
    """The result of some work, or None if it ended with one of the package's errors."""
    try:
        return work()
    except (IsonomyError, MalformedError, *also) as error:
        if isinstance(error, IsonomyError):
            check_sentence(str(error))
        return None
    except MemoryError:
        return None
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # the command line says so in one sentence
            return None
        raise
