"""Exact quantiles of the numbers of all clients, found by counting."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from isonomy.data.tables import phases
from isonomy.data.tables.phases import Ask, Message


def order_statistics(ask: Ask, column: str, ranks: Sequence[int], *, train: bool) -> list[float]:
    """The numbers at these ranks (from 1) among all clients', found by counting.

    Each phase counts at marks that cut every open stretch in 64, until no number is left between
    its ends. They are cut by the order of all reals there are, which 11 phases get through however
    far apart the clients' numbers lie.
    """
    message: Message = {"column": column, "train": train}
    spans = [reply for reply in ask(phases.span, message) if reply["count"]]
    low, high = min(s["low"] for s in spans), max(s["high"] for s in spans)
    stretch = dict.fromkeys(ranks, (_place(low) - 1, _place(high)))  # the answer is in (a, b]
    while True:
        inner = {a + (b - a) * i // 64 for a, b in set(stretch.values()) for i in range(1, 64)}
        marks = sorted(inner - {end for ends in stretch.values() for end in ends})
        if not marks:
            return [_real(stretch[rank][1]) for rank in ranks]
        replies = ask(phases.below, message | {"marks": [_real(mark) for mark in marks]})
        counts = np.sum([reply["counts"] for reply in replies], axis=0)
        for rank, (a, b) in stretch.items():
            first = int(np.searchsorted(counts, rank))  # the first mark with enough below it
            after = max(a, marks[first - 1]) if first else a
            stretch[rank] = after, min(b, marks[first]) if first < len(marks) else b


def _place(real: float) -> int:
    """A real's place in the order of all double-precision numbers; 0 has place 0.

    >>> _place(5e-324), _place(-5e-324), _real(_place(0.1))
    (1, -1, 0.1)
    """
    bits: int = struct.unpack("<q", struct.pack("<d", real))[0]
    return bits if bits >= 0 else -(bits & (1 << 63) - 1)


def _real(place: int) -> float:
    real: float = struct.unpack("<d", struct.pack("<q", abs(place)))[0]
    return real if place >= 0 else -real
