"""How attacks change the replies of malicious clients.

`Forging` is middleware of the client side: it wraps the phases of malicious clients, in a
simulation as in a real federation. An attack that needs the replies of several clients
(`colludes`) cannot run on one client's machine; `Collusion` simulates it around the exchange.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import random, tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Ask, Exchange, Replies
from isonomy.core.phase import Phase
from isonomy.core.task import Task
from isonomy.errors import ConfigError
from isonomy.robust.attack import Attack, Seen, Trainee, TrainingAttack
from isonomy.robust.parts import Trained, origins, replied, trained, updates
from isonomy.robust.rounding import whole


class Forging:
    """Client side: malicious clients send what the attack makes of their honest reply."""

    def __init__(
        self, attack: Attack, malicious: Tensor, *, seed: int, rounds: int | None = None
    ) -> None:
        self.attack = attack
        self.malicious = malicious
        self.seed = seed
        self.rounds = rounds

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase."""
        if isinstance(self.attack, TrainingAttack):
            return self._trained(self.attack, ask, phase)
        if not ask.declared.trained:
            return phase

        @functools.wraps(phase)
        def forged(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
            reply, state = phase(task, message, client)
            one = tree.tmap(lambda t: t.unsqueeze(0), reply)
            own = Ask(ask.phase, message, ask.work, ask.round, ask.rate, ask.ids)
            found = trained(own, one)
            at = torch.zeros(1, dtype=torch.int64)
            mine = updates(one, found, at)
            keys = random.key(self.seed, ask.round, client.id).unsqueeze(0)
            before = origins(one, found, at)
            seen = Seen(mine, mine, keys, draw_name(ask), ask.cohort, 1, before)
            new = tree.take(replied(one, found, at, self.attack.forge(seen)), 0)
            return self._unless_benign(client, new, reply), state

        return forged

    def _trained(self, attack: TrainingAttack, ask: Ask, phase: Phase) -> Phase:
        """The phase of clients whose models come from malicious training."""
        parts = ask.declared.parts
        models = [name for name, part in parts.items() if part.kind == "model" and part.of]
        about_groups = attack.hides and ask.verb == "gather" and not ask.declared.trained
        hidden = [n for n, p in parts.items() if p.kind == "group statistic" and about_groups]
        if not attack.active(ask.round, self.rounds) or not (models or hidden):
            return phase

        @functools.wraps(phase)
        def forged(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
            reply, state = phase(task, message, client)
            new = dict(reply)
            for name in models:
                sent = message[parts[name].of or name]
                if not whole(task, sent) or not whole(task, reply[name]):
                    raise ConfigError(
                        f"attack '{attack.name}' trains a whole model, but in phase "
                        f"'{ask.declared.name}' of this algorithm clients send another thing; "
                        "choose another attack or algorithm."
                    )
                new[name] = attack.train(Trainee(task, sent, reply[name], client))
            for name in hidden:
                new[name] = tree.zeros_like(reply[name])
            return self._unless_benign(client, new, reply), state

        return forged

    def _unless_benign(self, client: Client, forged: Reply, honest: Reply) -> Reply:
        """The forged reply if the client is malicious, else the honest one."""
        among = torch.tensor(self.malicious.tolist(), dtype=torch.int64, device=client.id.device)
        bad = (client.id == among).any()
        return tree.tmap(lambda a, b: torch.where(bad, a, b), forged, honest)


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
        at = [_at(c.ids[b], place) for c, b in zip(chunks, bad, strict=True)]
        rows = [tree.take(c.value, b) for c, b in zip(chunks, bad, strict=True)]
        before = torch.cat([origins(v, found, where) for v, where in zip(rows, at, strict=True)])
        seen = Seen(own, known, keys, draw_name(ask), ask.cohort, answered, before)
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


class Apart:
    """Server side of a simulation: malicious clients are asked apart from the others.

    A client that trains maliciously takes many more steps. In the batched engine, clients that are
    asked together all take as many steps as the one with the most, and the results are discarded.
    """

    def __init__(self, malicious: Tensor) -> None:
        self.malicious = malicious

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            bad = torch.isin(ask.ids, self.malicious)
            honest = tuple(one for one in ask.around if not isinstance(one, Forging))
            if bool((~bad).any()):
                yield from exchange(replace(ask.to(ask.ids[~bad]), around=honest))
            if bool(bad.any()):
                yield from exchange(ask.to(ask.ids[bad]))

        return wrapped


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
