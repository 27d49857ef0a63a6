"""The server's side: a phase becomes a message to every client, and its replies are checked.

A reply that is late, malformed, too large, of a wrong shape or not finite is left out, as if the
client had not replied; `take_faults` reports whose it was and why. The server finds the right
shapes by running the phase itself on three blank rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.client import Pool, State
from isonomy.core.cohort import Ask, Replies
from isonomy.core.examples import SPLITS
from isonomy.core.phase import Phase, declaration
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine, Fault
from isonomy.errors import TrainingError
from isonomy.federation.flower import codec
from isonomy.federation.flower.phase_runner import (
    READ_ONLY,
    PhaseRunner,
    Phases,
    request,
    run_phase,
)
from isonomy.federation.flower.state_store import StateStore
from isonomy.federation.flower.transport import InProcessTransport, NoReply, Transport
from isonomy.privacy.secure.check import check_ask
from isonomy.robust.plausible import impossible
from isonomy.robust.screen import fault

if TYPE_CHECKING:  # they need the library `cryptography`, which a simulation does not
    from isonomy.federation.flower.secure_client import SecureClient
    from isonomy.federation.flower.secure_server import SecureServer

LONGEST = 300  # letters of a client's reason that are shown


class Flower(Engine):
    """Clients that are reached by a transport and keep their own states."""

    name = "flower"
    remote: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        federation: Federation,
        *,
        transport: Transport,
        phases: Phases,
        seed: int = 0,
        charter: str = "",
        secure: SecureServer | None = None,
    ) -> None:
        super().__init__(task, federation, seed=seed)
        self.secure = secure  # sums of replies are computed without seeing any
        self.charter = charter  # the digest of what clients agreed to
        self.transport = transport
        self.phases = phases
        self.initial: State = ()
        self.sent = self.received = 0  # bytes of messages and of replies, as they are sent
        self.settled_rounds = 0  # rounds after which there is a checkpoint
        self._faults: list[Fault] = []
        self._notes: list[str] = []

    def reset(self, initial: State) -> None:
        """Set the shapes of states; each client makes its own initial state."""
        self.initial = initial

    def take_faults(self) -> list[Fault]:
        """Replies that were not used since the last call."""
        taken, self._faults = self._faults, []
        return taken

    def settled(self, round: int) -> None:
        """Let clients delete states from before `round` rounds."""
        self.settled_rounds = round

    def note(self, text: str) -> None:
        """Keep a sentence for the user."""
        self._notes.append(text)

    def take_notes(self) -> list[str]:
        """Sentences for the user since the last call."""
        taken, self._notes = self._notes, []
        return taken

    def exchange(self, ask: Ask) -> Iterator[Any]:
        """Replies in the order of ids, so that sums do not depend on their order of arrival.

        With secure aggregation, a sum instead, except in evaluations.
        """
        name = self.phases.name(ask.phase)
        if self.secure is not None and not name.startswith(READ_ONLY):
            check_ask(ask)
            if ask.declared.parts:  # otherwise there is nothing to hide
                yield from self.secure.exchange(self, ask, name)
                return
        yield from self._plain(ask, name)

    def _plain(self, ask: Ask, name: str) -> Iterator[Replies]:
        like = self.like(ask)
        asked = [int(k) for k in ask.ids]
        requests = self._requests(ask, name, asked)
        self.sent += sum(map(len, requests.values()))
        waiting = [k for k in asked if k in requests]
        here: dict[int, Tree] = {}
        broken = 0
        for k in (k for k in asked if k not in requests):
            self.fault(ask, name, k, "it is not connected")
        for k, content in self.transport.ask(requests):
            got = self._read(content, like, ask, k)
            if isinstance(got, str):
                broken += got.endswith("not finite")
                self.fault(ask, name, k, got)
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
        head = request(ask, name, self.seed, self.settled_rounds, self.charter)
        present = self.transport.present()
        if ask.each is None:
            same = codec.pack(head, ask.message)
            return dict.fromkeys((k for k in asked if k in present), same)
        return {
            k: codec.pack(head, {**ask.message, **tree.take(ask.each, i)})
            for i, k in enumerate(asked)
            if k in present
        }

    def _read(self, content: bytes | NoReply, like: Tree, ask: Ask, k: int) -> tuple[Tree] | str:
        """A reply's tree, or what is wrong with it."""
        got = self.unpacked(content, like)
        if isinstance(got, str):
            return got
        wrong = fault(got[0], like) or self._impossible(got[0], ask, k)
        return got if wrong is None else f"its reply was refused: {wrong}"

    def unpacked(self, content: bytes | NoReply, like: Tree) -> tuple[Tree] | str:
        """A reply's tree, which has the structure of `like`, or why there is none."""
        if isinstance(content, NoReply):
            return content.why
        self.received += len(content)
        most = codec.most(like)
        if len(content) > most:
            return f"its reply is too large ({len(content):,} bytes, {most:,} at most)"
        try:
            head = codec.header(content)
            if head.get("ok") is not True:
                why = "".join(c if c.isprintable() else "?" for c in str(head.get("why", "")))
                return f"it refused: {why[:LONGEST] or 'it gave no reason'}"
            return (codec.unpack(content, like)[1],)
        except codec.MalformedError as error:
            return f"its reply is malformed: {error}"

    def _impossible(self, value: Tree, ask: Ask, k: int) -> str | None:
        """What is wrong with a reply's numbers, as far as the client's sizes show it."""
        ranges = self.federation.ranges[k]
        sizes = [int(n) for n in ranges[:, 1] - ranges[:, 0]]
        return impossible(value, ask, dict(zip(SPLITS, sizes, strict=True)), self.task)

    def _replies(self, k: int, value: Tree) -> Replies:
        ids = torch.tensor([k])
        stacked = tree.tmap(lambda t: t.unsqueeze(0), value)
        return Replies(stacked, ids, self.federation.sizes()[ids])

    def fault(self, ask: Ask, name: str, k: int, why: str) -> None:
        """Report a client whose reply is not used."""
        self._faults.append(Fault(k, ask.round, name, why))

    def like(self, ask: Ask) -> Tree:
        """A reply with the right shapes and types."""
        pool, ranges = blank(self.federation)
        message = ask.message if ask.each is None else {**ask.message, **tree.take(ask.each, 0)}
        small = replace(ask, message=message, each=None, ids=torch.zeros(1, dtype=torch.int64))
        small = replace(small, work=replace(ask.work, steps=1), around=())
        return run_phase(self.task, small, pool, ranges, self.initial, self.seed)[0]


