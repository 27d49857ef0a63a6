"""The organiser's side of secure aggregation: it receives masked replies, and gets their sum.

An exchange has two messages, for masked replies and for what removes the masks from their sum.
Before it, keys and shares are exchanged, by two more, for the next `SLOTS` exchanges: as long as
the same clients take part and none has lost its keys.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from isonomy.core.cohort import Ask, Summed
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.errors import TrainingError
from isonomy.federation.flower import codec
from isonomy.federation.flower.codec import Header, MalformedError
from isonomy.federation.flower.identity import SIGNATURE
from isonomy.federation.flower.phase_runner import request
from isonomy.federation.flower.secure_client import (
    KIND,
    Exchange,
    encoding_of,
    from_bytes,
    read_adverts,
    to_bytes,
)
from isonomy.federation.flower.transport import NoReply, Transport
from isonomy.privacy.secure import member as members
from isonomy.privacy.secure.member import Advert
from isonomy.privacy.secure.primitives import KEY, SECRET, ProtocolError
from isonomy.privacy.secure.quantise import GarbledError, Settings
from isonomy.privacy.secure.recovery import unmasked
from isonomy.privacy.secure.simulated import Room
from isonomy.privacy.secure.threshold import least
from isonomy.privacy.shares import Shares

SLOTS = 16  # exchanges for which keys are made at a time


class Host(Protocol):
    """The engine, as far as secure exchanges use it."""

    transport: Transport
    federation: Federation
    charter: str
    seed: int
    settled_rounds: int
    sent: int

    def like(self, ask: Ask) -> Tree:
        """A reply with the right shapes and types."""

    def unpacked(self, content: bytes | NoReply, like: Tree) -> tuple[Tree] | str:
        """A reply's tree, or why there is none."""

    def fault(self, ask: Ask, name: str, k: int, why: str) -> None:
        """Report a client whose reply is not used."""

    def note(self, text: str) -> None:
        """Keep a sentence for the user."""


@dataclass
class _Epoch:
    name: str
    adverts: dict[int, Advert]
    threshold: int
    sealed: dict[int, dict[int, bytes]]  # from owner to receiver
    live: set[int]  # the clients that have answered everything so far
    given: set[int] = field(default_factory=set)  # those that have received their shares
    next: int = 0


