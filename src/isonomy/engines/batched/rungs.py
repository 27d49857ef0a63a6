"""How many lanes a step program is made for, when clients finish one after the other."""

from __future__ import annotations

from bisect import bisect_left

RUNGS = (1, 2, 4, 8)  # numbers of lanes that programs are made for, up to the last; then `ladder`
COMPILED_RUNGS = (1, 8, 64)  # fewer, because compiling takes seconds
WORTH = 32  # steps in one fold for which a program of its own is worth its tracing


def ladder(active: int, rungs: tuple[int, ...]) -> int:
    """The number of lanes that a program is made for: one of few, at least `active`.

    >>> [ladder(n, RUNGS) for n in (1, 3, 8, 9, 13, 17, 100)]
    [1, 4, 8, 12, 16, 24, 128]
    """
    for rung in rungs:
        if active <= rung:
            return rung
    top = rungs[-1]
    while top < active:
        top = top * 3 // 2 if top & (top - 1) == 0 and top > 1 else -(-top * 4 // 3)
    return top


def rung(falling: list[int], done: int, rungs: tuple[int, ...]) -> int:
    """The number of lanes for the next steps; `falling` is minus each lane's steps, sorted.

    A rung of few lanes is used only if enough steps follow before the next one would do.

    >>> rung([-90, -50, -48, -7], 7, RUNGS), rung([-90, -50, -48, -7], 48, RUNGS)
    (4, 8)
    """
    active = bisect_left(falling, -done)
    for one in rungs[:-1]:
        if active <= one and _steps_at(one, falling, done, rungs) >= WORTH:
            return one
    return ladder(active, rungs[-1:])


def _steps_at(lanes: int, falling: list[int], done: int, rungs: tuple[int, ...]) -> int:
    """The steps until so many lanes are more than needed, because those of the rung below do."""
    below = max((one for one in (0, *rungs) if one < lanes), default=0)
    return -falling[below] - done if below < len(falling) else 0
