"""The whole contract between an algorithm and whatever runs it.

An algorithm is a frozen dataclass whose fields are its hyper-parameters. It says what the server
keeps (`init_server`), what each client keeps (`init_client`), what happens in a round (`round`,
which reaches clients only through its cohort) and how a client predicts (`predict`). A phase is
a pure function of one client: `phase(task, message, client) -> (reply, state)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy import random, tree
from isonomy.data.federation import SPLITS, Split
from isonomy.errors import ConfigError, IsonomyError
from isonomy.task import Batch, Params, Task
from isonomy.tree import Tree
from isonomy.verdict import About, Verdict
from isonomy.work import Plan, Work, plan

Message = dict[str, Tree]
Reply = Tree
State = Tree
Phase = Callable[[Task, Message, "Client"], tuple[Reply, State]]


# --- what a phase sees ------------------------------------------------------------------------


class Pool(NamedTuple):
    """The flat tensors that hold the examples; a client's rows are a range of them."""

    x: Tensor
    y: Tensor
    groups: Tensor

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """The examples at `rows`, with their weights."""
        # a row lookup as an embedding: vmap keeps it one fast gather for the whole cohort
        flat = torch.nn.functional.embedding(rows, self.x.reshape(self.x.shape[0], -1))
        x = flat.reshape(*rows.shape, *self.x.shape[1:])
        return Batch(x, self.y[rows], self.groups[rows], weight)


@dataclass(frozen=True, eq=False)
class Client:
    """All that a phase may read besides the message: this client's own examples and state.

    Padding is out of sight: it carries weight 0 in every batch. `rate` is this round's learning
    rate. Draws come from `uniform` and `normal`, pure functions of (seed, round, client, name).
    """

    pool: Pool
    starts: Tensor  # [3] first row of each split
    sizes: Tensor  # [3] examples in each split
    key: Tensor
    rate: Tensor
    state: State
    work: Work
    widths: tuple[int, int, int]  # the sizes, or the largest of those that run side by side
    steps: int
    passes: int

    @property
    def size(self) -> Tensor:
        """The number of training examples, as a float."""
        return self.sizes[0].to(torch.float32)

    @property
    def train(self) -> Batch:
        """All training examples."""
        return self.examples("train")

    @property
    def validation(self) -> Batch:
        """All validation examples."""
        return self.examples("validation")

    @property
    def plan(self) -> Plan:
        """This round's batches; the same in every phase of the round."""
        made = plan(self.work, self.key, self.sizes[0], self.widths[0], self.steps, self.passes)
        return made._replace(rows=self.starts[0] + made.rows)

    def examples(self, split: Split) -> Batch:
        """All examples of a split."""
        return self._slice(split, 0, max(self.widths[SPLITS.index(split)], 1))

    def pages(self, split: Split, size: int = 1024) -> Iterator[Batch]:
        """All examples of a split, some at a time."""
        width = self.widths[SPLITS.index(split)]
        for first in range(0, max(width, 1), size):
            yield self._slice(split, first, min(size, max(width, 1) - first))

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform draws in (0, 1) that belong to this client, round and name."""
        return random.uniform(self.key, name, shape)

    def normal(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Standard normal draws that belong to this client, round and name."""
        return random.normal(self.key, name, shape)

    def _slice(self, split: Split, first: int, count: int) -> Batch:
        s = SPLITS.index(split)
        at = first + torch.arange(count)
        real = at < self.sizes[s]
        rows = torch.where(real, self.starts[s] + at, self.starts[0])  # padding: one's own row
        return self.pool.batch(rows, real.to(torch.float32))


# --- the door to the clients ------------------------------------------------------------------


class Replies(NamedTuple):
    """Every reply, stacked on a leading axis, with the clients that sent them."""

    value: Reply
    ids: Tensor
    sizes: Tensor


class Weighed(NamedTuple):
    """The mean of most parts of the replies, its total weight, and the parts seen one by one."""

    mean: Reply
    total: float
    seen: Replies


