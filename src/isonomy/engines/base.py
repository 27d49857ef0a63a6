"""What all engines share: client states, random keys, sampling, dropout and metering.

An engine is a transport: it carries a phase and a message to clients and brings replies back.
It does not interpret them. A run uses an engine only through the methods of `Engine`; what an
engine does beyond `exchange` is reported by its hooks (see `Engine`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from isonomy.core import random, tree
from isonomy.core.client import Client, Pool, State
from isonomy.core.cohort import Ask, ClientSide, Cohort, Combine, Exchange, Replies, ServerSide
from isonomy.core.joint import Division
from isonomy.core.release import Release
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.devices import Name, Place, to_host
from isonomy.engines.states import Known, SparseStates, States, Where, blocks, make_states

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """A reply that was expected and was not used: whose, in which round and phase, and why."""

    client: int
    round: int
    phase: str
    why: str


class EngineOptions(Protocol):
    """The config's engine table, as far as engines read it."""

    @property
    def chunk(self) -> int | Literal["auto"]:
        """How many clients to compute at once."""

    @property
    def compile(self) -> bool:
        """Whether to compile local steps."""

    @property
    def precision(self) -> Literal["float32", "bf16"]:
        """The precision of local steps."""

    @property
    def device(self) -> Name:
        """Where phases run."""

    @property
    def shares(self) -> int | Literal["auto"]:
        """The number of shares that clients are divided into."""


MANY = 1 << 16  # clients above which a cohort is drawn without a number for each client

FETCHED = 4096  # clients whose mapped rows are read in advance, at most

Note = Callable[[str], None]


