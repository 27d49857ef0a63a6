"""What a data set is: one file in this folder with a `DATASET`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isonomy.data.federation import Federation
from isonomy.data.fetch import Progress
from isonomy.data.options import Option
from isonomy.data.partition import Partition


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
class Dataset:
    """A data set by name: how it is loaded, what can be chosen, and what to say about it.

    `clients` and `partition` are the defaults; `partitions` are those it understands;
    `protected` names the attributes it has unless told otherwise.
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