class NoReplies(IsonomyError):
    """No client answered a phase; the round changes nothing."""


@dataclass(frozen=True)
class Ask:
    """One exchange: a phase, its message, and the local work it may do.

    `each`, if given, is a tree stacked over `ids` that is added to every client's own message.
    """

    phase: Phase
    message: Message
    work: Work
    round: int
    rate: float
    ids: Tensor
    each: Message | None = None

    def to(self, ids: Tensor) -> Ask:
        """The same question to fewer clients."""
        if self.each is None:
            return replace(self, ids=ids)
        place = {int(k): i for i, k in enumerate(self.ids)}
        at = torch.tensor([place[int(k)] for k in ids], dtype=torch.int64)
        return replace(self, ids=ids, each=tree.take(self.each, at))


Exchange = Callable[[Ask], Iterator[Replies]]
"""Carries a question to clients and yields their replies in chunks; an engine supplies it, and
wrappers (dropout, attacks, noise, byte counting) are functions from one to another."""


Combine = Callable[["Cohort", Ask, Replies, Tensor], Reply]
"""What a defence does in place of the weighted mean: from the question, every client's reply and
their weights to one reply. It may ask the cohort more."""


class Cohort:
    """The clients of one round: the only door between an algorithm and them.

    Replies may be fewer than the cohort: go by `ids`, never by position. A later phase goes only
    to the clients that answered the earlier ones, so `ids` shrinks as clients fall silent.
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
        whole: Cohort | None = None,
        combine: Combine | None = None,
    ) -> None:
        self._exchange = exchange
        self.ids = ids
        self.sizes = sizes
        self.work = work
        self.round = round
        self.rate = rate
        self.clients = clients
        self.seed = seed
        self._whole = whole
        self._combine = combine

    def only(self, ids: Tensor) -> Cohort:
        """The cohort of some of these clients, for a question that concerns only them.

        Who falls silent there is out of this cohort too.
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
            whole=self,
            combine=self._combine,
        )

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform draws in (0, 1) of the server's own, which belong to this round and name."""
        return random.uniform(random.key(self.seed, self.round), f"server {name}", shape)

    def gather(
        self,
        phase: Phase,
        message: Message,
        *,
        each: Message | None = None,
        work: Work | None = None,
    ) -> Replies:
        """Every client's reply; the server sees each of them."""
        chunks = list(self._ask(phase, message, each, work))
        value = tree.concat([c.value for c in chunks])
        ids = torch.cat([c.ids for c in chunks])
        order = _positions(ids, self._answered(ids))
        return Replies(tree.take(value, order), self.ids, self.sizes)

    def mean(
        self,
        phase: Phase,
        message: Message,
        *,
        weight: Literal["size", "equal"] | Tensor = "size",
        each: Message | None = None,
        work: Work | None = None,
    ) -> Reply:
        """Only the weighted mean of the replies, folded as they come.

        `weight` is each client's size, or equal, or a tensor aligned with `ids`. Under a defence
        its combiner takes the mean's place, and sees each reply.
        """
        if self._combine is not None:
            return self._combined(self._combine, phase, message, each, work, self._weights(weight))
        total, folded = self._folded(phase, message, each, work, self._weights(weight))
        if total <= 0:
            raise NoReplies(f"round {self.round}: the clients that answered have no weight.")
        return tree.tmap(lambda t: (t / total).to(torch.get_default_dtype()), folded)

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
        """Every client's parts named in `seen`, and of the other parts only weighted means.

        A part named in `tilt` has the weights `weight * exp(tilt(seen parts))`, which may be of
        any size: what the server sees of a client decides how much the rest of its reply counts.
        The other parts have `weight`. If no client that answered has weight, `total` and the
        means are 0.
        """
        if self._combine is not None:
            raise ConfigError(
                "defence: this algorithm weighs clients by what they reply, which no defence can "
                "stand in for; choose an algorithm that averages, or remove the defence."
            )
        asked, weights, kept, ids = self.ids, self._weights(weight), [], []
        sums: dict[str, _Sums] = {}
        for chunk in self._ask(phase, message, each, work):
            w = weights[_positions(asked, chunk.ids)]
            shown = {name: chunk.value[name] for name in seen}
            for name, value in chunk.value.items():
                if name not in shown:
                    score = None if tilt is None or name not in tilt else tilt[name](shown)
                    sums.setdefault(name, _Sums()).add(value, w, score)
            kept.append(shown)
            ids.append(chunk.ids)
        order = _positions(torch.cat(ids), self._answered(torch.cat(ids)))
        total = float(weights[_positions(asked, self.ids)].sum())
        replies = Replies(tree.take(tree.concat(kept), order), self.ids, self.sizes)
        return Weighed({name: part.mean() for name, part in sums.items()}, total, replies)

    def sum(
        self,
        phase: Phase,
        message: Message,
        *,
        each: Message | None = None,
        work: Work | None = None,
    ) -> Reply:
        """Only the sum of the replies, folded as they come, in double precision."""
        ones = torch.ones(len(self.ids), dtype=torch.float64)
        return self._folded(phase, message, each, work, ones)[1]

    def _combined(
        self,
        combine: Combine,
        phase: Phase,
        message: Message,
        each: Message | None,
        work: Work | None,
        weights: Tensor,
    ) -> Reply:
        """What the combiner makes of every client's reply."""
        ask = self._question(phase, message, each, work)
        replies = self.gather(phase, message, each=each, work=work)
        weights = weights[_positions(ask.ids, replies.ids)]
        if float(weights.sum()) <= 0:
            raise NoReplies(f"round {self.round}: the clients that answered have no weight.")
        return combine(self, ask, replies, weights)

    def _folded(
        self,
        phase: Phase,
        message: Message,
        each: Message | None,
        work: Work | None,
        weights: Tensor,
    ) -> tuple[float, Tree]:
        """Total weight and weighted sum, chunk by chunk, so memory does not grow."""
        asked, sums, seen = self.ids, _Sums(), []
        for chunk in self._ask(phase, message, each, work):
            sums.add(chunk.value, weights[_positions(asked, chunk.ids)])
            seen.append(chunk.ids)
        self._answered(torch.cat(seen))
        return sums.total, sums.folded

    def _weights(self, weight: Literal["size", "equal"] | Tensor) -> Tensor:
        """Each client's weight, in double precision."""
        if isinstance(weight, Tensor):
            return weight.to(torch.float64)
        return (self.sizes if weight == "size" else torch.ones_like(self.sizes)).double()

    def _ask(
        self, phase: Phase, message: Message, each: Message | None, work: Work | None
    ) -> Iterator[Replies]:
        if not len(self.ids):
            raise NoReplies(f"round {self.round}: no client was left to ask.")
        ask = self._question(phase, message, each, work)
        waiting = set(self.ids.tolist())
        for chunk in self._exchange(ask):
            ids = chunk.ids.tolist()
            if len(set(ids)) < len(ids) or not waiting.issuperset(ids):
                raise RuntimeError("an engine brought a reply twice, or from a client not asked")
            waiting.difference_update(ids)
            if ids:
                yield chunk
        if len(waiting) == len(self.ids):
            self._lost(self.ids)
            raise NoReplies(f"round {self.round}: no client answered; nothing was changed.")

    def _question(
        self, phase: Phase, message: Message, each: Message | None, work: Work | None
    ) -> Ask:
        rate = self.rate if work is None else work.lr  # other work brings its own rate
        return Ask(phase, message, work or self.work, self.round, rate, self.ids, each)

    def _answered(self, ids: Tensor) -> Tensor:
        """Keep the clients that answered, in the cohort's order."""
        keep = torch.isin(self.ids, ids)
        self._lost(self.ids[~keep])
        self.ids, self.sizes = self.ids[keep], self.sizes[keep]
        return self.ids

    def _lost(self, ids: Tensor) -> None:
        """Tell the cohort that this is a part of who fell silent."""
        if self._whole is not None and len(ids):
            self._whole._answered(self._whole.ids[~torch.isin(self._whole.ids, ids)])


