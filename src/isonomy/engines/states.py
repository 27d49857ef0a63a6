"""Clients' private states: all of them in memory, or those that were changed in a file.

A client whose state was never changed has the initial one, which is kept once. So a million clients
of whom a few thousand took part need the space of a few thousand states.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.tree import Tree
from isonomy.engines.devices import Place

Where = Literal["auto", "memory", "disk"]
Known = tuple[Tensor, Tree]
"""The numbers of some clients, and their states, stacked."""

SMALL = 32 * 2**20  # bytes of all clients' states that are kept in memory by default
BLOCK = 1 << 14  # states that are read or sent at a time, at most
TOUCHED = 256 * 2**20  # bytes of mapped pages after which they are given back
Bytes = NDArray[np.uint8]


class States:
    """Clients' private states, stacked; only the client's own phase reads its row.

    `held` are the clients whose states are here, in ascending order; None: all of them. They are on
    the device of `place`.
    """

    sparse = False

    def __init__(
        self,
        initial: State,
        clients: int,
        held: Tensor | None = None,
        place: Place | None = None,
    ) -> None:
        self.held = held
        self.place = Place() if place is None else place
        self.initial = initial
        initial = self.place.put(initial)
        count = clients if held is None else len(held)
        self.stacked: Tree = tree.tmap(
            lambda t: t.unsqueeze(0).expand(count, *t.shape).clone(), initial
        )
        self.empty = not tree.leaves(initial)

    def take(self, ids: Tensor) -> Tree:
        """The states of some clients, stacked."""
        return tree.take(self.stacked, self._rows(ids))

    def put(self, ids: Tensor, new: Tree) -> None:
        """Replace the states of some clients."""
        if self.empty and tree.leaves(new):
            raise ValueError("a phase returned a state, but init_client made none")
        if not self.empty:
            at = self._rows(ids)
            new = self.place.put(new)
            tree.tmap(lambda s, v: s.index_copy_(0, at, v.to(s.dtype)), self.stacked, new)

    def _rows(self, ids: Tensor) -> Tensor:
        rows = ids if self.held is None else torch.searchsorted(self.held, ids)
        found: Tensor = self.place.put(rows)
        return found


class SparseStates:
    """The states of the clients that have another one than the initial, in a file.

    The file has no name and disappears with the process: checkpoints are written elsewhere, from
    the states that changed since the last one. It is mapped, and pages that were used are given
    back from time to time, so that memory does not grow with it.
    """

    sparse = True

    def __init__(
        self,
        initial: State,
        clients: int,
        held: Tensor | None = None,
        place: Place | None = None,
        folder: Path | None = None,
    ) -> None:
        self.held = held
        self.place = Place() if place is None else place
        self.initial = tree.tmap(lambda t: t.detach().cpu(), initial)
        self.layout = Layout(self.initial)
        self.empty = False
        self.count = clients if held is None else len(held)
        self._slot = np.full(self.count, -1, dtype=np.int64)
        self._changed = np.zeros(self.count, dtype=np.bool_)
        self._used = 0  # slots
        self._first = self.layout.encode(tree.tmap(lambda t: t.unsqueeze(0), self.initial))
        self._file = _File(self.layout.width, self.count, folder)

    @property
    def stacked(self) -> Tree:
        """Every state that is held here, in memory."""
        return self.take(self._ids(np.arange(self.count)))

    def take(self, ids: Tensor) -> Tree:
        """The states of some clients, stacked."""
        return self.place.put(self.layout.decode(self._read(self._at(ids))))

    def put(self, ids: Tensor, new: Tree) -> None:
        """Replace the states of some clients; those that are the same are not written."""
        given = tree.tmap(lambda s, v: v.detach().cpu().to(s.dtype), self.initial, new)
        rows, at = self.layout.encode(given), self._at(ids)
        other = (rows != self._read(at)).any(1)
        if not other.any():
            return
        rows, at = rows[other], at[other]
        fresh = at[self._slot[at] < 0]
        self._file.grow(self._used + len(fresh))
        self._slot[fresh] = self._used + np.arange(len(fresh))
        self._used += len(fresh)
        self._file.write(self._slot[at], rows)
        self._changed[at] = True

    def known(self) -> Tensor:
        """The clients that have another state than the initial one, in ascending order."""
        return self._ids(np.flatnonzero(self._slot >= 0))

    def changed(self) -> Tensor:
        """The clients whose states were changed since the last call of `settle`, ascending."""
        return self._ids(np.flatnonzero(self._changed))

    def settle(self) -> None:
        """What has changed so far was saved."""
        self._changed[:] = False

    def _read(self, at: NDArray[np.int64]) -> Bytes:
        slots = self._slot[at]
        has = slots >= 0
        if has.all():
            return self._file.read(slots)
        out = np.repeat(self._first, len(at), axis=0)
        out[has] = self._file.read(slots[has])
        return out

    def _at(self, ids: Tensor) -> NDArray[np.int64]:
        rows = ids if self.held is None else torch.searchsorted(self.held, ids)
        return rows.cpu().numpy()

    def _ids(self, at: NDArray[np.int64]) -> Tensor:
        found = torch.from_numpy(at)
        return found if self.held is None else self.held[found]


def make_states(
    initial: State,
    clients: int,
    held: Tensor | None,
    place: Place,
    where: Where,
    folder: Path | None,
) -> States | SparseStates:
    """The states of a run's clients; "auto" decides by the size of all clients' states."""
    nbytes = clients * tree.nbytes(initial)
    if nbytes and (where == "disk" or (where == "auto" and nbytes > SMALL)):
        return SparseStates(initial, clients, held, place, folder)
    return States(initial, clients, held, place)


def blocks(ids: Tensor) -> Iterator[Tensor]:
    """Some clients' numbers, a block at a time."""
    if len(ids):
        yield from torch.split(ids, BLOCK)


