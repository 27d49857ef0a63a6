"""How many lanes step programs are made for, when clients finish one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

RUNGS = (1, 2, 4, 8)  # numbers of lanes that programs are made for, up to the last; see `ladder`
COMPILED_RUNGS = (1, 8, 64)  # fewer, because compiling takes seconds
WORTH = 32  # steps for which a program of fewer lanes than the last of these is worth its tracing
# Numbers in the carry that a step could update in the time that it takes to go on with another
# program: about 150 microseconds, in which W1's network updates 20 lanes of 4,554 numbers.
CHANGE = 100_000


def ladder(below: int, rungs: tuple[int, ...]) -> Iterator[int]:
    """The numbers of lanes that programs are made for, if fewer than `below` are enough.

    >>> list(ladder(100, RUNGS))
    [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96]
    """
    for rung in rungs:
        if rung < below:
            yield rung
    rung = rungs[-1]
    while True:
        rung = rung * 3 // 2 if rung & (rung - 1) == 0 and rung > 1 else -(-rung * 4 // 3)
        if rung >= below:
            return
        yield rung


def schedule(
    counts: list[int], rungs: tuple[int, ...], numbers: float
) -> Iterator[tuple[int, int]]:
    """Numbers of lanes, and until which step each of them is used; at least those that are active.

    `counts` are the steps of each lane, the longest first, and `numbers` how many numbers a lane
    carries from step to step. The time is as short as possible, where a step takes time in
    proportion to its lanes, and each change as long as updating CHANGE numbers. The choice
    depends on these numbers alone, so a repetition computes the same.

    >>> list(schedule([90, 50, 48, 7, 7, 2], RUNGS, 1e6))
    [(6, 7), (4, 50), (1, 90)]
    >>> list(schedule([90, 50, 48, 7, 7, 2], RUNGS, 10))
    [(6, 90)]
    """
    starts, lanes = [0], [len(counts)]
    for rung in reversed(list(ladder(len(counts), rungs))):
        at = counts[rung]  # from here on, so many lanes are enough
        if at >= counts[0]:
            break
        if at == starts[-1]:
            lanes[-1] = rung
        else:
            starts.append(at)
            lanes.append(rung)
    starts.append(counts[0])
    last = len(lanes)
    after, least = [last] * last, [math.inf] * last + [0.0]
    for i in reversed(range(last)):
        small = i > 0 and lanes[i] < rungs[-1]
        for j in range(i + 1, last + 1):
            steps = starts[j] - starts[i]
            cost = CHANGE + steps * lanes[i] * numbers + least[j]
            if cost < least[i] and not (small and steps < WORTH):
                after[i], least[i] = j, cost
    i = 0
    while i < last:
        yield lanes[i], starts[after[i]]
        i = after[i]
