"""The registry of partitions: their names, options and meanings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, get_type_hints

from torch import Tensor

from isonomy.core.options import Option, check
from isonomy.data.partition.rows import Rows, Seed
from isonomy.errors import ConfigError, unknown

Spec = str | Mapping[str, Any]
"""A partition by name, or its name and options: {"name": "dirichlet", "beta": 0.5}."""

MINIMUM = "smallest number of rows of a client, before they are split"
BY = "what is skewed: 'label', 'group' or 'label*group'"
EXPONENT = "client k's size is proportional to (k+1) to the power of minus this; 0: equal sizes"


class _Function(Protocol):
    def __call__(self, rows: Rows, clients: int, seed: Seed, **options: Any) -> list[Tensor]: ...


@dataclass(frozen=True)
class Partition:
    """A named partition: its meaning, its options and its function.

    `function` is None where a data set makes its clients itself. `counts` is True where the
    number of clients follows from the data or the options. `angles` is set for partitions that
    also rotate the images of clients: it returns each client's angle in degrees, given the
    options. `tested` is set for partitions that also assign the official test rows: it returns
    the clients' training rows and test rows. `names` returns the clients' names, given the rows
    and the options; without it clients are called "client 0", "client 1", ...
    """

    name: str
    meaning: str
    options: Mapping[str, Option] = field(default_factory=dict)
    function: _Function | None = None
    counts: bool = False
    angles: Callable[..., tuple[float, ...]] | None = None
    tested: Callable[[Rows, Rows], tuple[list[Tensor], list[Tensor]]] | None = None
    names: Callable[..., tuple[str, ...]] | None = None

    def apply(
        self, rows: Rows, clients: int, seed: int, options: Mapping[str, Any]
    ) -> tuple[list[Tensor], tuple[str, ...]]:
        """Return the row numbers and the name of every client."""
        if self.function is None:
            raise ConfigError(
                f"partition '{self.name}' belongs to one data set and cannot be used with others; "
                "choose another partition."
            )
        members = self.function(rows, clients, seed, **options)
        if self.names is not None:
            return members, self.names(rows, **options)
        return members, tuple(f"client {k}" for k in range(len(members)))


PARTITIONS: dict[str, Partition] = {}
"""Partitions that work with the rows of any data set."""

IMAGE_PARTITIONS: dict[str, Partition] = {}
"""Partitions that work with data sets of images only."""

_F = TypeVar("_F", bound=Callable[..., list[Tensor]])


def partition(
    name: str,
    meaning: str,
    *,
    counted: bool = False,
    angles: Callable[..., tuple[float, ...]] | None = None,
    names: Callable[..., tuple[str, ...]] | None = None,
    **options: str,
) -> Callable[[_F], _F]:
    """Register a partition function.

    `options` gives the meaning of each option; its default is that of the function's signature. So
    is the type of an option whose default is an empty list, which has no items to tell it.
    """

    def register(function: _F) -> _F:
        defaults = inspect.signature(function).parameters
        types = get_type_hints(function)
        entries = {
            key: Option(
                defaults[key].default, text, types[key] if defaults[key].default == () else None
            )
            for key, text in options.items()
        }
        registry = PARTITIONS if angles is None else IMAGE_PARTITIONS
        registry[name] = Partition(
            name, meaning, entries, function, counted, angles=angles, names=names
        )
        return function

    return register


def plan(
    spec: Spec, known: Mapping[str, Partition] = PARTITIONS
) -> tuple[Partition, dict[str, Any]]:
    """Return the partition that a specification names, and its options with defaults filled in."""
    given = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            'data.partition has no name; write it as "iid" or {name = "dirichlet", beta = 0.5}.'
        )
    if name not in known:
        raise ConfigError(unknown("partition", name, known))
    return known[name], check("data.partition", name, known[name].options, given)
