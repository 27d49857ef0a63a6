"""Whether a message's models are of the charter's network.

A wider network than the agreed one would tell more of the rows in a single reply, so a participant
compares every set of named tensors in a message with those that it makes itself from the charter:
the network's parameters, and the server's first state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Size, Tensor

from isonomy.core.algorithm import Algorithm
from isonomy.core.tree import Tree
from isonomy.federation.flower.codec import MalformedError
from isonomy.runs.build import Setting

Named = Mapping[str, Tensor]
GROWING = "matched"  # the family of methods whose networks grow as clients' layers are matched


class NetworkShapes:
    """The names, shapes and types of what a message may contain."""

    def __init__(self, known: list[Named], models: int) -> None:
        self.known = known
        self.models = models  # the most of them that may be stacked in one set of tensors

    def check(self, message: Tree) -> None:
        """Raise MalformedError if a message has a part of a known name and of another form."""
        for node in _sets(message):
            same = [one for one in self.known if not one.keys().isdisjoint(node)]
            if same and not any(self._fits(node, one) for one in same):
                raise MalformedError("its model is not of the charter's network")

    def _fits(self, node: Mapping[str, Any], known: Named) -> bool:
        """Whether tensors are some of the known ones, or equally many of each, stacked."""
        stacked: set[Size] = set()
        for name, given in node.items():
            own = known.get(name)
            if own is None or not isinstance(given, Tensor) or given.dtype != own.dtype:
                return False
            extra = given.ndim - own.ndim
            if extra < 0 or given.shape[extra:] != own.shape:
                return False
            stacked.add(given.shape[:extra])
        return len(stacked) == 1 and stacked.pop().numel() <= self.models


def shapes_of(setting: Setting, clients: int) -> NetworkShapes:
    """What follows from the charter; of a method whose networks grow, nothing does."""
    algorithm: Algorithm[Any] = setting.algorithm
    if algorithm.family == GROWING:
        return NetworkShapes([], clients)
    server = algorithm.init_server(setting.task, setting.params, clients)
    sets = [*_sets(setting.params), *_sets(server)]
    return NetworkShapes(
        [one for one in sets if one and all(isinstance(v, Tensor) for v in one.values())], clients
    )


def _sets(value: Tree) -> Iterator[Mapping[str, Any]]:
    """Every mapping in a tree."""
    if isinstance(value, Mapping):
        yield value
    children = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for child in children:
            yield from _sets(child)
