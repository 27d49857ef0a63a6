"""What the processes of a soak test use: their memory, and the addresses that they talk to."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROLES = (  # a word of the command, and what the process is
    ("flower.gateway", "gateway"),
    ("flower.forkserver", "fork server"),
    ("flwr-serverapp", "ServerApp"),
    ("flower-superexec", "SuperExec"),
    ("flower-supernode", "SuperNode"),
    ("flower.patient_superlink", "SuperLink"),
    (" serve ", "isonomy serve"),
    (" join ", "isonomy join"),
)
ORGANISERS = ("isonomy serve", "SuperLink", "ServerApp", "gateway")  # these have to be measured
PARTICIPANTS = ("isonomy join",)
FREE = 6.0  # MB by which any process may grow
SHARE = 0.05  # of its memory, by which a process may grow
LEAST = 10  # samples of which a trend is made


@dataclass(frozen=True)
class Sample:
    """A process at one time: seconds, rounds done, and its memory in MB."""

    seconds: float
    round: int
    anonymous: float  # what the process itself has allocated
    resident: float  # with the pages of files that it has mapped


@dataclass
class Series:
    """One process: whose it is, what it is, and its samples."""

    owner: str
    role: str
    pid: int
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class Trend:
    """How the memory of a process changes between two rounds, by the line of median slope."""

    owner: str
    role: str
    first: float  # MB at the beginning of that time
    growth: float  # MB until its end
    resident: float  # MB at the end
    samples: int

    @property
    def flat(self) -> bool:
        """Whether it grows by less than FREE and SHARE allow."""
        return self.growth <= max(FREE, SHARE * self.first)

    def __str__(self) -> str:
        mark = "" if self.flat else "   <- grows"
        return (
            f"{self.owner:10} {self.role:14} {self.first:7.1f} MB {self.growth:+7.2f} MB, resident "
            f"{self.resident:6.1f} MB, {self.samples} samples{mark}"
        )


class Memory:
    """Collects samples of the processes that stay; those that live for one message are left out."""

    def __init__(self) -> None:
        self.series: dict[int, Series] = {}

    def sample(self, owner: str, pids: Iterable[int], seconds: float, round: int) -> None:
        """Measure the processes of one owner."""
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                entry = Path(f"/proc/{pid}")
                role = role_of((entry / "cmdline").read_bytes())
                if role is None:
                    continue
                status = (entry / "status").read_text()
                made = Sample(
                    seconds, round, _megabytes(status, "RssAnon"), _megabytes(status, "VmRSS")
                )
                one = self.series.get(pid)
                if one is None or (one.owner, one.role) != (owner, role):
                    one = self.series[pid] = Series(owner, role, pid)
                one.samples.append(made)

    def trends(self, since: int, owners: Sequence[str]) -> list[Trend]:
        """The trends from a round on, of the owners' processes that lived through that time."""
        last = max((s.round for one in self.series.values() for s in one.samples), default=0)
        out = []
        for one in self.series.values():
            late = [s for s in one.samples if s.round >= since]
            whole = one.samples[0].round <= since and one.samples[-1].round >= last - 2
            if one.owner in owners and whole and len(late) >= LEAST:
                out.append(trend(one.owner, one.role, late))
        order = [name for _, name in ROLES]
        return sorted(out, key=lambda t: (owners.index(t.owner), order.index(t.role)))


def trend(owner: str, role: str, samples: Sequence[Sample]) -> Trend:
    """The line through samples whose slope is the median of the slopes of pairs (Theil and Sen)."""
    thin = samples[:: max(1, len(samples) // 200)]
    slopes = [
        (b.anonymous - a.anonymous) / (b.seconds - a.seconds)
        for i, a in enumerate(thin)
        for b in thin[i + 1 :]
        if b.seconds > a.seconds
    ]
    slope = statistics.median(slopes)
    first = statistics.median(s.anonymous - slope * (s.seconds - thin[0].seconds) for s in thin)
    growth = slope * (thin[-1].seconds - thin[0].seconds)
    return Trend(owner, role, first, growth, samples[-1].resident, len(samples))


def role_of(command: bytes) -> str | None:
    """What a process is, by its command; None if it does not stay."""
    text = f"{command.decode(errors='replace').replace(chr(0), ' ')} "
    if "flwr-clientapp" in text:
        return None
    return next((role for word, role in ROLES if word in text), None)


def _megabytes(status: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise ValueError(name)
    return int(found[1]) / 1024


# --- addresses ------------------------------------------------------------------------------------


def strangers(pids: Iterable[int]) -> set[str]:
    """The addresses outside of this machine that these processes are connected to."""
    mine = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found = re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink()))
                    if found:
                        mine.add(found[1])
    out = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[9] in mine and (far := outside(words[2])):
                    out.add(far)
    return out


def outside(text: str) -> str | None:
    """The address of an entry of /proc/net, unless it is of this machine, or of nobody.

    >>> outside("0100007F:1F90"), outside("00000000:0000"), outside("08080808:0035")
    (None, None, '8.8.8.8')
    """
    raw = bytes.fromhex(text.partition(":")[0])
    words = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]  # each in the machine's order
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None) or address
    return None if mapped.is_loopback or mapped.is_unspecified else str(mapped)


def totals(memory: Memory) -> dict[str, float]:
    """Each owner's largest memory in MB, summed over the processes that it had at that time."""
    by: dict[tuple[str, float], float] = defaultdict(float)
    for one in memory.series.values():
        for s in one.samples:
            by[one.owner, s.seconds] += s.anonymous
    out: dict[str, float] = defaultdict(float)
    for (owner, _), total in by.items():
        out[owner] = max(out[owner], total)
    return dict(out)
