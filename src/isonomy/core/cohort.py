"""The cohort: the only access of an algorithm to its clients.

`gather` returns every client's reply. `mean` and `sum` return only a combination of the replies,
accumulated as they arrive. `weigh` returns some parts of every reply and averages the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from isonomy.core import random, tree
from isonomy.core.client import Client, Message, Pool, Reply, lone_client
from isonomy.core.joint import Division
from isonomy.core.phase import Declaration, DeclarationError, Phase, Verb, declaration
from isonomy.core.recorded import Recorded, plain_record
from isonomy.core.release import Release
from isonomy.core.sums import Sums, added, capped, divided, joined, plus
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.errors import ConfigError, IsonomyError


class Replies(NamedTuple):
    """The clients' replies, stacked on a leading axis, with the ids and sizes of these clients."""

    value: Reply
    ids: Tensor
    sizes: Tensor


class Summed(NamedTuple):
    """The weighted sum of the replies of some clients, where nobody has seen the replies.

    `total` is the sum of their weights, and `cut` how many numbers were outside of the range that
    sums are computed in.
    """

    value: Reply
    ids: Tensor
    total: float
    cut: int = 0


class Weighed(NamedTuple):
    """The mean of some parts, its total weight, and the other parts of each client (`seen`)."""

    mean: Reply
    total: float
    seen: Replies


class NoReplies(IsonomyError):
    """No client answered a phase; the round changes nothing."""


Weighting = Literal["size", "equal", "given"]
"""Clients weighted by their sizes, equally, or by weights that the server chose."""


@dataclass(frozen=True)
class Ask:
    """The question of one exchange: a phase, its message, and the local work it may do.

    `each`, if given, is a tree stacked over `ids`; each client receives its own entry in addition
    to the message.
    """

    phase: Phase
    message: Message
    work: Work
    round: int
    rate: float
    ids: Tensor
    each: Message | None = None
    verb: Verb = "gather"
    exchange: int = 0  # number of earlier exchanges in the round
    cohort: int = 0  # number of clients at the start of the round
    around: tuple[ClientSide, ...] = ()  # client-side middleware, innermost first
    final: bool = False  # whether it is asked after the last round
    weighting: Weighting = "equal"  # how a mean weights its clients; a sum weights them equally
    weights: Tensor | None = None  # the clients' weights in a mean or sum, aligned with `ids`

    def wrapped(self) -> Phase:
        """The phase wrapped in the client-side middleware."""
        phase = self.phase
        for wrap in self.around:
            phase = wrap(self, phase)
        return phase

    @property
    def declared(self) -> Declaration:
        """What the phase replies."""
        return declaration(self.phase)

    def to(self, ids: Tensor) -> Ask:
        """The same question to some of its clients."""
        if self.each is None and self.weights is None:
            return replace(self, ids=ids)
        at = _positions(self.ids, ids)
        each = None if self.each is None else tree.take(self.each, at)
        weights = None if self.weights is None else self.weights[at]
        return replace(self, ids=ids, each=each, weights=weights)


ClientSide = Callable[["Ask", Phase], Phase]
"""Client-side middleware: wraps a phase and runs where the client runs, in a real federation on the
participant's own machine (simulated attacks, clipping, noise)."""

Exchange = Callable[[Ask], Iterator[Any]]
"""Sends a question to clients and yields their replies in chunks (`Replies`); provided by the
engine. Under secure aggregation, a mean or sum has one chunk, a `Summed`."""

ServerSide = Callable[[Exchange], Exchange]
"""Server-side middleware: wraps an exchange (screening, metering, dropout)."""


Combine = Callable[["Cohort", Ask, Replies, Tensor], Reply]
"""What a defence computes instead of the weighted mean: one reply, from the question, the clients'
replies and their weights. It may ask the cohort further questions."""


