"""Memory that the ranks of one machine share, for large messages.

A rank writes its message to memory of its own, and the others copy it from there. That is several
times as fast as a network connection of the machine with itself. The memory has no name in any file
system and disappears with its process, also if that is killed. Only Linux has it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 28  # bytes of a message; larger ones are sent, so that memory is not used twice
_TOKEN = 16  # bytes by which a rank recognises the memory of another one


class _Area:
    """Memory that can grow, mapped into this process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._bytes = torch.zeros(0, dtype=torch.uint8)

    def first(self, size: int) -> Tensor:
        """The first bytes, which must be there."""
        if len(self._bytes) < size:
            there = os.fstat(self.descriptor).st_size
            self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, there), dtype=torch.uint8)
        return self._bytes[:size]

    def grow(self, size: int) -> None:
        """Make room for so many bytes; raises an OSError if there is no memory."""
        if len(self._bytes) < size:
            os.posix_fallocate(self.descriptor, 0, size)


class SharedMemory:
    """The messages of all ranks of one machine, of which each writes its own.

    A rank writes to one of two areas in turn: what it wrote before may still be read by others, but
    nothing older, since a rank reads a message before it takes part in the next exchange.
    """

    def __init__(self, areas: Sequence[_Area], others: Sequence[Sequence[_Area]]) -> None:
        self._own, self._all = areas, others
        self._turn = 0

    def write(self, parts: list[Tensor]) -> int | None:
        """Write a message; the area that it is in, None if it has to be sent."""
        size = sum(map(len, parts))
        if size > LARGEST:
            return None
        area = self._own[1 - self._turn]
        try:
            area.grow(size)
        except OSError:  # no memory
            return None
        torch.cat([part.cpu() for part in parts], out=area.first(size))
        self._turn = 1 - self._turn
        return self._turn

    def read(self, rank: int, area: int, size: int) -> Tensor:
        """A copy of another rank's message."""
        return self._all[rank][area].first(size).clone()


def shared_memory(rank: int, gathered: Callable[[Any], list[Any]]) -> SharedMemory | None:
    """The memory of all ranks, if each of them can read that of every other one; otherwise None.

    `gathered` returns the values of all ranks; they call this function at the same point.
    """
    own, token = _made()
    offers = gathered((os.getpid(), [area.descriptor for area in own], token))
    found: list[list[_Area]] | None = []
    for number, (process, descriptors, theirs) in enumerate(offers):
        areas = own if number == rank else _opened(process, descriptors, theirs)
        found = None if found is None or not areas else [*found, areas]
    every = all(gathered(found is not None))
    return SharedMemory(own, found) if every and found is not None else None


def _made() -> tuple[list[_Area], bytes]:
    """Two areas, and the token that is written in them; none if this system has no such memory."""
    token = secrets.token_bytes(_TOKEN)
    if not hasattr(os, "memfd_create"):
        return [], token
    try:
        areas = [_Area(os.memfd_create("isonomy")) for _ in range(2)]
        for area in areas:
            os.pwrite(area.descriptor, token, 0)
    except OSError:
        return [], token
    return areas, token


def _opened(process: int, descriptors: list[int], token: bytes) -> list[_Area]:
    """The areas of another process; none if it is on another machine, or does not permit it."""
    try:
        areas = [_Area(os.open(f"/proc/{process}/fd/{at}", os.O_RDWR)) for at in descriptors]
        same = all(os.pread(area.descriptor, _TOKEN, 0) == token for area in areas)
    except OSError:
        return []
    return areas if same else []
