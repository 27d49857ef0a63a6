"""Files in a folder of tables that are not tables of clients: lists, notes, other tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def strays(headers: Sequence[Sequence[str]]) -> list[int]:
    """Return the files that have fewer than half of the columns that most files have.

    There are none if they would be more than a third of the files, because then nothing is usual.

    >>> strays([["age", "sex", "died"]] * 4 + [["code", "meaning"]])
    [4]
    >>> strays([["age", "sex"], ["code", "meaning"]])
    []
    """
    counts = Counter(name for header in headers for name in set(header))
    usual = {name for name, number in counts.items() if 2 * number > len(headers)}
    if not usual:
        return []
    out = [k for k, header in enumerate(headers) if 2 * len(usual & set(header)) < len(usual)]
    return out if 3 * len(out) <= len(headers) else []
