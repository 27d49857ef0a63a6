"""Secure aggregation in a simulation: the same quantisation and threshold, without masks.

Sums of integers are exact, so a simulation gives the same bits as a real federation in which the
same clients answer with the same replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.cohort import Ask, Exchange, Replies, Summed
from isonomy.core.tree import Tree
from isonomy.privacy.secure.check import check_ask
from isonomy.privacy.secure.quantise import Encoding, Settings, room_for
from isonomy.privacy.secure.threshold import least
from isonomy.privacy.shares import ShareRelease

Room = Callable[[Ask], int]


def room_of(sizes: Tensor) -> Room:
    """How many bits the sum of weights takes, for clients of these sizes: one rule for everyone."""
    total, clients = int(sizes.sum()), len(sizes)

    def room(ask: Ask) -> int:
        return room_for(total if ask.weighting == "size" else clients, clients)

    return room


class Quantised:
    """Server-side middleware, the outermost: replies become one sum of integers.

    What is a sum already, in a real federation, stays as it is. `cut` counts the numbers that were
    outside of their range, and `short` the exchanges that gave no sum, because fewer clients than
    the threshold answered. With `private`, clients add their shares of the noise.
    """

    def __init__(
        self, settings: Settings, threshold: int, room: Room, private: ShareRelease | None = None
    ) -> None:
        self.settings, self.threshold, self.room = settings, threshold, room
        self.private = private
        self.cut = self.short = 0

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange."""

        def wrapped(ask: Ask) -> Iterator[Replies | Summed]:
            check_ask(ask)
            if not ask.declared.parts:  # nothing is replied
                yield from exchange(ask)
                return
            yield from self._summed(ask, exchange(ask))

        return wrapped

    def nbytes(self, ask: Ask, chunk: Replies | Summed) -> int:
        """The bytes of these replies as they are sent, masked."""
        if not ask.declared.parts:
            return 0
        like = chunk.value if isinstance(chunk, Summed) else tree.take(chunk.value, 0)
        return len(chunk.ids) * self.encoding(ask, like).nbytes

    def encoding(self, ask: Ask, like: Tree) -> Encoding:
        """How replies to this question are written."""
        if self.private is not None:
            return self.private.shares.encoding(ask.declared, like, self.room(ask))
        return Encoding.of(ask.declared, like, self.room(ask), self.settings)

    def _noised(self, ask: Ask, encoding: Encoding, chunk: Replies, made: ShareRelease) -> Tensor:
        """The sum of clipped replies, to which each client has added its noise."""
        out = torch.zeros(encoding.length, dtype=encoding.dtype)
        for i, k in enumerate(chunk.ids.tolist()):
            own, draw = tree.take(chunk.value, i), made.draw(ask, k)
            out += made.shares.vector(encoding, ask.declared, ask.message, own, draw)
        return out

    def _summed(self, ask: Ask, chunks: Iterator[Replies | Summed]) -> Iterator[Summed]:
        weights = torch.ones(len(ask.ids)) if ask.weights is None else ask.weights
        by_id = dict(zip(ask.ids.tolist(), weights.tolist(), strict=True))
        encoding: Encoding | None = None
        total, ids = torch.zeros(()), []
        for chunk in chunks:
            if isinstance(chunk, Summed):
                self.cut += chunk.cut
                yield chunk
                return
            own = torch.tensor([by_id[k] for k in chunk.ids.tolist()], dtype=torch.float64)
            if encoding is None:
                encoding = self.encoding(ask, tree.take(chunk.value, 0))
                total = torch.zeros(encoding.length, dtype=encoding.dtype)
            if self.private is None:
                total += encoding.summed(chunk.value, own)
            else:
                total += self._noised(ask, encoding, chunk, self.private)
            ids.append(chunk.ids)
        answered = torch.cat(ids) if ids else torch.arange(0)
        if encoding is None or len(answered) < least(self.threshold, len(ask.ids)):
            self.short += 1
            return
        found = encoding.decoded(total)
        self.cut += found.cut
        yield Summed(found.value, answered, float(found.total), found.cut)
