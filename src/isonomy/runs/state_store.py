"""Checkpoints of many clients' states: each writes only the states that changed since the last.

    states.rows  states as rows of bytes, each in a slot
    states.log   three integers for each state that was written: client, slot, checksum

A checkpoint says how much of the log belongs to it; the last entry of a client is its state. A slot
is written again only if no checkpoint in the folder refers to it, and the log is only appended to.
So a process may be killed at any moment: every checkpoint that is complete stays intact.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.tree import Tree
from isonomy.engines.states import BLOCK, Bytes, Known, Layout
from isonomy.runs.files import flush_to_disk

ROWS, LOG = "states.rows", "states.log"
ENTRY = 3 * 8  # bytes
Integers = NDArray[np.int64]


@dataclass
class StateStore:
    """The store in a folder of checkpoints, as far as a checkpoint of it goes.

    `entries` is the number of entries of the log, `crc` their checksum, and `log` what was read of
    it. A slot that is not used any more is free once the oldest checkpoint does not refer to it.
    """

    folder: Path
    initial: Tree
    entries: int = 0
    crc: int = 0
    log: Integers = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def __post_init__(self) -> None:
        self.layout = Layout(self.initial)
        clients, slots = self.log[:, 0], self.log[:, 1]
        self._end = int(slots.max()) + 1 if len(slots) else 0  # the number of slots
        self._slot = np.full(int(clients.max()) + 1 if len(clients) else 0, -1, np.int64)
        last = _last(clients)
        self._slot[clients[last]] = slots[last]
        # slots that are not used any more: how many entries the log had then, and the slot
        order = np.lexsort((np.arange(len(clients)), clients))
        same = clients[order][1:] == clients[order][:-1]
        before, after = order[:-1][same], order[1:][same]
        user = np.full(self._end, -1, np.int64)
        user[slots[_last(slots)]] = _last(slots)
        alone = user[slots[before]] == before  # not written again by another client
        self._retired = np.stack([after[alone] + 1, slots[before][alone]], 1)

    @classmethod
    def read(cls, folder: Path, initial: Tree, about: dict[str, Any]) -> StateStore:
        """The store at a checkpoint; raises a ValueError if it is damaged."""
        entries = int(about["entries"])
        with open(folder / LOG, "rb") as file:
            content = file.read(entries * ENTRY)
        if len(content) < entries * ENTRY or zlib.crc32(content) != about["crc"]:
            raise ValueError("the log of the clients' states is damaged")
        log = np.frombuffer(content, np.int64).reshape(entries, 3)
        found = cls(folder, initial, entries, about["crc"], log)
        if found.layout.width != about["width"]:
            raise ValueError("the clients' states have another size")
        return found

    def save(self, known: Iterable[Known], oldest: int | None) -> dict[str, Any]:
        """Add states; returns what a checkpoint has to say about the store.

        `oldest` is the number of entries of the oldest checkpoint in the folder that is still
        needed; None if there is none.
        """
        known_before = self._retired[:, 0] <= (0 if oldest is None else oldest)
        free, end = np.sort(self._retired[known_before, 1]), self._end
        written = []
        with _opened(self.folder / ROWS) as file:
            for ids, states in known:
                slots, free = free[: len(ids)], free[len(ids) :]
                more = len(ids) - len(slots)
                slots, end = np.concatenate([slots, end + np.arange(more)]), end + more
                rows = self.layout.encode(states)
                write_rows(file, slots, rows)
                written.append(np.stack([ids.numpy(), slots, checks(rows)], 1))
            flush_to_disk(file)
        added = np.concatenate([np.zeros((0, 3), np.int64), *written])
        with _opened(self.folder / LOG) as file:
            file.seek(self.entries * ENTRY)
            file.truncate()  # what an interrupted checkpoint left
            file.write(added.tobytes())
            flush_to_disk(file)
        self._add(added, end)
        return {"entries": self.entries, "crc": self.crc, "width": self.layout.width}

    def states(self) -> Iterator[Known]:
        """The clients' states, a block at a time; raises a ValueError if one is damaged."""
        last = _last(self.log[:, 0])
        if not len(last):
            return
        with open(self.folder / ROWS, "rb") as file:
            size = os.fstat(file.fileno()).st_size // self.layout.width
            if int(self.log[last, 1].max()) >= size:
                raise ValueError("the file of the clients' states is too short")
            for start in range(0, len(last), BLOCK):
                ids, slots, check = self.log[last[start : start + BLOCK]].T
                rows = _read(file, slots, self.layout.width)
                if not np.array_equal(checks(rows), check):
                    raise ValueError("the state of a client is damaged")
                yield torch.from_numpy(ids.copy()), self.layout.decode(rows)

    def _add(self, added: Integers, end: int) -> None:
        """The entries were written; the slots that they replace are free one day."""
        clients, slots = added[:, 0], added[:, 1]
        self.entries += len(added)
        self.crc = zlib.crc32(added.tobytes(), self.crc)
        grown = max(len(self._slot), int(clients.max()) + 1 if len(clients) else 0)
        before = np.full(grown, -1, np.int64)
        before[: len(self._slot)] = self._slot
        old = before[clients]
        old = old[old >= 0]
        gone = np.stack([np.full(len(old), self.entries), old], 1)
        kept = self._retired[~np.isin(self._retired[:, 1], slots)]
        self._retired = np.concatenate([kept, gone])
        before[clients] = slots
        self._slot, self._end = before, end
        self.log = np.zeros((0, 3), np.int64)  # it is needed when a run is resumed only


def checks(rows: Bytes) -> Integers:
    """A checksum of each row: a sum of its words with odd weights, modulo 2^64."""
    width = rows.shape[1]
    padded = np.zeros((len(rows), -(-width // 4) * 4), np.uint8)
    padded[:, :width] = rows
    words = padded.view(np.uint32).astype(np.uint64)
    numbers = np.arange(1, words.shape[1] + 1, dtype=np.uint64)
    weights = (numbers * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
    found: Integers = (words * weights).sum(1, dtype=np.uint64).view(np.int64)
    return found


def _last(keys: Integers) -> Integers:
    """The position of each key's last occurrence, in the order of the keys."""
    first = np.unique(keys[::-1], return_index=True)[1]
    found: Integers = len(keys) - 1 - first
    return found


def _opened(path: Path) -> BinaryIO:
    """A file to change; a link is refused, not followed."""
    follow = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | follow, 0o666), "r+b")


def _runs(slots: Integers) -> Iterator[tuple[int, int]]:
    """Where slots follow one another: first and last position."""
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    ends = [*cuts.tolist(), len(slots)]
    yield from zip([0, *ends[:-1]], ends, strict=True)


def write_rows(file: BinaryIO, slots: Integers, rows: Bytes, start: int = 0) -> None:
    """Write rows to slots of a file in which rows begin at `start`."""
    width = rows.shape[1]
    for first, last in _runs(slots):
        file.seek(start + int(slots[first]) * width)
        file.write(rows[first:last].tobytes())


def _read(file: BinaryIO, slots: Integers, width: int) -> Bytes:
    """Rows of some slots; read in the order of the file."""
    order = np.argsort(slots, kind="stable")
    out = np.empty((len(slots), width), np.uint8)
    for first, last in _runs(slots[order]):
        file.seek(int(slots[order[first]]) * width)
        content = file.read((last - first) * width)
        out[order[first:last]] = np.frombuffer(content, np.uint8).reshape(-1, width)
    return out
