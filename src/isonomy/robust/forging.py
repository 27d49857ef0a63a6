"""How attacks change the replies of malicious clients.

`Forging` is middleware of the client side: it wraps the phases of malicious clients, in a
simulation as in a real federation. An attack that needs the replies of several clients
(`colludes`) cannot run on one client's machine; `Collusion` simulates it around the exchange.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import random, tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Ask, Exchange, Replies
from isonomy.core.phase import Phase
from isonomy.core.task import Task
from isonomy.robust.attacks import Attack, Seen
from isonomy.robust.parts import Trained, replied, trained, updates


class Forging:
    """Client side: malicious clients send what the attack makes of their honest reply."""

    def __init__(self, attack: Attack, malicious: Tensor, *, seed: int) -> None:
        self.attack = attack
        self.malicious = malicious
        self.seed = seed

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase."""
        if not ask.declared.trained:
            return phase
        bad_ids = self.malicious.tolist()

        @functools.wraps(phase)
        def forged(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
            reply, state = phase(task, message, client)
            one = tree.tmap(lambda t: t.unsqueeze(0), reply)
            own = Ask(ask.phase, message, ask.work, ask.round, ask.rate, ask.ids)
            found = trained(own, one)
            at = torch.zeros(1, dtype=torch.int64)
            mine = updates(one, found, at)
            keys = random.key(self.seed, ask.round, client.id).unsqueeze(0)
            seen = Seen(mine, mine, keys, draw_name(ask), ask.cohort, 1)
            new = tree.take(replied(one, found, at, self.attack.forge(seen)), 0)
            among = torch.tensor(bad_ids, dtype=torch.int64, device=client.id.device)
            bad = (client.id == among).any()
            return tree.tmap(lambda a, b: torch.where(bad, a, b), new, reply), state

        return forged


class Collusion:
    """Simulates, around the exchange, malicious clients that know each other's replies."""

    def __init__(self, attack: Attack, malicious: Tensor, *, seed: int) -> None:
        self.attack = attack
        self.malicious = malicious
        self.seed = seed

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            if not bool(torch.isin(ask.ids, self.malicious).any()):
                yield from exchange(ask)
                return
            yield from self._forged(ask, list(exchange(ask)))

        return wrapped

    def _forged(self, ask: Ask, chunks: list[Replies]) -> Iterator[Replies]:
        """The replies, with those of malicious clients changed."""
        bad = [torch.isin(c.ids, self.malicious) for c in chunks]
        found = trained(ask, chunks[0].value) if any(bool(b.any()) for b in bad) else []
        if not found:
            yield from chunks
            return
        place = {int(k): i for i, k in enumerate(ask.ids)}
        honest = [_updates(c, b, found, place) for c, b in zip(chunks, bad, strict=True)]
        own = torch.cat(honest)
        known = own
        if self.attack.knows == "benign":
            others = [_updates(c, ~b, found, place) for c, b in zip(chunks, bad, strict=True)]
            known = torch.cat(others) if any(len(o) for o in others) else own
        ids = torch.cat([c.ids[b] for c, b in zip(chunks, bad, strict=True)])
        keys = random.key(self.seed, ask.round, ids)
        answered = sum(len(c.ids) for c in chunks)
        seen = Seen(own, known, keys, draw_name(ask), ask.cohort, answered)
        new = self.attack.forge(seen)
        first = 0
        for chunk, mask in zip(chunks, bad, strict=True):
            mine = new[first : first + int(mask.sum())]
            first += len(mine)
            yield from self._chunk(chunk, mask, mine, found, place)

    def _chunk(
        self, chunk: Replies, mask: Tensor, new: Tensor, found: list[Trained], place: dict[int, int]
    ) -> Iterator[Replies]:
        if not bool(mask.any()):
            yield chunk
            return
        at = mask.nonzero().squeeze(-1)
        sent = _take(chunk, at)
        forged = replied(sent.value, found, _at(sent.ids, place), new)
        if self.attack.misshapes:
            if not bool(mask.all()):
                yield _take(chunk, (~mask).nonzero().squeeze(-1))
            yield sent._replace(value=_misshapen(forged, found))
            return
        value = dict(chunk.value)
        for part in found:
            value[part.name] = tree.tmap(
                lambda old, wrong: old.index_copy(0, at, wrong),
                chunk.value[part.name],
                forged[part.name],
            )
        yield chunk._replace(value=value)


class Count:
    """Server side: counts the replies that an attack changed."""

    def __init__(self, malicious: Tensor) -> None:
        self.malicious = malicious
        self.changed = 0

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            for chunk in exchange(ask):
                if ask.declared.trained:
                    self.changed += int(torch.isin(chunk.ids, self.malicious).sum())
                yield chunk

        return wrapped


def draw_name(ask: Ask) -> str:
    """The name of an exchange's random draws."""
    return f"attack {ask.exchange}"


def _updates(chunk: Replies, mask: Tensor, found: list[Trained], place: dict[int, int]) -> Tensor:
    at = mask.nonzero().squeeze(-1)
    return updates(tree.take(chunk.value, at), found, _at(chunk.ids[at], place))


def _at(ids: Tensor, place: dict[int, int]) -> Tensor:
    return torch.tensor([place[int(k)] for k in ids], dtype=torch.int64)


def _take(chunk: Replies, at: Tensor) -> Replies:
    return Replies(tree.take(chunk.value, at), chunk.ids[at], chunk.sizes[at])


def _misshapen(value: Any, found: list[Trained]) -> Any:
    """Every tensor of the parts with one number too many."""

    def longer(t: Tensor) -> Tensor:
        flat = t.reshape(t.shape[0], -1)
        return torch.cat([flat, flat[:, :1]], 1)

    return {**value, **{p.name: pytree.tree_map(longer, value[p.name]) for p in found}}
