"""Many clients' states in a model's folder: of those that have another than the initial one.

clients.safetensors has `ids` (ascending), `rows` (each client's state as bytes) and `checks`, a
checksum of every row. A reader maps it and uses the memory of the rows that it reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.tree import Tree
from isonomy.engines.states import BLOCK, Known, Layout
from isonomy.runs.files import flush_to_disk, opened
from isonomy.runs.state_store import checks, write_rows

STATES = "clients.safetensors"


class SavedStates:
    """The states of a model's clients."""

    def __init__(self, path: Path, initial: State) -> None:
        self.path, self.initial = path, initial
        self.layout = Layout(initial)
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            about = json.loads(file.read(length))
        start, width = 8 + length, self.layout.width
        count = about["ids"]["shape"][0]
        if about["rows"]["shape"] != [count, width]:
            raise ValueError("the clients' states have another size")
        if os.path.getsize(path) != start + count * (width + 16):
            raise ValueError(f"'{path.name}' is incomplete")
        offsets = {name: start + about[name]["data_offsets"][0] for name in about}
        shapes = {"ids": count, "checks": count}
        self.ids, self.checks = (
            np.memmap(path, np.int64, "r", offsets[name], (shapes[name],))
            if count
            else np.zeros(0, np.int64)
            for name in ("ids", "checks")
        )
        self.rows = (
            np.memmap(path, np.uint8, "r", offsets["rows"], (count, width))
            if count
            else np.zeros((0, width), np.uint8)
        )

    def of(self, client: int) -> State:
        """One client's state."""
        at = int(np.searchsorted(self.ids, client))
        if at == len(self.ids) or self.ids[at] != client:
            return self.initial
        return tree.take(self._decoded(slice(at, at + 1)), 0)

    def known(self) -> Iterator[Known]:
        """The states that are not the initial one, a block at a time."""
        for start in range(0, len(self.ids), BLOCK):
            at = slice(start, start + BLOCK)
            yield torch.from_numpy(np.array(self.ids[at])), self._decoded(at)

    def stacked(self, clients: int) -> Tree:
        """Every client's state, in memory."""
        out = tree.tmap(lambda t: t.unsqueeze(0).expand(clients, *t.shape).clone(), self.initial)
        for ids, found in self.known():
            tree.tmap(lambda a, b, ids=ids: a.index_copy_(0, ids, b), out, found)
        return out

    def _decoded(self, at: slice) -> Tree:
        rows = np.array(self.rows[at])
        if not np.array_equal(checks(rows), self.checks[at]):
            raise ValueError(f"a state in '{self.path.name}' is damaged")
        return self.layout.decode(rows)


def write_states(path: Path, initial: State, ids: Tensor, known: Iterable[Known]) -> None:
    """Write states; `ids` are all clients of `known`, ascending, and blocks may come in any order.

    The file is complete or absent.
    """
    layout, count = Layout(initial), len(ids)
    ends = np.cumsum([0, 8 * count, 8 * count, layout.width * count]).tolist()
    about = {
        name: {"dtype": kind, "shape": shape, "data_offsets": [ends[i], ends[i + 1]]}
        for i, (name, kind, shape) in enumerate(
            [
                ("ids", "I64", [count]),
                ("checks", "I64", [count]),
                ("rows", "U8", [count, layout.width]),
            ]
        )
    }
    text = json.dumps(about, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 64) * 64 - 8 + 64)
    start = 8 + len(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    found, sums = ids.numpy(), np.zeros(count, np.int64)
    try:
        partial.unlink(missing_ok=True)
        with opened(partial, os.O_EXCL) as file:
            file.write(len(text).to_bytes(8, "little") + text + found.tobytes())
            for own, states in known:
                at, rows = np.searchsorted(found, own.numpy()), layout.encode(states)
                sums[at] = checks(rows)
                write_rows(file, at, rows, start + ends[2])
            file.seek(start + ends[1])
            file.write(sums.tobytes())
            flush_to_disk(file)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
