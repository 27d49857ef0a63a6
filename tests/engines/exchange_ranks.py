"""Ranks that exchange values of many kinds and lengths, for `test_exchange`.

    python exchange_ranks.py RANK SIZE PORT

Each prints as JSON what it received wrongly, and how many messages it read from shared memory.
Ranks read slowly, so that a faster one has time to overwrite what it wrote.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from isonomy.engines.distributed import memory
from isonomy.engines.distributed.ranks import Ranks, joined

memory.LARGEST = 1 << 22  # so that a test reaches it


class Pair(NamedTuple):
    name: str
    value: Tensor


@dataclass
class Holder:
    inside: list[Tensor]


def numbers(rank: int, turn: int, count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float64) + 1000 * rank + turn


def values(rank: int, turn: int) -> list[Any]:
    """What a rank sends, in order."""
    mixed = {
        "bool": torch.tensor([rank == 0, True]),
        "turned": numbers(rank, turn, 6).reshape(2, 3).T,
        "none": torch.zeros(0, 3),
        "one": torch.tensor(turn),
        "words": ["a", rank, None, Pair("b", numbers(rank, turn, 5).to(torch.float32))],
    }
    return [
        (rank, "x" * turn),
        mixed,
        numbers(rank, turn, 5_000),  # 40 kB
        numbers(rank, turn, 5_001),
        Holder([numbers(rank, turn, 30_000), torch.ones(3, dtype=torch.int32) * rank]),
        numbers(rank, turn, 30_000 + 20_000 * turn),  # longer in each turn
        numbers(rank, turn, 50_000) if rank == turn % 2 else rank,  # long from one rank only
        numbers(rank, turn, 600_000),  # longer than what is shared
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Holder):
        return isinstance(b, Holder) and same(a.inside, b.inside)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def main(rank: int, size: int, port: int) -> None:
    read, slow = [], memory.SharedMemory.read

    def slowly(self: memory.SharedMemory, of: int, area: int, length: int) -> Tensor:
        time.sleep(0.05 * rank)
        read.append(length)
        return slow(self, of, area, length)

    memory.SharedMemory.read = slowly  # type: ignore[method-assign]
    wrong = []
    with joined(rank, size, seconds=120, store=TCPStore("127.0.0.1", port)) as ranks:
        assert isinstance(ranks, Ranks)
        for turn in range(4):
            for number, value in enumerate(values(rank, turn)):
                got = ranks.gathered(value)
                for of in range(size):
                    if not same(got[of], values(of, turn)[number]):
                        wrong.append([turn, number, of])
        importlib.import_module("torch.distributed.nn.functional")  # as tracing does
        ranks.gathered(None)
    print(json.dumps({"wrong": wrong, "read": read, "threads": threads()}))


def threads() -> list[str]:
    """The names of gloo's threads in this process; of Linux only."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
