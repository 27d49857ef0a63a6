"""The engine of a run that several processes compute together.

Clients are divided into shares of about the same work (`isonomy.engines.shares`). Every rank runs
the same algorithm with the same server's state, holds the states of its own shares' clients, and
runs their phases with the batched engine. The cohort joins what the ranks computed: sums are added
share by share, replies are gathered. So the result depends on the number of shares, but not on how
many ranks compute them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.cohort import Ask, Replies
from isonomy.core.joint import Division
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine, EngineOptions, Note
from isonomy.engines.batched.engine import Batched
from isonomy.engines.devices import to_host
from isonomy.engines.distributed import ranks as processes
from isonomy.engines.distributed.ranks import Ranks
from isonomy.engines.states import Known, SparseStates, blocks


class Distributed(Engine):
    """One rank's part of a run. Without ranks, this process computes all shares.

    `shares` is the number of shares, by default one for each rank. `inner` runs the clients.
    """

    name = "distributed"

    def __init__(
        self,
        task: Task,
        federation: Federation,
        *,
        seed: int = 0,
        shares: int | Literal["auto"] = "auto",
        ranks: Ranks | None = None,
        inner: Batched | None = None,
    ) -> None:
        super().__init__(task, federation, seed=seed)
        self.ranks = ranks
        self.leads = ranks is None or ranks.leads
        self.inner = Batched(task, federation, seed=seed) if inner is None else inner
        self.place, self.pool = self.inner.place, self.inner.pool
        size = 1 if ranks is None else ranks.size
        self.inner.divide(size if shares == "auto" else shares, joint=ranks)
        self._notes: list[str] = []
        self._hold()

    @classmethod
    def make(
        cls, task: Task, federation: Federation, *, seed: int, options: EngineOptions, note: Note
    ) -> Self:
        """The engine of the ranks that this process is one of."""
        inner = Batched.make(task, federation, seed=seed, options=options, note=note)
        now = processes.current()
        return cls(task, federation, seed=seed, shares=options.shares, ranks=now, inner=inner)

    def _hold(self) -> None:
        """Choose the shares of this rank: contiguous ones, as many as the other ranks have."""
        if self.ranks is not None:
            shares, size = self.inner.shares, self.ranks.size
            mine = [s for s in range(shares) if self._owner(s) == self.ranks.rank]
            self.inner.held = mine
            if shares < size and self.leads:
                self._notes.append(
                    f"the clients of this run are in {shares} shares (engine.shares), so "
                    f"{size - shares} of {size} ranks have no clients."
                )

    def _owner(self, share: int) -> int:
        """The rank that computes a share."""
        if self.ranks is None:
            return 0
        return share * self.ranks.size // max(self.inner.shares, self.ranks.size)

    # --- the batched engine of this rank --------------------------------------------------------

    def prepare(self, work: Work) -> None:
        """Divide clients by this work."""
        self.inner.prepare(work)

    def try_threads(self, most: int) -> None:
        """The threads of each rank."""
        self.inner.try_threads(most)

    def reset(self, initial: State) -> None:
        """Give every client of this rank the same initial state."""
        self.inner.states_in, self.inner.scratch = self.states_in, self.scratch
        self.inner.reset(initial)
        self.states = self.inner.states

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """The replies of this rank's clients."""
        return self.inner.exchange(ask)

    def take_notes(self) -> list[str]:
        """Sentences of this engine and of the batched one."""
        notes, self._notes = [*self._notes, *self.inner.take_notes()], []
        return notes

    def saved(self) -> dict[str, Any]:
        """What the batched engine keeps, and the number of shares."""
        return self.inner.saved()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with as many shares as the run began with, whatever the number of ranks."""
        self.inner.restore(saved)
        self._hold()
        self.reset(self.inner.initial)

    # --- several processes ----------------------------------------------------------------------

    @property
    def division(self) -> Division:
        """The shares, and the ranks that compute them."""
        return self.inner.division

    def agreed(self, server: Tree) -> Tree:
        """Rank 0's state, if the ranks differ; that they do is noted once.

        They compute the same, but processors of different kinds may round differently.
        """
        if self.ranks is None or len(set(self.ranks.gathered(_digest(server)))) == 1:
            return server
        text = (
            "the ranks differ in rounding, perhaps because their processors differ; the model of "
            "rank 0 is used, and a repetition may differ in rounding."
        )
        if self.leads and text not in self._notes:
            self._notes.append(text)
        theirs: Tree = self.ranks.gathered(server if self.leads else None)[0]
        return tree.like(server, theirs)

    def finite(self, ids: Tensor) -> bool:
        """Whether the states of these clients are finite, in all ranks."""
        held = self.states.held
        own = ids if held is None else ids[torch.isin(ids, held)]
        return all(self.everywhere(tree.finite(self.states.take(own))))

    def all_states(self) -> Tree:
        """Every client's state, gathered."""
        if self.ranks is None or self.states.empty:
            return to_host(self.states.stacked)
        held, stacked = self.states.held, to_host(self.states.stacked)
        parts = self.everywhere((self.everyone() if held is None else held, stacked))
        order = torch.cat([ids for ids, _ in parts]).argsort()
        return tree.take(tree.concat([stacked for _, stacked in parts]), order)

    def shards(self) -> Iterator[Tree]:
        """The states of each share's clients, sent to rank 0 one share at a time."""
        if self.ranks is None:
            yield from self.inner.shards()
            return
        for share in range(self.inner.shares):
            owner, own = self._owner(share), None
            if owner == self.ranks.rank:
                own = to_host(self.states.take(self.inner.members(share)))
            yield self.ranks.moved(own, owner, 0)

    def load(self, shards: Sequence[Callable[[], Tree]]) -> None:
        """Give every client its state: rank 0 reads the shares and sends them."""
        if self.ranks is None:
            self.inner.load(shards)
            return
        for share in range(self.inner.shares):
            owner = self._owner(share)
            read = tree.like(self.states.initial, shards[share]()) if self.leads else None
            found = self.ranks.moved(read, 0, owner)
            if owner == self.ranks.rank:
                self.states.put(self.inner.members(share), found)

    def some_states(self, which: Literal["known", "changed"]) -> Iterator[Known]:
        """States of all ranks' clients, rank by rank, sent to rank 0 a block at a time."""
        own = super().some_states(which)
        if self.ranks is None:
            yield from own
            return
        states = self.states
        assert isinstance(states, SparseStates)
        ids = states.known() if which == "known" else states.changed()
        for owner, number in enumerate(self.everywhere(len(list(blocks(ids))))):
            for _ in range(number):
                found = next(own) if owner == self.ranks.rank else None
                yield self.ranks.moved(found, owner, 0)

    def load_some(self, known: Iterator[Known]) -> None:
        """Give clients their states: rank 0 reads and sends them, each rank keeps its own."""
        while True:
            block = next(known, None) if self.leads else None
            block = self.everywhere(block)[0]
            if block is None:
                return
            ids, found = block
            held = self.states.held
            mine = torch.ones_like(ids, dtype=torch.bool) if held is None else torch.isin(ids, held)
            self.states.put(ids[mine], tree.like(self.states.initial, tree.take(found, mine)))


def _digest(server: Tree) -> int:
    """A checksum of a tree's numbers."""
    found = 0
    for leaf in tree.leaves(server):
        found = zlib.crc32(leaf.detach().cpu().contiguous().numpy().tobytes(), found)
    return found
