"""The server's half: a phase becomes a message to every client, and replies are looked at.

A reply that is late, malformed, too large, of other shapes than asked for, or not finite is left
out, as if the client had been silent; who it was and why is in `faults`. What shapes are asked
for, the server finds by running the phase itself on three blank rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.client import Pool, State
from isonomy.core.cohort import Ask, Replies
from isonomy.core.phase import Phase, declaration
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine
from isonomy.errors import TrainingError
from isonomy.federation.flower import codec
from isonomy.federation.flower.phase_runner import Participant, Phases, request, run_phase
from isonomy.federation.flower.state_store import Store
from isonomy.federation.flower.transport import InProcess, Link, Silence
from isonomy.robust.screen import fault


@dataclass(frozen=True)
class Fault:
    """A reply that did not count."""

    client: int
    round: int
    phase: str
    why: str


class Flower(Engine):
    """Clients behind a link; their states are with them."""

    name = "flower"

    def __init__(
        self, task: Task, federation: Federation, *, link: Link, phases: Phases, seed: int = 0
    ) -> None:
        super().__init__(task, federation, seed=seed)
        self.link = link
        self.phases = phases
        self.initial: State = ()
        self.safe = 0  # rounds after which there is a checkpoint
        self.faults: list[Fault] = []
        self.sent = self.received = 0  # bytes of messages and of replies, as they travel

    def reset(self, initial: State) -> None:
        """What each client begins with, as it knows itself; here only its shapes matter."""
        self.initial = initial

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """Replies in the order of ids, so that sums do not depend on who was first."""
        name = self.phases.name(ask.phase)
        like = self._like(ask)
        asked = [int(k) for k in ask.ids]
        requests = self._requests(ask, name, asked)
        self.sent += sum(map(len, requests.values()))
        waiting = [k for k in asked if k in requests]
        here: dict[int, Tree] = {}
        broken = 0
        for k in (k for k in asked if k not in requests):
            self._fault(ask, name, k, "it is not there")
        for k, content in self.link.ask(requests):
            got = self._read(content, like)
            if isinstance(got, str):
                broken += got.endswith("not finite")
                self._fault(ask, name, k, got)
                waiting.remove(k)
            else:
                here[k] = got[0]
            while waiting and waiting[0] in here:
                yield self._replies(waiting[0], here.pop(waiting.pop(0)))
        if requests and broken == len(requests) > 1:
            raise TrainingError(
                f"round {ask.round + 1}: every client's reply to '{name}' holds numbers that are "
                "not finite; lower local.lr or scale the features, and run again."
            )

    def _requests(self, ask: Ask, name: str, asked: list[int]) -> dict[int, bytes]:
        head = request(ask, name, self.seed, self.safe)
        present = self.link.present()
        if ask.each is None:
            same = codec.pack(head, ask.message)
            return dict.fromkeys((k for k in asked if k in present), same)
        return {
            k: codec.pack(head, {**ask.message, **tree.take(ask.each, i)})
            for i, k in enumerate(asked)
            if k in present
        }

    def _read(self, content: bytes | Silence, like: Tree) -> tuple[Tree] | str:
        """A reply's tree, or what is wrong with it."""
        if isinstance(content, Silence):
            return content.why
        self.received += len(content)
        most = codec.most(like)
        if len(content) > most:
            return f"its reply is too large ({len(content):,} bytes, {most:,} at most)"
        try:
            if codec.header(content).get("ok") is not True:
                return "it refused"
            value = codec.unpack(content, like)[1]
        except codec.MalformedError as error:
            return f"its reply is malformed: {error}"
        wrong = fault(value, like)
        return (value,) if wrong is None else f"its reply was refused: {wrong}"

    def _replies(self, k: int, value: Tree) -> Replies:
        ids = torch.tensor([k])
        stacked = tree.tmap(lambda t: t.unsqueeze(0), value)
        return Replies(stacked, ids, self.federation.sizes()[ids])

    def _fault(self, ask: Ask, name: str, k: int, why: str) -> None:
        self.faults.append(Fault(k, ask.round, name, why))

    def _like(self, ask: Ask) -> Tree:
        """A reply's shapes and types."""
        pool, ranges = blank(self.federation)
        message = ask.message if ask.each is None else {**ask.message, **tree.take(ask.each, 0)}
        small = replace(ask, message=message, each=None, ids=torch.zeros(1, dtype=torch.int64))
        small = replace(small, work=replace(ask.work, steps=1), around=())
        return run_phase(self.task, small, pool, ranges, self.initial, self.seed)[0]


def blank(federation: Federation) -> tuple[Pool, Tensor]:
    """A client with one row of zeros in each split."""
    x = torch.zeros(3, *federation.x.shape[1:])
    y = torch.zeros(3, dtype=federation.y.dtype)
    groups = torch.zeros(3, federation.groups.shape[1], dtype=torch.int64)
    return Pool(x, y, groups), torch.tensor([[[0, 1], [1, 2], [2, 3]]])


# --- all clients in one process -------------------------------------------------------------------


class Everything:
    """Phases by a number that they get when they are first asked for: one process knows all."""

    def __init__(self) -> None:
        self._known: dict[str, Phase] = {}

    def name(self, phase: Phase) -> str:
        """Its own name, which means this very phase from now on."""
        name = declaration(phase).name
        self._known[name] = phase
        return name

    def find(self, name: str) -> Phase:
        """The phase last named so."""
        return self._known[name]


class Together(Flower):
    """The clients of a simulation, reached as those of a real federation are."""

    name = "flower, in process"

    def __init__(self, task: Task, federation: Federation, *, seed: int = 0) -> None:
        phases = Everything()
        super().__init__(task, federation, link=InProcess({}), phases=phases, seed=seed)
        self.reset(())

    def reset(self, initial: State) -> None:
        """New clients."""
        super().reset(initial)
        ranges = self.federation.ranges
        self.clients = [
            Participant(k, self.task, self.pool, ranges[k : k + 1], Store(initial), self.phases)
            for k in range(len(self.federation))
        ]
        self.link = InProcess({k: client.answer for k, client in enumerate(self.clients)})

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """The clients have the middleware of whoever runs the simulation."""
        for client in self.clients:
            client.around = ask.around
        return super().exchange(ask)

    def kept(self) -> Any:
        """Every client's state, stacked."""
        return tree.stack([client.store.load() for client in self.clients])
