"""Exact quantiles of the numbers of all clients, found by counting."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from isonomy.data.tables import phases
from isonomy.data.tables.phases import Ask, Message


def order_statistics(ask: Ask, column: str, ranks: Sequence[int], *, train: bool) -> list[float]:
    """Return the numbers at these ranks (from 1) among the numbers of all clients.

    Each phase counts the numbers below marks that divide every open interval in 64, until an
    interval contains a single number. Intervals are divided in the order of all double-precision
    numbers, so 11 phases suffice however far apart the clients' numbers are.
    """
    message: Message = {"column": column, "train": train}
    spans = [reply for reply in ask(phases.span, message) if reply["count"]]
    low, high = min(s["low"] for s in spans), max(s["high"] for s in spans)
    interval = dict.fromkeys(ranks, (_position(low) - 1, _position(high)))  # in (a, b]
    while True:
        inner = {a + (b - a) * i // 64 for a, b in set(interval.values()) for i in range(1, 64)}
        marks = sorted(inner - {end for ends in interval.values() for end in ends})
        if not marks:
            return [_real(interval[rank][1]) for rank in ranks]
        replies = ask(phases.below, message | {"marks": [_real(mark) for mark in marks]})
        counts = np.sum([reply["counts"] for reply in replies], axis=0)
        for rank, (a, b) in interval.items():
            first = int(np.searchsorted(counts, rank))  # the first mark with enough below it
            after = max(a, marks[first - 1]) if first else a
            interval[rank] = after, min(b, marks[first]) if first < len(marks) else b


def grid_median(ask: Ask, column: str, low: float, high: float, count: int, least: int) -> float:
    """Return the median up to the distance of even marks, of which each client is asked once."""
    message: Message = {"column": column, "low": low, "high": high, "least": least}
    counts = np.sum([reply["counts"] for reply in ask(phases.grid, message)], axis=0)
    marks = [low, *phases.marks_between(low, high).tolist(), high]
    return float(np.interp((count + 1) / 2, [0, *counts.tolist(), count], marks))


def _position(real: float) -> int:
    """Return the position of a number in the order of all doubles; 0 has position 0.

    >>> _position(5e-324), _position(-5e-324), _real(_position(0.1))
    (1, -1, 0.1)
    """
    bits: int = struct.unpack("<q", struct.pack("<d", real))[0]
    return bits if bits >= 0 else -(bits & (1 << 63) - 1)


def _real(position: int) -> float:
    real: float = struct.unpack("<d", struct.pack("<q", abs(position)))[0]
    return real if position >= 0 else -real