class SecureServer:
    """Secure exchanges over an engine's transport."""

    def __init__(
        self,
        settings: Settings,
        threshold: int,
        room: Room,
        *,
        capped: bool = False,
        shares: Shares | None = None,
    ) -> None:
        self.settings, self.threshold, self.room, self.capped = settings, threshold, room, capped
        self.shares = shares  # with differential privacy of clients: how they write replies
        self._epoch: _Epoch | None = None

    def exchange(self, engine: Host, ask: Ask, name: str) -> Iterator[Summed]:
        """The sum of the replies, if enough clients answer."""
        present = engine.transport.present()
        here = [k for k in ask.ids.tolist() if k in present]
        for k in ask.ids.tolist():
            if k not in present:
                engine.fault(ask, name, k, "it is not connected")
        asked = sorted(here)
        epoch = self._usable(asked) or self._begin(engine, ask, name, asked)
        if epoch is None:
            return
        asked = [k for k in asked if k in epoch.live]
        try:
            yield from self._masked(engine, ask, name, asked, epoch)
        finally:
            epoch.next += 1

    # --- keys -------------------------------------------------------------------------------------

    def _usable(self, asked: list[int]) -> _Epoch | None:
        """The present epoch, if all these clients have its keys."""
        now = self._epoch
        if now is None or now.next >= SLOTS or len(asked) < now.threshold:
            return None
        return now if set(asked) <= now.live else None

    def _begin(self, engine: Host, ask: Ask, name: str, asked: list[int]) -> _Epoch | None:
        """A new epoch of these clients; None if too few of them take part."""
        self._epoch = None
        epoch, threshold = uuid.uuid4().hex, least(self.threshold, len(asked))
        head = {"kind": KIND, "charter": engine.charter, "phase": KIND, "epoch": epoch}
        like = {
            "box": torch.zeros(1, KEY, dtype=torch.uint8),
            "slots": torch.zeros(SLOTS, KEY, dtype=torch.uint8),
            "signature": torch.zeros(1, SIGNATURE, dtype=torch.uint8),
        }
        adverts: dict[int, Advert] = {}
        signatures: dict[int, Tensor] = {}
        if self._short(engine, ask, name, len(asked), threshold):
            return None
        question = codec.pack(head | {"stage": "keys", "members": asked, "slots": SLOTS})
        for k, got in self._told(engine, ask, name, dict.fromkeys(asked, question), like):
            stacked = {"box": got["box"], "slots": got["slots"].unsqueeze(0)}
            adverts |= read_adverts([k], stacked, SLOTS)
            signatures[k] = got["signature"][0]
        adverts = dict(sorted(adverts.items()))
        if self._short(engine, ask, name, len(adverts), threshold):
            return None
        ids = list(adverts)
        keys = {
            "box": to_bytes([one.box for one in adverts.values()], KEY),
            "slots": torch.stack([to_bytes(one.slots, KEY) for one in adverts.values()]),
            "signature": torch.stack([signatures[k] for k in ids]),
        }
        width = members.sealed_size(SLOTS)
        question = codec.pack(head | {"stage": "shares", "members": ids}, keys)
        like = {"sealed": torch.zeros(len(ids) - 1, width, dtype=torch.uint8)}
        sealed: dict[int, dict[int, bytes]] = {}
        for k, got in self._told(engine, ask, name, dict.fromkeys(ids, question), like):
            rows = from_bytes(got["sealed"], len(ids) - 1, width)
            sealed[k] = dict(zip([j for j in ids if j != k], rows, strict=True))
        if self._short(engine, ask, name, len(sealed), threshold):
            return None
        self._epoch = _Epoch(epoch, adverts, threshold, sealed, set(sealed))
        return self._epoch

    # --- an exchange ------------------------------------------------------------------------------

    def _masked(
        self, engine: Host, ask: Ask, name: str, asked: list[int], epoch: _Epoch
    ) -> Iterator[Summed]:
        about = self._about(engine, ask, epoch, asked)
        head = request(ask, name, engine.seed, engine.settled_rounds, engine.charter)
        encoding = encoding_of(
            ask.declared, engine.like(ask), about.room, self.settings, self.shares
        )
        requests = {k: self._question(head, about, ask.message, epoch, k) for k in asked}
        like = {"masked": torch.zeros(encoding.length, dtype=encoding.dtype)}
        vectors: dict[int, Tensor] = {}
        broken: list[int] = []

        def lost(k: int, why: str) -> None:
            engine.fault(ask, name, k, why)
            if why.endswith("not finite"):
                broken.append(k)

        for k, got in self._told(engine, ask, name, requests, like, lost):
            vectors[k] = got["masked"]
        epoch.given |= set(vectors)
        epoch.live -= set(asked) - set(vectors)
        if len(broken) == len(requests) > 1:
            raise TrainingError(
                f"round {ask.round + 1}: every client's reply to '{name}' holds numbers that are "
                "not finite; lower local.lr or scale the features, and run again."
            )
        if self._short(engine, ask, name, len(vectors), epoch.threshold):
            return
        vectors = dict(sorted(vectors.items()))
        shares = self._shares(engine, ask, name, asked, list(vectors), epoch)
        context = about.context(members.roster(epoch.name, epoch.adverts), head, ask.message)
        try:
            total = unmasked(
                vectors, shares, epoch.adverts, about.slot, asked, epoch.threshold, context
            )
            found = encoding.decoded(total)
            if found.total != self._expected(ask, list(vectors)):
                raise GarbledError("its weights are not those of the clients")
        except (ProtocolError, GarbledError) as error:
            self._epoch = None
            engine.note(
                f"round {ask.round + 1}: the sum of replies to '{name}' could not be recovered "
                f"({error}); the exchange changes nothing."
            )
            return
        yield Summed(found.value, torch.tensor(list(vectors)), float(found.total), found.cut)

    def _about(self, engine: Host, ask: Ask, epoch: _Epoch, asked: list[int]) -> Exchange:
        """How the replies of an exchange are masked."""
        limit = 0
        if self.capped and ask.weighting == "size" and ask.weights is not None:
            limit = int(ask.weights.max())
        return Exchange(epoch.name, epoch.next, asked, ask.weighting, limit, self.room(ask), [])

    def _question(
        self, head: Header, about: Exchange, message: Any, epoch: _Epoch, k: int
    ) -> bytes:
        """A client's message, with the shares of others if it does not have them yet."""
        rows = {} if k in epoch.given else {j: epoch.sealed[j][k] for j in epoch.sealed if j != k}
        sealed = to_bytes(list(rows.values()), members.sealed_size(SLOTS))
        secure = about.plain() | {"owners": list(rows)}
        return codec.pack({**head, "secure": secure}, {"ask": message, "sealed": sealed})

    def _shares(
        self,
        engine: Host,
        ask: Ask,
        name: str,
        asked: list[int],
        answered: list[int],
        epoch: _Epoch,
    ) -> dict[int, dict[int, bytes]]:
        """What removes the masks from the sum, of the clients that still answer."""
        head: dict[str, Any] = {"kind": KIND, "charter": engine.charter, "phase": KIND}
        head |= {"epoch": epoch.name, "stage": "unmask", "slot": epoch.next, "answered": answered}
        like = {"shares": torch.zeros(len(asked), SECRET, dtype=torch.uint8)}
        requests = dict.fromkeys(answered, codec.pack(head))
        told: dict[int, dict[int, bytes]] = {}

        def gone(k: int, why: str) -> None:
            engine.note(
                f"round {ask.round + 1}: '{engine.federation.name(k)}' sent its masked reply to "
                f"'{name}' and nothing after it ({why}); its reply is in the sum."
            )

        for k, got in self._told(engine, ask, name, requests, like, gone):
            rows = from_bytes(got["shares"], len(asked), SECRET)
            told[k] = dict(zip(asked, rows, strict=True))
        epoch.live -= set(answered) - set(told)
        return told

    def _expected(self, ask: Ask, answered: list[int]) -> int:
        """The sum of the weights of these clients, which the server knows."""
        weights = torch.ones(len(ask.ids)) if ask.weights is None else ask.weights
        known: dict[int, float] = dict(zip(ask.ids.tolist(), weights.tolist(), strict=True))
        return math.floor(sum(known[k] for k in answered))

    def _told(
        self,
        engine: Host,
        ask: Ask,
        name: str,
        requests: Mapping[int, bytes],
        like: Tree,
        lost: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """The replies of the form `like`; the others are given to `lost`, by default as faults."""
        engine.sent += sum(map(len, requests.values()))
        for k, content in engine.transport.ask(requests):
            got = engine.unpacked(content, like)
            if not isinstance(got, str):
                try:
                    _check_form(got[0], like)
                    yield k, got[0]
                    continue
                except MalformedError as error:
                    got = f"its reply is malformed: {error}"
            if self._epoch is not None:
                self._epoch.live.discard(k)
            if lost is None:
                engine.fault(ask, name, k, got)
            else:
                lost(k, got)

    def _short(self, engine: Host, ask: Ask, name: str, count: int, threshold: int) -> bool:
        """Whether there are too few clients; says so."""
        if count >= threshold:
            return False
        engine.note(
            f"round {ask.round + 1}: {count} of {len(ask.ids)} clients answered '{name}', fewer "
            f"than the {threshold} that a secure sum needs; the exchange changes nothing."
        )
        return True


def _check_form(value: Any, like: Any) -> None:
    for name, wanted in like.items():
        given = value[name]
        if given.shape != wanted.shape or given.dtype != wanted.dtype:
            raise MalformedError(f"'{name}' has another form")
