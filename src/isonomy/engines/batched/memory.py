"""Keep freed memory for the next step.

A step of a whole cohort frees and allocates megabytes again and again. glibc returns such blocks to
the system at once, so every new block costs a page fault for each 4 kB: measured, a third of a
compiled step. Two settings of its allocator make it keep up to 256 MB instead. Other C libraries
are left as they are.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt's parameters in malloc.h


@cache
def keep_freed() -> bool:
    """Change the allocator's settings, once per process; returns True if they were applied."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    done = library.mallopt(_MMAP_THRESHOLD, 32 * 2**20), library.mallopt(_TRIM_THRESHOLD, 2**28)
    return all(done)