class Layout:
    """How a state becomes a row of bytes: its tensors one after the other.

    >>> layout = Layout({"a": torch.zeros(2), "b": torch.zeros((), dtype=torch.int64)})
    >>> rows = layout.encode({"a": torch.ones(3, 2), "b": torch.arange(3)})
    >>> rows.shape, layout.decode(rows)["b"].tolist()
    ((3, 16), [0, 1, 2])
    """

    def __init__(self, initial: State) -> None:
        self.initial = initial
        leaves = tree.leaves(initial)
        self.parts = [(tuple(t.shape), t.dtype, t.numel() * t.element_size()) for t in leaves]
        self.width = sum(size for _, _, size in self.parts)

    def encode(self, stacked: Tree) -> Bytes:
        """Rows of bytes [n, width] of stacked states."""
        flat = [t.contiguous() for t in tree.leaves(stacked)]
        rows = [t.reshape(t.shape[0], math.prod(t.shape[1:])).view(torch.uint8) for t in flat]
        found: Bytes = torch.cat(rows, 1).numpy()
        return found

    def decode(self, rows: Bytes) -> Tree:
        """Stacked states of rows of bytes."""
        if not len(rows):  # as at a process that has no client of a round
            return tree.tmap(lambda t: t.new_empty((0, *t.shape)), self.initial)
        out, start = [], 0
        for shape, dtype, size in self.parts:
            own = torch.from_numpy(np.ascontiguousarray(rows[:, start : start + size]))
            out.append(own.view(dtype).reshape(len(rows), *shape))
            start += size
        found = iter(out)
        return tree.tmap(lambda _: next(found), self.initial)


class _File:
    """Rows of bytes in an anonymous file that is mapped and grows."""

    def __init__(self, width: int, most: int, folder: Path | None) -> None:
        self.width, self.most = width, most
        self.file = tempfile.TemporaryFile(prefix="states-", dir=folder)  # noqa: SIM115
        weakref.finalize(self, self.file.close)
        self.rows = 0
        self.pages: mmap.mmap | None = None
        self.array: Any = np.zeros((0, width), dtype=np.uint8)
        self.touched = 0

    def grow(self, rows: int) -> None:
        """Make room for so many rows; raises an OSError if the disk is full."""
        if rows <= self.rows:
            return
        self.rows = min(max(rows, 2 * self.rows, 1024), max(self.most, rows))
        size = self.rows * self.width
        if hasattr(os, "posix_fallocate"):  # else a full disk would end the process at a write
            os.posix_fallocate(self.file.fileno(), 0, size)
        else:
            self.file.truncate(size)
        self.pages = mmap.mmap(self.file.fileno(), size)
        self.array = np.frombuffer(self.pages, np.uint8).reshape(self.rows, self.width)

    def read(self, slots: NDArray[np.int64]) -> Bytes:
        """Some rows."""
        found: Bytes = self.array[slots]
        self._count(len(slots))
        return found

    def write(self, slots: NDArray[np.int64], rows: Bytes) -> None:
        """Replace some rows."""
        self.array[slots] = rows
        self._count(len(slots))

    def _count(self, rows: int) -> None:
        self.touched += rows * max(self.width, 4096)
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if self.touched > TOUCHED and self.pages is not None and advice is not None:
            self.pages.madvise(advice)  # of a file's shared mapping: nothing is lost
            self.touched = 0
