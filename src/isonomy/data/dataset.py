"""What a data set by name is: a file in `datasets` with a `DATASET`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.core.options import Option
from isonomy.data.download.fetch import File, Progress
from isonomy.data.federation import Federation
from isonomy.data.partition import Partition
from isonomy.errors import DataError


@dataclass(frozen=True)
class Request:
    """What was asked of a data set, checked and complete.

    `clients` is 0 where the partition counts them itself.
    """

    clients: int
    seed: int
    partition: Partition
    partition_options: Mapping[str, Any]
    options: Mapping[str, Any]
    progress: Progress | None = None


@dataclass(frozen=True)
class Fact:
    """Something that is true of the whole data set: what was counted, and what there is.

    >>> Fact("rows", 48_842, 48_842).holds, Fact("mean", 0.13066, 0.1307, within=5e-5).holds
    (True, True)
    """

    what: str
    found: float
    right: float
    within: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the count is right."""
        return abs(self.found - self.right) <= self.within


def insist(name: str, facts: Sequence[Fact]) -> None:
    """Refuse files that are not the whole data set."""
    for fact in facts:
        if not fact.holds:
            raise DataError(
                f"this is not the whole {name} data set: it has {fact.found:,} {fact.what} where "
                f"there are {fact.right:,}; leave the option 'path' out to have it fetched."
            )


@dataclass(frozen=True)
class Dataset:
    """A data set by name: how it is loaded, what can be chosen, and what to say about it.

    `clients` and `partition` are the defaults; `partitions` are those it understands;
    `protected` names the attributes it has unless told otherwise. `files` are the choices of
    files to fetch, and `facts` counts in fetched files what must be true of them.
    """

    name: str
    description: str
    source: str
    licence: str
    load: Callable[[Request], Federation]
    options: Mapping[str, Option]
    protected: tuple[str, ...]
    clients: int
    partition: Mapping[str, Any]
    partitions: Mapping[str, Partition]
    files: tuple[tuple[File, ...], ...] = ()
    facts: Callable[[Sequence[Path]], list[Fact]] | None = None
    example: str = ""  # in a config, where name and clients are not what is needed
