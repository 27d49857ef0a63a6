"""Where a cohort of clients is cut into chunks that are computed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from isonomy.core.work import Work

MEMORY = 256 * 2**20  # bytes a chunk may take
PADDING = 200_000  # examples: more of it in the batch plans of a chunk costs more than a new chunk
MEASURED = 8_192  # the same for a phase that trains nothing: its chunks have no steps to repeat

Numbers = NDArray[np.int64]


def cuts(
    splits: Numbers, work: Work, most: int, width: int, padding: int
) -> Iterator[tuple[int, int]]:
    """The first client of each chunk, and the first one after it.

    `splits` [clients, splits] are the numbers of examples, those of training first, and `width`
    that of the features. A chunk has at most `most` clients, or fewer: as many as fit in memory,
    and as have no more `padding` in examples. One client always fits.

    >>> sizes = np.array([[90_000], [80_000], [100], [100], [100]])
    >>> [list(cuts(sizes, Work(), most, width=1, padding=200_000)) for most in (2, 9)]
    [[(0, 2), (2, 4), (4, 5)], [(0, 4), (4, 5)]]
    """
    own, held = splits[:, 0], splits.max(1)
    if 0 < len(own) <= most and _fits_at_once(own, held, work, width, padding):
        yield 0, len(own)
        return
    kinds, kind = np.unique(own, return_inverse=True)
    passes = _of(work.passes, kinds)[kind]
    steps = (_of(work.count, kinds) * _of(work.width, kinds))[kind]  # examples in all steps
    first = 0
    while first < len(own):
        at = slice(first, min(first + most, len(own)))
        lanes = np.arange(1, at.stop - first + 1)
        largest = np.maximum.accumulate(own[at])
        longest = np.maximum.accumulate(passes[at])
        # a chunk's plans have the shape of those of its largest client
        plan = 32 * longest * largest + 16 * np.maximum.accumulate(steps[at])
        memory = lanes * (plan + 4 * width * np.maximum.accumulate(held[at]))
        padded = longest * (lanes * largest - own[at].cumsum())
        full = (memory > MEMORY) | (padded > padding)
        full[0] = False
        last = first + int(full.argmax()) if full.any() else at.stop
        yield first, last
        first = last


def _fits_at_once(own: Numbers, held: Numbers, work: Work, width: int, padding: int) -> bool:
    """Whether a few clients certainly fit in one chunk; it is enough to look at the extremes."""
    largest, smallest = int(own.max()), int(own.min())
    passes = work.passes(smallest)  # the smallest client makes the most
    steps = work.count(largest) * work.width(largest)
    memory = len(own) * (32 * passes * largest + 16 * steps + 4 * width * int(held.max()))
    padded = passes * (len(own) * largest - int(own.sum()))
    return memory <= MEMORY and padded <= padding


def _of(function: Callable[[int], int], kinds: Numbers) -> Numbers:
    """A function of each number."""
    return np.array([function(n) for n in kinds.tolist()], np.int64)
