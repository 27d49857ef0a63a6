"""The default engine: a cohort of clients is one batched tensor program.

Clients are sorted by size and run in chunks under `vmap`, their local loops as traced programs
(see `program` and `runner`). Small models run hundreds of clients at once. Where arithmetic
dominates, as with convolutions, a short probe finds the fastest chunk, which may be one client.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor
from torch.func import grad, vmap

from isonomy.core import tree
from isonomy.core.batches import planning
from isonomy.core.client import State
from isonomy.core.cohort import Ask, Replies
from isonomy.core.fold import using
from isonomy.core.joint import Division, Joint
from isonomy.core.phase import TRAINED
from isonomy.core.task import Batch, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine, EngineOptions, Note
from isonomy.engines.batched.chunks import MEASURED, PADDING, cuts
from isonomy.engines.batched.memory import keep_freed
from isonomy.engines.batched.precision import Precision
from isonomy.engines.batched.refused_phases import explained
from isonomy.engines.batched.runner import shared
from isonomy.engines.batched.trace import flops
from isonomy.engines.devices import Place, place_of, to_host
from isonomy.engines.shares import by_size, shares_of, shares_with
from isonomy.errors import ConfigError

CACHED = 5 * 2**20  # bytes of parameters in a chunk: about the size of a processor's cache
SHARED = CACHED // 2  # the same if there are several shares, whose processes share the cache
FEWEST, MOST = 16, 1024  # clients in a chunk of a light model
HEAVY = 4e6  # floating-point operations per step above which arithmetic outweighs overhead
HUGE = 1e9  # operations per step above which many clients at once only cost memory
CANDIDATES = (1, 4, 16)  # chunks that the probe tries for heavy models
LONG = 0.1  # seconds of one client, above which the probe tries no more candidates


class Batched(Engine):
    """Runs a cohort in chunks, each chunk as one batched program.

    `chunk` is a number of clients or "auto". Chunks found by a probe are kept in `chunks`, which a
    run saves, so that a resumed run computes exactly the same.

    Clients are divided into `shares`, which chunks do not mix. If several processes compute a run,
    `held` are the shares whose clients this one runs (see `isonomy.engines.distributed`).
    """

    name = "batched"

    def __init__(
        self,
        task: Task,
        federation: Federation,
        *,
        seed: int = 0,
        chunk: int | Literal["auto"] = "auto",
        compile: bool = False,
        chunks: dict[str, int] | None = None,
        shares: int = 1,
        place: Place | None = None,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(task, federation, seed=seed, place=place)
        self.divide(shares)
        self._work, self.initial = Work(), cast(State, ())
        if chunk != "auto" and chunk < 1:
            raise ConfigError(f"engine.chunk = {chunk}: give 1 or more, or 'auto'.")
        keep_freed()
        self.chunk = chunk
        self.programs = shared(compile, precision)
        self.wanted_compiled = compile  # by the config, which all processes of a run have
        self.chunks = dict(chunks or {})
        self.threads: int | None = None  # that a probe found
        self._most_threads = 1
        self._flops: float | None = None
        self._bytes = max(1, sum(p.numel() * p.element_size() for p in task.net.parameters()))

    @classmethod
    def make(
        cls, task: Task, federation: Federation, *, seed: int, options: EngineOptions, note: Note
    ) -> Self:
        """An engine with the config's `chunk` and, if there is a compiler, its `compile`."""
        compile = options.compile
        if compile and not has_compiler():
            note(
                "engine.compile needs a C++ compiler (g++, or the one that CXX names); continuing "
                "without compilation."
            )
            compile = False
        shares = 1 if options.shares == "auto" else options.shares
        made = cls(
            task,
            federation,
            seed=seed,
            chunk=options.chunk,
            compile=compile,
            shares=shares,
            place=place_of(options.device),
            precision=options.precision,
        )
        made.wanted_compiled = options.compile
        return made

    # --- shares of clients ----------------------------------------------------------------------

    def divide(self, shares: int, joint: Joint | None = None) -> None:
        """Divide clients into so many shares; `joint` are the processes that compute them."""
        self.shares, self.joint = shares, joint
        self._clients_of_shares: list[int] | None = None  # that a checkpoint names
        self.held: Sequence[int] = range(shares)
        self._share_of: Tensor | None = None

    def prepare(self, work: Work) -> None:
        """Divide clients by this work."""
        self._work, self._share_of, self._flops = work, None, None

    def reset(self, initial: State) -> None:
        """Give every client that is held here the same initial state."""
        self.initial = initial
        held = None
        if len(self.held) < self.shares:
            none = torch.arange(0)
            held = torch.cat([none, *(self.members(share) for share in self.held)]).sort().values
        self.hold(initial, held)

    @property
    def share_of(self) -> Tensor | None:
        """Each client's share; None if there is one share."""
        if self._share_of is None and self._clients_of_shares is not None:
            self._share_of = shares_with(self._clients_of_shares, by_size(self.federation))
        elif self._share_of is None and self.shares > 1:
            flops = self._heaviness(self._work) / max(self._examples(self._work), 1)
            self._share_of = shares_of(
                self.federation, self.shares, self._work, flops, compiled=self.wanted_compiled
            )
        return self._share_of

    @property
    def division(self) -> Division:
        """The shares, and the processes that compute them."""
        return Division(self.share_of, self.joint)

    def members(self, share: int) -> Tensor:
        """The clients of a share, in ascending order."""
        share_of = self.share_of
        return self.everyone() if share_of is None else (share_of == share).nonzero().squeeze(-1)

    def shards(self) -> Iterator[Tree]:
        """The states of each share's clients."""
        for share in range(self.shares):
            yield to_host(self.states.take(self.members(share)))

    def load(self, shards: Sequence[Callable[[], Tree]]) -> None:
        """Give every client its state."""
        for share, shard in enumerate(shards):
            self.states.put(self.members(share), tree.like(self.states.initial, shard()))

    def take_notes(self) -> list[str]:
        """Why compilation was given up, if it was."""
        trouble, self.programs.trouble = self.programs.trouble, None
        return [] if trouble is None else [f"compilation failed, continuing without it: {trouble}"]

    def try_threads(self, most: int) -> None:
        """Before the first training, find out whether 1 or so many threads are faster."""
        self._most_threads = most

    def saved(self) -> dict[str, Any]:
        """The chunks and the number of threads that probes found, and the shares."""
        shares: dict[str, Any] = {}
        if self.share_of is not None:
            clients = torch.bincount(self.share_of, minlength=self.shares).tolist()
            shares = {"shares": self.shares, "clients": clients}
        threads = {"threads": self.threads} if self.threads is not None else {}
        return {"chunks": self.chunks, **shares, **threads}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Use what earlier probes found, and the shares that there were."""
        self.chunks = dict(saved.get("chunks") or {})
        if saved.get("threads") is not None:
            self.threads = int(saved["threads"])
            torch.set_num_threads(self.threads)
        self.divide(int(saved.get("shares", 1)), self.joint)
        self._clients_of_shares = saved.get("clients")
        self.reset(self.initial)

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """Chunks of similar clients, largest first, share by share."""
        share_of = self.share_of
        ask = replace(ask, message=self.place.put(ask.message))
        if share_of is None:
            parts = [self._sorted(ask, ask.ids)] if self.held else []
        else:
            found = [ask.ids[share_of[ask.ids] == share] for share in self.held]
            parts = [self._sorted(ask, ids) for ids in found if len(ids)]
        most = self._chunk(ask, parts)
        self._choose_threads(parts, most)
        for part in parts:
            yield from self._chunks(part, most)

    def _sorted(self, ask: Ask, ids: Tensor) -> Ask:
        """The question to some of its clients, the largest first."""
        order = torch.argsort(-self.federation.sizes(clients=ids), stable=True)
        part = ask.to(ids[order])  # ids ascend, so ties have one order
        return replace(part, each=self.place.put(part.each))

    def _chunks(self, ask: Ask, most: int) -> Iterator[Replies]:
        for first, last in self._cuts(ask, most):
            value, state = self._run(ask, first, last)
            ids = ask.ids[first:last]
            self.states.put(ids, state)
            yield Replies(value, ids, self.federation.sizes(clients=ids))

    def _cuts(self, ask: Ask, most: int) -> Iterator[tuple[int, int]]:
        """Chunk borders: at most `most` clients, or fewer if large clients need the memory."""
        ranges = self.federation.ranges[ask.ids]
        splits = (ranges[..., 1] - ranges[..., 0]).numpy()
        work, parts = ask.work, ask.declared.parts.values()
        trains = work.steps != 1 or any(part.kind in TRAINED for part in parts)
        width = max(self.federation.x[0].numel(), 1)
        return cuts(splits, work, most, width, PADDING if trains else MEASURED)

    def _run(self, ask: Ask, first: int, last: int) -> tuple[Any, State]:
        ids = ask.ids[first:last]
        parts = self.client(ask, ids)
        lanes, shared = parts["lanes"], parts["shared"]
        each = None if ask.each is None else tree.take(ask.each, slice(first, last))
        planner = self.programs.plan
        products = self.programs.products(self.task.net) if self.place.host else nullcontext()
        with (
            torch.no_grad(),
            using(self.programs),
            planning(planner),
            self.place.active(),
            products,
        ):
            if last - first == 1:
                own = {} if each is None else tree.take(each, 0)
                message = {**ask.message, **own}
                value, state = self.run_phase(ask, message, tree.take(lanes, 0), shared)
                return tree.tmap(_one, value), tree.tmap(_one, state)

            def phase(lane: Any, own: Any) -> tuple[Any, State]:
                return self.run_phase(ask, {**ask.message, **own}, lane, shared)

            try:
                out: tuple[Any, State] = vmap(phase)(lanes, each or {})
            except RuntimeError as error:
                plain = explained(error, ask)
                if plain is None:
                    raise
                raise plain from error
            return out

    # --- how many clients at once ---------------------------------------------------------------

    def _chunk(self, ask: Ask, parts: list[Ask]) -> int:
        if self.chunk != "auto":
            return self.chunk
        if self._heaviness(ask.work) < HEAVY or len(ask.ids) == 1:
            cached = CACHED if self.shares == 1 else SHARED
            return min(max(cached // self._bytes, FEWEST), MOST)
        name = getattr(ask.phase, "__name__", "phase")
        if name not in self.chunks:
            found = self.division.everyone(lambda: self._probe(parts[0]) if parts else 0)
            self.chunks[name] = next(chunk for chunk in found if chunk)
        return self.chunks[name]

    def _choose_threads(self, parts: list[Ask], chunk: int) -> None:
        """Set the number of torch's threads, in the first exchange of a run that may use several.

        Results may depend on the number, in rounding. So it is the same in all processes, and kept.
        """
        if self.threads is not None or self._most_threads == 1:
            return
        found = self.division.everyone(lambda: self._probe_threads(parts[0], chunk) if parts else 0)
        self.threads = next(number for number in found if number)
        torch.set_num_threads(self.threads)

    def _probe_threads(self, ask: Ask, chunk: int) -> int:
        """1, unless all threads are clearly faster now; other work on the machine matters."""
        small = replace(ask, work=replace(ask.work, steps=2))
        last = min(chunk, len(ask.ids))
        numbers = (1, self._most_threads)
        spent = dict.fromkeys(numbers, float("inf"))
        for turn in range(4):  # the first one traces and warms up
            for number in numbers:
                torch.set_num_threads(number)
                begin = time.perf_counter()
                self._run(small, 0, last)
                if turn:
                    spent[number] = min(spent[number], time.perf_counter() - begin)
        one, several = (spent[number] for number in numbers)
        return numbers[1] if several < 0.9 * one else 1

    def _examples(self, work: Work) -> int:
        """The number of examples in the largest client's step."""
        return min(work.width(int(self.federation.sizes().max())), len(self.federation.y))

    def _heaviness(self, work: Work) -> float:
        """The number of floating-point operations in one client's step, counted, not timed."""
        if self._flops is None:
            n, data = self._examples(work), self.federation
            batch = Batch(data.x[:n], data.y[:n], data.groups[:n], torch.ones(n))
            params = self.task.init(0)
            self._flops = float(flops(lambda: grad(self.task.loss)(params, batch)))
        return self._flops

    def _probe(self, ask: Ask) -> int:
        """Time two steps of a few clients for each candidate; return the fastest.

        Where one client alone takes long (a pass over all of its examples, or a large network), the
        overhead that several at once would save is negligible, and no more candidates are tried.
        """
        best, fastest = 1, float("inf")
        small = replace(ask, work=replace(ask.work, steps=2))
        for chunk in CANDIDATES:
            if chunk > len(ask.ids) or (chunk > 4 and self._heaviness(ask.work) > HUGE):
                break
            self._timed(small, chunk)  # traces and warms up
            spent = self._timed(small, chunk)
            if chunk == 1 and spent > LONG:
                return 1
            spent = min(spent, self._timed(small, chunk))
            if spent < 0.95 * fastest:
                best, fastest = chunk, spent
        return best

    def _timed(self, ask: Ask, chunk: int) -> float:
        """The seconds of the first clients of a question, for each of them."""
        begin = time.perf_counter()
        self._run(ask, 0, chunk)
        self.place.wait()
        return (time.perf_counter() - begin) / chunk


def has_compiler() -> bool:
    """Whether torch.compile would find a C++ compiler."""
    from torch._inductor import config as inductor

    names = inductor.cpp.cxx
    return any(name and shutil.which(name) for name in names)


def _one(t: Tensor) -> Tensor:
    return t.unsqueeze(0)