class _Sums:
    """A weighted sum of replies and its total weight, folded as they come, in double precision.

    With scores, weights are multiplied by exp(score - top), where top is the largest score so
    far: what was summed before is scaled down when a larger one comes, so nothing overflows.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.folded: Tree = None
        self.top = -math.inf

    def add(self, value: Tree, weight: Tensor, score: Tensor | None = None) -> None:
        """Add some stacked replies."""
        if self.folded is None:
            self.folded = tree.tmap(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64), value)
        if score is not None and bool((weight > 0).any()):
            top = max(self.top, float(score[weight > 0].max()))  # of those that count at all
            before = math.exp(self.top - top)
            self.total *= before
            tree.tmap(lambda sums: sums.mul_(before), self.folded)
            tilted = weight * torch.exp(score.to(torch.float64) - top)
            weight, self.top = torch.where(weight > 0, tilted, 0.0), top
        tree.tmap(lambda sums, t: _fold(sums, weight, t), self.folded, value)
        self.total += float(weight.sum())

    def mean(self) -> Tree:
        """The weighted mean so far, 0 if there is no weight."""
        total = self.total or 1.0
        return tree.tmap(lambda t: (t / total).to(torch.get_default_dtype()), self.folded)


def _fold(sums: Tensor, weight: Tensor, stacked: Tensor) -> Tensor:
    """Add the weighted sum over the leading axis to `sums`, which is of double precision."""
    if len(weight) == 1:
        return sums.add_(stacked[0], alpha=float(weight))
    if not stacked.is_floating_point():
        return sums.add_(torch.tensordot(weight, stacked.to(torch.float64), dims=1))
    scale = float(weight.abs().max()) or 1.0  # so that single precision sees weights of at most 1
    part = torch.tensordot((weight / scale).to(stacked.dtype), stacked, dims=1)
    return sums.add_(part, alpha=scale)


def _positions(ids: Tensor, wanted: Tensor) -> Tensor:
    """Where each wanted id stands in `ids`."""
    order = ids.argsort()
    return order[torch.searchsorted(ids[order], wanted)]


# --- an algorithm -----------------------------------------------------------------------------


class Algorithm(ABC):
    """Abstract. A final subclass is a frozen dataclass whose fields are the hyper-parameters."""

    name: ClassVar[str]
    paper: ClassVar[str]
    family: ClassVar[str]
    reveals: ClassVar[str]  # what the server learns of a client, in plain words

    def init_server(self, task: Task, params: Params, clients: int) -> Tree:
        """What the server keeps before the first round."""
        return {"params": params}

    def init_client(self, task: Task, params: Params) -> State:
        """What each client keeps before the first round; it never leaves the client."""
        return ()

    @abstractmethod
    def round(self, server: Any, cohort: Cohort) -> Any:
        """One round: the paper's box."""

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """A last phase with all clients, after the last round."""
        return server

    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The phase of a client that was never in training, before it predicts.

        `message["model"]` is the deployed state, `client.state` what `init_client` made. The
        default changes nothing; a method whose clients keep something of their own finds it here.
        """
        return {}, client.state

    def clusters(self, server: Any) -> Tensor | None:
        """Each client's cluster [clients], for a method that finds clusters."""
        return None

    def verdict(self, server: Any, about: About) -> Verdict | None:
        """What the method can say of its own model, from the server's state after `finish`.

        Nothing, unless a method says otherwise. A verdict that withholds the model (the method
        did not get what it was asked for) keeps it out of the results.
        """
        return None

    def deployed(self, server: Any) -> Any:
        """The part of the server's state that clients need to predict."""
        return server

    def predict(self, task: Task, server: Any, state: State, x: Tensor) -> Tensor:
        """The outputs that a client uses, from the deployed state and its own."""
        return task.outputs(server["params"], x)
