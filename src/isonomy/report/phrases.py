"""Short phrases that tables and pages share."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[object], most: int = 5) -> str:
    """The first items, separated by commas, and how many more there are.

    >>> listed([1, 2, 3], most=2)
    '1, 2 and 1 more'
    """
    named = ", ".join(str(item) for item in items[:most])
    return named + (f" and {len(items) - most} more" if len(items) > most else "")


def counted(number: int, what: str) -> str:
    """A number and a noun in the singular or plural.

    >>> counted(1, "client"), counted(2000, "client")
    ('1 client', '2,000 clients')
    """
    return f"{number:,} {what}{'s' if number != 1 else ''}"
