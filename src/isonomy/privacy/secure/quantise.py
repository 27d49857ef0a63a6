"""Replies as vectors of integers, of which the weighted sum is computed without rounding.

A number x of a reply becomes the integer round(x / step), cut to the range that was agreed on, and
is multiplied by the client's weight, an integer. Sums of these are exact and do not depend on their
order. They cannot overflow: words have 32 or 64 bits, and the bits of a number and those of the sum
of all weights (`room`) are together at most as many. The vector ends with the weight, and with how
many numbers were cut.

Models and updates are cut to [-clip, clip] in steps of clip / 2^(bits - 1). Other numbers, such as
losses, counts and gradients, are cut to [-range, range], in the finest steps that 64 bits leave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.phase import Declaration, Kind
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError

BOUNDED: frozenset[Kind] = frozenset(("model", "update"))
EXTRA = 2  # numbers after those of the reply: the weight, and how many numbers were cut


class Settings(Protocol):
    """The config's table `secure`, as far as it decides how replies are written."""

    @property
    def clip(self) -> float:
        """The largest number of a model or an update."""

    @property
    def bits(self) -> int:
        """The bits of such a number."""

    @property
    def range(self) -> float:
        """The largest number of other parts."""


class GarbledError(ValueError):
    """A sum that no replies within the ranges give; the text says why."""


class Leaf(NamedTuple):
    """How one tensor of a reply is written."""

    part: str
    path: str
    shape: tuple[int, ...]
    scale: float  # steps in 1
    most: int  # the largest integer


class Decoded(NamedTuple):
    """A sum: its tree in double precision, the sum of weights, and how many numbers were cut."""

    value: Tree
    total: int
    cut: int


def room_for(weights: int, clients: int) -> int:
    """The bits that a sum of weights takes, and so how many more a sum has than a number.

    >>> room_for(1000, 3), room_for(3, 3), room_for(1, 1)
    (10, 2, 1)
    """
    return max(1, math.ceil(math.log2(max(weights, clients) + 1)))


@dataclass(frozen=True)
class Encoding:
    """How the replies to one question are written, derived by the server and by each client."""

    like: Tree  # a reply with the right shapes
    leaves: tuple[Leaf, ...]
    word: int  # bits
    room: int

    @classmethod
    def of(cls, declared: Declaration, like: Tree, room: int, settings: Settings) -> Encoding:
        """The encoding of replies of this shape; raises ConfigError if 64 bits are too few."""
        kinds = {name: part.kind for name, part in declared.parts.items()}
        bounded = all(kind in BOUNDED for kind in kinds.values())
        word = 32 if bounded and settings.bits + room <= 32 else 64
        fine = 63 - room - math.ceil(math.log2(settings.range))  # bits behind the point
        if settings.bits + room > 64 or (not bounded and fine < 0):
            key = "bits" if settings.bits + room > 64 else "range"
            raise ConfigError(
                f"secure.{key} = {getattr(settings, key):g}: a sum of replies to "
                f"'{declared.name}' would not fit into 64 bits, because the weights of its clients "
                f"take {room}; lower secure.{key}."
            )
        leaves = []
        for part in sorted(kinds):
            for path, t in sorted(tree.pack(like[part])[0].items()):
                most = 2 ** (settings.bits - 1)
                scale = most / settings.clip
                if kinds[part] not in BOUNDED:
                    scale = 2.0**fine
                    most = math.ceil(settings.range * scale)
                leaves.append(Leaf(part, path, tuple(t.shape), scale, most - 1))
        return cls(like, tuple(leaves), word, room)

    @property
    def length(self) -> int:
        """Integers in a vector."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves) + EXTRA

    def count(self, part: str) -> int:
        """Integers of one part."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves if leaf.part == part)

    @property
    def nbytes(self) -> int:
        """Bytes of a vector."""
        return self.length * self.word // 8

    @property
    def dtype(self) -> torch.dtype:
        """The integers of a vector; their sums wrap around."""
        return torch.int32 if self.word == 32 else torch.int64

    def summed(self, stacked: Tree, weights: Tensor) -> Tensor:
        """The sum of the vectors of several clients, whose replies are stacked.

        Raises ValueError for weights that are not whole numbers.
        """
        whole = weights.to(torch.int64)
        if not torch.equal(whole.double(), weights.double()) or bool((whole < 0).any()):
            raise ValueError("weights under secure aggregation are whole numbers")
        arrays = {part: tree.pack(stacked[part])[0] for part in {leaf.part for leaf in self.leaves}}
        out, cut = [], torch.zeros(len(whole), dtype=torch.int64)
        for leaf in self.leaves:
            flat = arrays[leaf.part][leaf.path].cpu().reshape(len(whole), -1).double() * leaf.scale
            cut += (flat.abs() > leaf.most + 1).sum(-1)
            edge = float(leaf.most + 1)
            near = flat.round().clamp(-edge, edge).to(torch.int64).clamp(-leaf.most, leaf.most)
            out.append((near * whole.unsqueeze(-1)).sum(0))
        limit = 2 ** (self.word - 1 - self.room) - 1
        out += [whole.sum().reshape(1), cut.clamp(max=limit).sum().reshape(1)]
        return torch.cat(out).to(self.dtype)

    def vector(self, reply: Tree, weight: int) -> Tensor:
        """One client's reply, as integers; raises GarbledError if it is not finite."""
        if not tree.finite(reply):
            raise GarbledError("its reply holds numbers that are not finite")
        return self.summed(tree.tmap(lambda t: t.unsqueeze(0), reply), torch.tensor([weight]))

    def decoded(self, total: Tensor) -> Decoded:
        """The sum of vectors as numbers; raises GarbledError if no replies give it."""
        weight, cut = int(total[-2]), int(total[-1])
        if not 0 <= weight < 2**self.room or cut < 0:
            raise GarbledError("its weights are not those of the clients")
        arrays: dict[str, dict[str, Tensor]] = {}
        at = 0
        for leaf in self.leaves:
            size = math.prod(leaf.shape)
            part = total[at : at + size].to(torch.int64)
            at += size
            most = leaf.most * weight
            if size and (int(part.max()) > most or int(part.min()) < -most):
                raise GarbledError(f"'{leaf.part}' is larger than replies in the agreed range give")
            number = (part.double() / leaf.scale).reshape(leaf.shape)
            arrays.setdefault(leaf.part, {})[leaf.path] = number
        value = {
            part: tree.like(
                self.like[part], tree.unpack(arrays.get(part, {}), tree.pack(self.like[part])[1])
            )
            for part in self.like
        }
        return Decoded(value, weight, cut)