class Cohort:
    """The clients of one round, and the only access of an algorithm to them.

    There may be fewer replies than clients, so identify clients by `ids`, never by position. A
    phase is sent only to the clients that answered all earlier phases of the round: `ids` shrinks
    as clients drop out.
    """

    def __init__(
        self,
        exchange: Exchange,
        ids: Tensor,
        sizes: Tensor,
        *,
        work: Work,
        round: int,
        rate: float,
        clients: int,
        seed: int = 0,
        task: Task | None = None,
        whole: Cohort | None = None,
        combine: Combine | None = None,
        around: tuple[ClientSide, ...] = (),
        max_weight: float = 1.0,
        final: bool = False,
        division: Division | None = None,
        release: Release | None = None,
        server_data: Pool | None = None,
    ) -> None:
        self._exchange = exchange
        self.ids = ids
        sizes = sizes if release is None else torch.ones_like(sizes)  # the server knows no sizes
        self.sizes = sizes if whole is not None else capped(sizes, max_weight)
        self.work = work
        self.round = round
        self.rate = rate
        self.clients = clients
        self.seed = seed
        self._task = task
        self._whole = whole
        self._combine = combine
        self._around = around
        self._max_weight = max_weight
        self._final = final
        self._division = division or Division()
        self._release = release
        self._server_data = server_data
        self._first: Cohort = self if whole is None else whole._first
        self._exchanges = 0
        self._asked = len(ids)
        self._recorded: dict[str, Recorded] = {}

    @property
    def task(self) -> Task:
        """The task, for algorithms whose server evaluates the model."""
        if self._task is None:
            raise RuntimeError("this cohort was made without a task")
        return self._task

    def server_client(self) -> Client:
        """The server's own examples, as the training examples of a client with the round's work.

        Only algorithms with `needs_server_data` have them; no client's examples are among them.
        """
        if self._server_data is None:
            raise ConfigError(
                "this algorithm needs examples of the server's own, and there are none; set "
                "needs_server_data in its class."
            )
        key = random.key(self.seed, self.round, -1)
        return lone_client(self._server_data, self.work, self.rate, key)

    def only(self, ids: Tensor) -> Cohort:
        """The cohort of some of these clients, for a question to them alone.

        Clients that drop out of it also drop out of this cohort.
        """
        keep = torch.isin(self.ids, ids)
        return Cohort(
            self._exchange,
            self.ids[keep],
            self.sizes[keep],
            work=self.work,
            round=self.round,
            rate=self.rate,
            clients=self.clients,
            seed=self.seed,
            task=self._task,
            whole=self,
            combine=self._combine,
            around=self._around,
            max_weight=self._max_weight,
            final=self._final,
            division=self._division,
            release=self._release,
            server_data=self._server_data,
        )

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform numbers in (0, 1) for the server, determined by seed, round and `name`."""
        return random.uniform(random.key(self.seed, self.round), f"server {name}", shape)

    def record(self, **entries: float | str | Tensor) -> None:
        """Add entries to this round's line in rounds.jsonl, where reports read them.

        An entry is a number, a word, or a tensor with one number for each client of `ids`.
        """
        for name, value in entries.items():
            self._first._recorded[name] = plain_record(value, self.ids)

    @property
    def recorded(self) -> dict[str, Recorded]:
        """What the algorithm recorded in this round, as plain values."""
        return self._first._recorded

    def gather(
        self,
        phase: Phase,
        message: Message,
        *,
        each: Message | None = None,
        work: Work | None = None,
    ) -> Replies:
        """Every client's reply; the server sees each of them."""
        return self._gathered(self._question("gather", phase, message, each, work))

    def _gathered(self, ask: Ask) -> Replies:

        def own() -> tuple[list[Tree], list[Tensor]]:
            chunks = list(self._ask(ask))
            values = [tree.concat([c.value for c in chunks])] if chunks else []
            return tree.tmap(lambda t: t.cpu(), values), [c.ids for c in chunks]

        values, ids = _flat(self._division.everyone(own))
        order = self._order(ids)
        return Replies(tree.take(tree.concat(values), order), self.ids, self.sizes)

    def mean(
        self,
        phase: Phase,
        message: Message,
        *,
        weight: Literal["size", "equal"] | Tensor = "size",
        each: Message | None = None,
        work: Work | None = None,
    ) -> Reply:
        """Only the weighted mean of the replies, accumulated as they arrive.

        `weight` is "size" (each client's number of examples), "equal", or a tensor aligned with
        `ids`; none is more than `cohort.max_weight` of all. Under a defence its combiner replaces
        the mean, and sees each reply.

        Raises NoReplies if the clients that answered have no weight.
        """
        if self._combine is not None:
            return self._combined(self._combine, phase, message, each, work, self._weights(weight))
        ask = self._question("mean", phase, message, each, work)
        how: Weighting = "given" if isinstance(weight, Tensor) else weight
        weights = self._weights(weight)
        total, folded = self._folded(replace(ask, weighting=how), weights)
        if self._release is not None:
            return self._release.mean(ask, folded, weights, by_size=how == "size")
        if total <= 0:
            raise NoReplies(f"round {self.round}: the clients that answered have no weight.")
        return tree.tmap(lambda t: divided(t, total), folded)

    def weigh(
        self,
        phase: Phase,
        message: Message,
        *,
        seen: tuple[str, ...],
        tilt: Mapping[str, Callable[[Reply], Tensor]] | None = None,
        weight: Literal["size", "equal"] | Tensor = "size",
        each: Message | None = None,
        work: Work | None = None,
    ) -> Weighed:
        """The parts named in `seen` of every client, and only weighted means of the other parts.

        A part named in `tilt` is weighted by `weight * exp(tilt(seen parts))`, where the exponent
        may be of any size: what the server sees of a client decides how much the rest of its reply
        counts. The other parts are weighted by `weight`. If no client that answered has weight,
        `total` and the means are 0.
        """
        if self._combine is not None:
            raise ConfigError(
                "defence: this algorithm weights clients by what they reply, which a defence "
                "cannot replace; choose an algorithm that averages, or remove the defence."
            )
        asked, weights = self.ids, self._weights(weight)
        ask = self._question("weigh", phase, message, each, work)
        if set(seen) != set(ask.declared.seen):
            raise DeclarationError(
                f"phase '{ask.declared.name}' declares seen = {ask.declared.seen}, but is asked "
                f"with {seen}; make them equal."
            )

        def own() -> tuple[list[tuple[int, dict[str, Sums]]], list[Tree], list[Tensor]]:
            sums: dict[int, dict[str, Sums]] = {}
            kept, ids = [], []
            for chunk in self._ask(ask):
                w = weights[_positions(asked, chunk.ids)]
                shown = {name: tree.tmap(lambda t: t.cpu(), chunk.value[name]) for name in seen}
                part = sums.setdefault(self._division.share(chunk.ids), {})
                for name, value in chunk.value.items():
                    if name not in shown:
                        score = None if tilt is None or name not in tilt else tilt[name](shown)
                        part[name] = added(part.get(name), value, w, score)
                kept.append(shown)
                ids.append(chunk.ids)
            return list(sums.items()), kept, ids

        sums, kept, ids = _flat(self._division.everyone(own))
        order = self._order(ids)
        total = float(weights[_positions(asked, self.ids)].sum())
        replies = Replies(tree.take(tree.concat(kept), order), self.ids, self.sizes)
        parts = [part for _, part in sorted(sums, key=lambda one: one[0])]
        whole = {name: joined(part[name] for part in parts) for name in parts[0]}
        if (made := self._release) is not None:
            found = whole.items()
            means = {k: made.weighed(ask, k, s.folded, s.total, s.largest) for k, s in found}
            return Weighed(means, total, replies)
        return Weighed({name: part.mean() for name, part in whole.items()}, total, replies)

    def sum(
        self,
        phase: Phase,
        message: Message,
        *,
        each: Message | None = None,
        work: Work | None = None,
    ) -> Reply:
        """Only the sum of the replies, accumulated as they arrive, in double precision."""
        ones = torch.ones(len(self.ids), dtype=torch.float64)
        ask = self._question("sum", phase, message, each, work)
        folded = self._folded(ask, ones)[1]
        return folded if self._release is None else self._release.sum(ask, folded)

    def _combined(
        self,
        combine: Combine,
        phase: Phase,
        message: Message,
        each: Message | None,
        work: Work | None,
        weights: Tensor,
    ) -> Reply:
        """What the combiner computes from the clients' replies."""
        ask = self._question("mean", phase, message, each, work)
        replies = self._gathered(ask)
        weights = weights[_positions(ask.ids, replies.ids)]
        if float(weights.sum()) <= 0:
            raise NoReplies(f"round {self.round}: the clients that answered have no weight.")
        return combine(self, ask, replies, weights)

    def _folded(self, ask: Ask, weights: Tensor) -> tuple[float, Tree]:
        """Total weight and weighted sum, chunk by chunk, so that memory does not grow."""
        asked = self.ids

        def own() -> tuple[list[tuple[int, Sums]], list[Tensor]]:
            sums: dict[int, Sums] = {}
            ids = []
            for chunk in self._ask(replace(ask, weights=weights)):
                share = self._division.share(chunk.ids)
                if isinstance(chunk, Summed):
                    sums[share] = plus(sums.get(share), chunk.value, chunk.total)
                else:
                    w = weights[_positions(asked, chunk.ids)]
                    sums[share] = added(sums.get(share), chunk.value, w)
                ids.append(chunk.ids)
            return list(sums.items()), ids

        sums, ids = _flat(self._division.everyone(own))
        self._order(ids)
        whole = joined(part for _, part in sorted(sums, key=lambda one: one[0]))
        return whole.total, whole.folded

    def _weights(self, weight: Literal["size", "equal"] | Tensor) -> Tensor:
        """Each client's weight, in double precision."""
        if isinstance(weight, Tensor):
            return capped(weight.to(torch.float64), self._max_weight)
        if weight == "size" and self._release is not None:
            return self._release.size_weights(self.ids)
        return (self.sizes if weight == "size" else torch.ones_like(self.sizes)).double()

    def _ask(self, ask: Ask) -> Iterator[Any]:
        """The replies, in chunks: of the clients of this process, if there are several."""
        waiting = self.ids.sort().values
        left = torch.ones(len(waiting), dtype=torch.bool)
        for chunk in self._exchange(ask):
            at = torch.searchsorted(waiting, chunk.ids).clamp(max=max(len(waiting) - 1, 0))
            known = bool((waiting[at] == chunk.ids).all()) and bool(left[at].all())
            if not known or len(torch.unique(at)) < len(at):
                raise RuntimeError(
                    "the engine returned a reply twice, or from a client that was not asked"
                )
            left[at] = False
            if len(chunk.ids):
                _check_parts(ask.declared, chunk.value)
                yield chunk

    def _question(
        self,
        verb: Verb,
        phase: Phase,
        message: Message,
        each: Message | None,
        work: Work | None,
    ) -> Ask:
        declared = declaration(phase)
        if verb not in declared.verbs:
            raise DeclarationError(
                f"phase '{declared.name}' is asked by `{verb}`, but declares "
                f"{' and '.join(declared.verbs) or 'no verb'}; add it to its @phase."
            )
        if not len(self.ids):
            raise NoReplies(f"round {self.round}: no client was left to ask.")
        self._first._exchanges += 1
        return Ask(
            phase,
            message,
            work or self.work,
            self.round,
            self.rate if work is None else work.lr,  # other work has its own rate
            self.ids,
            each,
            verb=verb,
            exchange=self._first._exchanges - 1,
            cohort=self._first._asked,
            around=self._around,
            final=self._final,
        )

    def _order(self, ids: list[Tensor]) -> Tensor:
        """Keep the clients that answered; where the cohort's clients are in the joined `ids`."""
        if not ids:
            self._lost(self.ids)
            raise NoReplies(f"round {self.round}: no client answered; nothing was changed.")
        found = torch.cat(ids)
        return _positions(found, self._answered(found))

    def _answered(self, ids: Tensor) -> Tensor:
        """Keep the clients that answered, in the cohort's order."""
        keep = torch.isin(self.ids, ids)
        self._lost(self.ids[~keep])
        self.ids, self.sizes = self.ids[keep], self.sizes[keep]
        return self.ids

    def _lost(self, ids: Tensor) -> None:
        """Remove clients that dropped out from the cohort that this is a part of."""
        if self._whole is not None and len(ids):
            self._whole._answered(self._whole.ids[~torch.isin(self._whole.ids, ids)])


def _check_parts(declared: Declaration, value: Reply) -> None:
    """Raise an error where a reply has other parts than its phase declares."""
    if not isinstance(value, dict) or set(value) != set(declared.parts):
        found = ", ".join(sorted(value)) if isinstance(value, dict) else type(value).__name__
        raise DeclarationError(
            f"phase '{declared.name}' declares the parts {', '.join(declared.parts) or 'none'}, "
            f"but replied {found or 'none'}; correct its @phase."
        )


Lists = TypeVar("Lists", bound=tuple[list, ...])


def _flat(parts: Sequence[Lists]) -> Lists:
    """The lists of all processes, joined."""
    joint = ([x for one in lists for x in one] for lists in zip(*parts, strict=True))
    return tuple(joint)  # type: ignore[return-value]


def _positions(ids: Tensor, wanted: Tensor) -> Tensor:
    """The position of each wanted id in `ids`."""
    order = ids.argsort()
    return order[torch.searchsorted(ids[order], wanted)]
