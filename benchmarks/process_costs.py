"""The memory (MB: 2^20 bytes) and processor time of processes, from Linux's own tables.

RSS counts a page in every process that maps it; PSS divides a page among all processes of the
machine that map it; USS counts the pages of one process alone. Several participants on one machine
share the files of Python and torch, so their PSS is less than what a participant needs on a machine
of its own. `alone` is that: every page that a process of the group maps, counted once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MB = 1 << 20
PAGE = 4096
PRESENT = 1 << 63
FRAME = (1 << 55) - 1  # the bits of a page's place in memory


@dataclass(frozen=True)
class Memory:
    """Sums over the processes of a group, and what the group would need alone on a machine."""

    processes: int
    rss: float
    pss: float
    uss: float
    peak: float  # the sum of every process's highest RSS
    alone: float | None  # None if the system does not show it: it needs root

    def shown(self) -> dict[str, float | int | None]:
        """Rounded, by the names that the benchmark prints."""
        alone = None if self.alone is None else round(self.alone)
        sums = {"PSS": self.pss, "USS": self.uss, "RSS": self.rss, "peak RSS": self.peak}
        return {"processes": self.processes, "alone": alone} | {
            name: round(value) for name, value in sums.items()
        }


def family(pid: int) -> list[int]:
    """A process and all that it started, without those that have ended."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parent[int(entry.name)] = int(above)
    out = [pid]
    for one in out:
        out += [child for child, above in parent.items() if above == one]
    return out


def command(pid: int) -> str:
    """What a process runs, in one or two words."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    names = [Path(word).name for word in words if word and not word.startswith("-")]
    return " ".join(names[1:3] if names and names[0].startswith("python") else names[:1])


def of(pids: Iterable[int]) -> Memory:
    """The memory of processes that belong together; those that end meanwhile are left out."""
    rss = pss = uss = peak = 0
    count, frames, known = 0, [], True
    for pid in pids:
        try:
            fields = _fields(f"/proc/{pid}/smaps_rollup")
            high = _fields(f"/proc/{pid}/status")["VmHWM"]
            own = _frames(pid)
        except (OSError, KeyError):
            continue
        count += 1
        rss += fields["Rss"]
        pss += fields["Pss"]
        uss += fields["Private_Clean"] + fields["Private_Dirty"]
        peak += high
        known = known and own is not None
        frames.append(np.empty(0, np.uint64) if own is None else own)
    alone = len(np.unique(np.concatenate(frames))) * PAGE / MB if frames and known else None
    rss_mb, pss_mb, uss_mb, peak_mb = (kb / 1024 for kb in (rss, pss, uss, peak))
    return Memory(count, rss_mb, pss_mb, uss_mb, peak_mb, alone)


def processor_seconds(pids: Iterable[int]) -> float:
    """The processor time that processes, and those that they started and that ended, have used.

    Unlike seconds by the clock, it depends little on what else the machine does.
    """
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(path: str) -> dict[str, int]:
    """The lines `Name: 123 kB` of a file."""
    out = {}
    for line in Path(path).read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            out[words[0].rstrip(":")] = int(words[1])
    return out


def _frames(pid: int) -> np.ndarray | None:
    """The places in memory of a process's pages; None if the system does not show them."""
    found = []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pages:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith(("[vsyscall]", "[vvar]", "[vdso]")):
                continue
            begin, end = (int(text, 16) for text in line.split()[0].split("-"))
            pages.seek(begin // PAGE * 8)
            entries = np.frombuffer(pages.read((end - begin) // PAGE * 8), np.uint64)
            found.append(entries[entries & np.uint64(PRESENT) != 0] & np.uint64(FRAME))
    every = np.concatenate(found) if found else np.empty(0, np.uint64)
    return every if every.any() else None