def blank(federation: Federation) -> tuple[Pool, Tensor]:
    """The rows of a client with one row of zeros in each split."""
    x = torch.zeros(3, *federation.x.shape[1:])
    y = torch.zeros(3, dtype=federation.y.dtype)
    groups = torch.zeros(3, federation.groups.shape[1], dtype=torch.int64)
    return Pool(x, y, groups), torch.tensor([[[0, 1], [1, 2], [2, 3]]])


# --- all clients in one process -------------------------------------------------------------------


class SeenPhases:
    """Phases by name, known once they were asked for: server and clients share one process."""

    def __init__(self) -> None:
        self._known: dict[str, Phase] = {}

    def name(self, phase: Phase) -> str:
        """The phase's own name, which stands for this phase from now on."""
        name = declaration(phase).name
        self._known[name] = phase
        return name

    def find(self, name: str) -> Phase:
        """The phase that last had this name."""
        return self._known[name]


class InProcessFlower(Flower):
    """The clients of a simulation, reached by the same messages as those of a real federation."""

    name = "flower, in process"

    def __init__(
        self,
        task: Task,
        federation: Federation,
        *,
        seed: int = 0,
        secure: SecureServer | None = None,
    ) -> None:
        phases = SeenPhases()
        transport = InProcessTransport({})
        super().__init__(
            task, federation, transport=transport, phases=phases, seed=seed, secure=secure
        )
        self.reset(())

    def reset(self, initial: State) -> None:
        """New clients."""
        super().reset(initial)
        ranges = self.federation.ranges
        self.clients = [
            PhaseRunner(
                k,
                self.task,
                self.pool,
                ranges[k : k + 1],
                StateStore(initial),
                self.phases,
                masking=self._masking(k),
            )
            for k in range(len(self.federation))
        ]
        self.transport = InProcessTransport(
            {k: client.answer for k, client in enumerate(self.clients)}
        )

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """The clients use the client-side middleware of the simulation."""
        for client in self.clients:
            client.around = ask.around
        return super().exchange(ask)

    def _masking(self, k: int) -> SecureClient | None:
        own = self.secure
        if own is None:
            return None
        from isonomy.federation.flower.secure_client import SecureClient

        size = int(self.federation.sizes()[k])
        return SecureClient(k, size, own.threshold, own.settings, capped=own.capped)

    def stored_states(self) -> Any:
        """Every client's state, stacked."""
        return tree.stack([client.store.load() for client in self.clients])
