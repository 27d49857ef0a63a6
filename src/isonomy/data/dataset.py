"""The definition of a named data set: a file in `datasets` with a `DATASET`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A checked and complete request for a data set.

    `clients` is 0 if the partition determines their number. `fit` fits the preprocessing of tables
    in place of `isonomy.data.tables.fit.fit`, if it is given.
    """

    clients: int
    seed: int
    partition: Partition
    partition_options: Mapping[str, Any]
    options: Mapping[str, Any]
    progress: Progress | None = None
    fit: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Fact:
    """A known property of a complete data set: the value found, and the right value.

    >>> Fact("rows", 48_842, 48_842).holds, Fact("mean", 0.13066, 0.1307, within=5e-5).holds
    (True, True)
    """

    what: str
    found: float
    right: float
    within: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the value found is right."""
        return abs(self.found - self.right) <= self.within


def check_facts(name: str, facts: Sequence[Fact]) -> None:
    """Raise DataError if the files are not the complete data set."""
    for fact in facts:
        if not fact.holds:
            raise DataError(
                f"this is not the complete {name} data set: it has {fact.found:,} {fact.what} "
                f"instead of {fact.right:,}; remove the option 'path' to download it."
            )


@dataclass(frozen=True)
class Dataset:
    """A named data set: how it is loaded, its options, and its description.

    `clients` and `partition` are the defaults; `partitions` are those it supports; `protected`
    names its default attributes. `parts` yields the same clients, some at a time, if the data set
    can be made in that way. `files` are the alternatives of files to download, and `facts`
    computes the known properties of downloaded files.
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
    parts: Callable[[Request], Iterator[Federation]] | None = None
    example: str = ""  # of a config, if name and clients do not suffice
