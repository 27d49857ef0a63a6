"""Less memory for a process that runs for a whole federation and computes a little at a time.

Not kept are memory that was freed, and pages of program files that were read once, at the start.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
from collections.abc import Iterator
from pathlib import Path


def trim() -> None:
    """Return memory that was freed to the system; C's library would keep it for later."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def release() -> None:
    """Return memory to the system: what was freed, and pages of program files (on Linux).

    Importing torch and reading a table touch about 100 MB of their libraries' files once. A page
    that is needed again is mapped again when it is used, from the system's cache of files.
    """
    gc.collect()
    trim()
    try:
        library = ctypes.CDLL(None)
        library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for begin, size in _file_pages(Path("/proc/self/smaps").read_text()):
            library.madvise(begin, size, mmap.MADV_DONTNEED)
    except (OSError, AttributeError, TypeError):
        return  # another system


def _file_pages(smaps: str) -> Iterator[tuple[int, int]]:
    """The address and size of mapped files that cannot be written and were not changed.

    A page that was changed after it was read (addresses that were filled in) is `Anonymous`.
    """
    begin = size = 0
    for line in smaps.splitlines():
        words = line.split()
        if "-" in words[0]:
            begin = size = 0
            if words[1] in ("r--p", "r-xp") and words[4] != "0":
                start, end = (int(text, 16) for text in words[0].split("-"))
                begin, size = start, end - start
        elif words[0] == "Anonymous:" and size and words[1] == "0":
            yield begin, size