class Engine(ABC):
    """Abstract: the clients of a federation, reached by `exchange`.

    A run calls these hooks, which do nothing unless an engine defines them:

    - `make` creates the engine from the config's engine table;
    - `take_notes` and `take_faults` report what happened since the last call;
    - `saved` and `restore` keep in a checkpoint what an identical continuation needs;
    - `settled` is called when checkpoints were written;
    - `prepare` says which local work the rounds have, `try_threads` how many threads it may use.

    If several processes compute a run together, each has an engine that holds the states of its own
    clients, and the methods under "several processes" join their results.
    """

    name: str
    remote: ClassVar[bool] = False  # whether examples and states are on the clients' machines
    leads: bool = True  # whether this process writes the run's folder; one of several does
    server_data: Pool | None = None  # the server's own examples, for algorithms that need them
    guard: ServerSide | None = None  # innermost around every exchange; see `privacy.guard`
    states_in: Where = "memory"  # where clients' states are kept
    scratch: Path | None = None  # folder for states on disk while the run lasts; None: temporary

    @classmethod
    def make(
        cls, task: Task, federation: Federation, *, seed: int, options: EngineOptions, note: Note
    ) -> Self:
        """An engine with the config's options; `note` receives sentences for the user."""
        del options, note  # engines that have options use them
        return cls(task, federation, seed=seed)

    def __init__(
        self, task: Task, federation: Federation, *, seed: int = 0, place: Place | None = None
    ) -> None:
        self.place = Place() if place is None else place
        self.task = task
        self.federation = federation
        self.seed = seed
        self.pool: Pool = self.place.put(Pool(federation.x, federation.y, federation.groups))
        self._task = self.place.task(task)
        self.states: States | SparseStates = States((), len(federation))

    def reset(self, initial: State) -> None:
        """Give every client the same initial state."""
        self.hold(initial, None)

    def hold(self, initial: State, held: Tensor | None) -> None:
        """Give the clients that are held here (None: all) the same initial state."""
        self.states = make_states(
            initial, len(self.federation), held, self.place, self.states_in, self.scratch
        )

    @abstractmethod
    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """Carry a question to its clients; yield their replies in chunks, in any order."""

    # --- hooks --------------------------------------------------------------------------------

    def take_notes(self) -> list[str]:
        """Sentences for the user since the last call."""
        return []

    def take_faults(self) -> list[Fault]:
        """Replies that were not used since the last call."""
        return []

    def saved(self) -> dict[str, Any]:
        """What a checkpoint has to keep, as JSON values, so that a resumed run is identical."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:  # noqa: B027
        """Continue with what `saved` returned."""

    def settled(self, round: int) -> None:  # noqa: B027
        """The run will not go back to before `round` rounds: a checkpoint of them exists."""

    def try_threads(self, most: int) -> None:  # noqa: B027
        """The run may use so many of torch's threads; an engine may find out whether they help."""

    def prepare(self, work: Work) -> None:  # noqa: B027
        """The local work of the rounds, before `reset`; an engine may divide clients by it."""

    # --- several processes --------------------------------------------------------------------

    @property
    def division(self) -> Division:
        """How clients are divided into shares, and by which processes these are computed."""
        return Division()

    def everywhere(self, value: T) -> list[T]:
        """The values that all processes pass, in a fixed order; each must call it."""
        return self.division.everyone(lambda: value)

    def agreed(self, server: Tree) -> Tree:
        """The server's state that all processes continue with."""
        return server

    def finite(self, ids: Tensor) -> bool:
        """Whether the states of these clients are finite, in whichever process they are."""
        return tree.finite(self.states.take(ids))

    def all_states(self) -> Tree:
        """Every client's state, stacked, on the CPU, in every process."""
        return to_host(self.states.stacked)

    def shards(self) -> Iterator[Tree]:
        """The clients' states share by share, in the process that leads; for a checkpoint.

        With one share, they are all clients' states in the order of the clients.
        """
        yield to_host(self.states.stacked)

    def load(self, shards: Sequence[Callable[[], Tree]]) -> None:
        """Give clients the states that `shards` returned; the process that leads has `shards`."""
        self.states.put(self.everyone(), tree.like(self.states.initial, shards[0]()))

    def some_states(self, which: Literal["known", "changed"]) -> Iterator[Known]:
        """States of clients, a block at a time, in the process that leads; if states are sparse.

        "known": of those that have another than the initial one; "changed": whose state changed
        since the last call of `settle_states`.
        """
        states = self.states
        assert isinstance(states, SparseStates)
        for ids in blocks(states.known() if which == "known" else states.changed()):
            yield ids, to_host(states.take(ids))

    def known_clients(self) -> Tensor:
        """The clients that have another state than the initial one, of all processes, ascending."""
        assert isinstance(self.states, SparseStates)
        return torch.cat(self.everywhere(self.states.known())).sort().values

    def settle_states(self) -> None:
        """What `some_states("changed")` yields was saved, or was read from a checkpoint."""
        if isinstance(self.states, SparseStates):
            self.states.settle()

    def load_some(self, known: Iterator[Known]) -> None:
        """Give clients the states that `some_states` yielded; the process that leads has them."""
        for ids, found in known:
            self.states.put(ids, tree.like(self.states.initial, found))

    # --- cohorts ------------------------------------------------------------------------------

    def cohort(
        self,
        ids: Tensor,
        *,
        work: Work,
        round: int,
        rate: float | None = None,
        wrap: tuple[ServerSide, ...] = (),
        around: tuple[ClientSide, ...] = (),
        combine: Combine | None = None,
        max_weight: float = 1.0,
        final: bool = False,
        whole: bool = False,
        release: Release | None = None,
    ) -> Cohort:
        """The cohort of some clients, with the middleware of both sides, the innermost first.

        `final` says that all rounds are done. With `whole`, middleware of the server side sees
        the replies of all clients, also where several processes compute them.
        """
        pages = self.federation.pages
        if pages is not None and len(ids) <= FETCHED:
            pages.fetch(self.federation.ranges[ids])
        division = self.division
        exchange: Exchange = division.whole(self.exchange) if whole else self.exchange
        for wrapper in (*(() if self.guard is None else (self.guard,)), *wrap):
            exchange = wrapper(exchange)
        return Cohort(
            exchange,
            ids,
            self.federation.sizes(clients=ids),
            work=work,
            round=round,
            rate=work.lr if rate is None else rate,
            clients=len(self.federation),
            seed=self.seed,
            combine=combine,
            around=around,
            task=self.task,
            max_weight=max_weight,
            final=final,
            division=division.alone() if whole else division,
            release=release,
            server_data=self.server_data,
        )

    def everyone(self) -> Tensor:
        """All clients' ids."""
        return torch.arange(len(self.federation))

    def client(self, ask: Ask, ids: Tensor) -> dict[str, Any]:
        """The parts of `Client` for these clients: stacked tensors and shared sizes."""
        ranges = self.federation.ranges[ids]
        made = parts(ask, ids, self.pool, ranges, self.states.take(ids), self.seed)
        made["lanes"] = self.place.put(made["lanes"])
        made["shared"]["rate"] = self.place.put(made["shared"]["rate"])
        return made

    def run_phase(self, ask: Ask, message: Any, lane: Any, shared: Any) -> tuple[Any, State]:
        """One client's phase."""
        return ask.wrapped()(self._task, message, Client(**lane, **shared))


def parts(
    ask: Ask, ids: Tensor, pool: Pool, ranges: Tensor, states: Tree, seed: int
) -> dict[str, Any]:
    """The parts of `Client` for clients whose splits lie at `ranges` [clients, 3, 2] of a pool."""
    sizes = ranges[..., 1] - ranges[..., 0]
    work = ask.work
    widths = sizes.max(0).values.tolist()
    fewest = int(sizes[:, 0].min())  # the smallest client makes the most passes
    return {
        "lanes": {
            "id": ids,
            "starts": ranges[..., 0],
            "sizes": sizes,
            "key": random.key(seed, ask.round, ids),
            "state": states,
        },
        "shared": {
            "pool": pool,
            "rate": torch.tensor(ask.rate, dtype=torch.float32),
            "work": work,
            "widths": tuple(widths),
            "steps": work.count(widths[0]),
            "passes": work.passes(fewest),
        },
    }


# --- sampling of clients -------------------------------------------------------------------------


def sample(
    federation: Federation,
    count: int,
    *,
    seed: int,
    round: int,
    how: Literal["uniform", "size", "poisson"] = "uniform",
) -> Tensor:
    """`count` distinct clients for a round, uniformly or in proportion to their sizes.

    By size: without replacement, each next client with probability proportional to its size
    among those left (Gumbel's trick on log sizes). "poisson": every client with probability
    `count` / clients, independently, so that `count` is only the expected number.

    With more than MANY clients, clients are drawn one after the other, with replacement, and the
    first `count` different ones are taken: the same distribution, without a number for each client.
    """
    clients = len(federation)
    if how == "poisson":
        u = random.uniform(random.key(seed, round), "poisson cohort", (clients,)).double()
        return (u < count / clients).nonzero().squeeze(-1)
    if count >= clients:
        return torch.arange(clients)
    if clients > MANY and count <= clients // 4:
        return _drawn(federation, count, random.key(seed, round), how)
    u = random.uniform(random.key(seed, round), "cohort", (clients,)).double()
    score = -torch.log(-torch.log(u))
    if how == "size":
        score = score + federation.sizes().double().log()
    return score.topk(count).indices.sort().values


def _drawn(
    federation: Federation, count: int, key: Tensor, how: Literal["uniform", "size"]
) -> Tensor:
    """The first `count` different clients of a sequence of independent draws, in ascending order.

    For a client in proportion to its size, a training example is drawn.
    """
    ends = federation.sizes().cumsum(0) if how == "size" else None
    among = len(federation) if ends is None else int(ends[-1])
    drawn = torch.arange(0)
    for attempt in range(1_000):
        bits = random.bits(key, f"cohort {attempt}", (2 * count + 16,))
        more = (bits >> 1 & (2**62 - 1)) % among
        at = more if ends is None else torch.searchsorted(ends, more, right=True)
        drawn = torch.cat([drawn, at])
        first = np.unique(drawn.numpy(), return_index=True)[1]
        if len(first) >= count:
            break
    return drawn[torch.from_numpy(np.sort(first)[:count])].sort().values


# --- server-side middleware ---------------------------------------------------------------------


def dropout(exchange: Exchange, *, probability: float, seed: int) -> Exchange:
    """Each client of a round drops out with this probability, for the whole round."""

    def wrapped(ask: Ask) -> Iterator[Replies]:
        keys = random.key(seed, ask.round, ask.ids)
        stay = random.uniform(keys, "dropout") >= probability
        if bool(stay.any()):
            yield from exchange(ask.to(ask.ids[stay]))

    return wrapped


class Meter:
    """Counts the traffic: bytes down and up, messages, phases, clients that answered."""

    def __init__(self, size: Callable[[Ask, Any], int] | None = None) -> None:
        self._size = size or (lambda _, chunk: tree.nbytes(chunk.value))  # of replies, as sent
        self.down = self.up = self.phases = self.asked = self.answered = 0

    @property
    def messages(self) -> int:
        """Messages in both directions."""
        return self.asked + self.answered

    def join(self, everywhere: Callable[[tuple[int, int]], list[tuple[int, int]]]) -> None:
        """Count the replies that all processes of a run received."""
        found = everywhere((self.up, self.answered))
        self.up, self.answered = sum(up for up, _ in found), sum(many for _, many in found)

    def __call__(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            size = tree.nbytes(ask.message)
            each = tree.nbytes(ask.each) if ask.each is not None else 0
            self.phases += 1
            self.asked += len(ask.ids)
            self.down += size * len(ask.ids) + each
            for chunk in exchange(ask):
                self.up += self._size(ask, chunk)
                self.answered += len(chunk.ids)
                yield chunk

        return wrapped
