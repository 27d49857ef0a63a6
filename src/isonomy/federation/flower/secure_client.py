"""A participant's side of secure aggregation: messages to `Member`, and replies that are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from isonomy.core.phase import Declaration
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError
from isonomy.federation.flower import codec
from isonomy.federation.flower.codec import Header, MalformedError
from isonomy.federation.flower.identity import SIGNATURE, Identity
from isonomy.privacy.secure import member as members
from isonomy.privacy.secure.member import Advert, Member
from isonomy.privacy.secure.primitives import KEY, SECRET, ProtocolError, digest
from isonomy.privacy.secure.quantise import Encoding, GarbledError, Settings
from isonomy.privacy.shares import Draw, Shares

MOST_ROOM = 60  # bits for the sum of weights
KIND = "secure"  # of messages that prepare or end an exchange
ABOUT = ("charter", "phase", "round", "exchange", "final")  # what all clients must be told alike


def to_bytes(rows: Sequence[bytes], width: int) -> Tensor:
    """Byte strings of one length as a tensor [rows, width]."""
    whole = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8) if rows else None
    return torch.zeros(0, width, dtype=torch.uint8) if whole is None else whole.reshape(-1, width)


def from_bytes(rows: Any, count: int, width: int) -> list[bytes]:
    """Undo `to_bytes`; raises MalformedError for another shape."""
    if not isinstance(rows, Tensor) or rows.dtype != torch.uint8 or rows.shape != (count, width):
        raise MalformedError("its keys or shares have another form")
    return [bytes(row.tolist()) for row in rows]


@dataclass(frozen=True)
class Exchange:
    """The part of a question that says how its reply is masked."""

    epoch: str
    slot: int
    asked: list[int]
    weighting: str
    limit: int  # the largest weight, 0 for none
    room: int
    owners: list[int]  # whose shares the message brings

    @classmethod
    def of(cls, given: Any) -> Exchange:
        """From a message; raises MalformedError if it cannot be read."""
        try:
            whole = [given["slot"], given["limit"], given["room"]]
            lists = [given["asked"], given["owners"]]
            if not all(type(n) is int for n in (*whole, *lists[0], *lists[1])):
                raise TypeError
            return cls(**{**given, "epoch": str(given["epoch"])})
        except (KeyError, TypeError):
            raise MalformedError("it does not say how its reply is masked") from None

    def plain(self) -> dict[str, Any]:
        """As in a message."""
        return dict(self.__dict__)

    def context(self, roster: bytes, head: Header, message: Tree) -> bytes:
        """A digest of everything that all clients of the exchange must be told alike."""
        asked = {name: head.get(name) for name in ABOUT}
        terms = [self.weighting, self.limit, self.room]
        sent = codec.digest(codec.pack({}, message))
        return members.context(roster, self.slot, self.asked, asked, terms, sent)


def encoding_of(
    declared: Declaration, like: Tree, room: int, settings: Settings, shares: Shares | None
) -> Encoding:
    """How replies are written, at the server and at each client."""
    if shares is not None:
        return shares.encoding(declared, like, room)
    return Encoding.of(declared, like, room, settings)


class Noise(Protocol):
    """A client's share of the noise of differential privacy."""

    shares: Shares

    def draw(self, head: Header) -> Draw:
        """The noise of one reply; raises BudgetSpent if there must be no further one."""


class SecureClient:
    """Masks one client's replies; `size` is its number of training rows.

    `capped` says whether the charter limits weights by size. With an `identity`, keys are signed,
    and those of others must be. With `noise`, replies are clipped and noised before.
    """

    def __init__(
        self,
        number: int,
        size: int,
        threshold: int,
        settings: Settings,
        *,
        capped: bool,
        identity: Identity | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.number, self.size, self.settings, self.capped = number, size, settings, capped
        self.identity, self.noise = identity, noise
        self.member = Member(number, threshold)
        self._advert: Advert | None = None

    # --- messages that prepare or end an exchange -------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """The reply to such a message; raises MalformedError if it is refused."""
        head, value = codec.unpack(request)
        try:
            match head.get("stage"):
                case "keys":
                    return self._keys(head, head["members"], int(head["slots"]))
                case "shares":
                    return self._shares(head, _numbers(head["members"]), value)
                case "unmask":
                    return self._unmask(str(head["epoch"]), int(head["slot"]), head["answered"])
        except ProtocolError as error:
            raise MalformedError(str(error)) from None
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, MalformedError):
                raise
            raise MalformedError("a message of secure aggregation cannot be read") from None
        raise MalformedError("secure aggregation has no such message")

    def _keys(self, head: Header, ids: list[int], slots: int) -> bytes:
        own = self.member.advertise(str(head["epoch"]), _numbers(ids), slots)
        self._advert, signature = own, bytes(SIGNATURE)
        if self.identity is not None:
            signature = self.identity.sign(signed_part(head, self.number, own))
        value = {
            "box": to_bytes([own.box], KEY),
            "slots": to_bytes(own.slots, KEY),
            "signature": to_bytes([signature], SIGNATURE),
        }
        return codec.pack({"ok": True}, value)

    def _shares(self, head: Header, ids: list[int], value: Any) -> bytes:
        if self._advert is None or len(set(ids)) < len(ids):
            raise ProtocolError("it has no keys of this epoch")
        adverts = read_adverts(ids, value, len(self._advert.slots))
        signatures = from_bytes(value.get("signature"), len(ids), SIGNATURE)
        for (k, advert), signature in zip(adverts.items(), signatures, strict=True):
            part = signed_part(head, k, advert)
            if self.identity is not None and not self.identity.signed(k, part, signature):
                raise ProtocolError("the keys of a participant are not signed by its own key")
        sealed = self.member.share(str(head["epoch"]), adverts)
        rows = [sealed[k] for k in sorted(sealed)]
        width = members.sealed_size(len(self._advert.slots))
        return codec.pack({"ok": True}, {"sealed": to_bytes(rows, width)})

    def _unmask(self, epoch: str, slot: int, answered: list[int]) -> bytes:
        told = self.member.unmask(epoch, slot, _numbers(answered))
        rows = [told[k] for k in sorted(told)]
        return codec.pack({"ok": True}, {"shares": to_bytes(rows, SECRET)})

    # --- the exchange itself ----------------------------------------------------------------------

    def opened(self, head: Header, value: Any) -> tuple[Any, str]:
        """The message of a question, and what makes its masks unlike those of any other.

        Raises MalformedError unless the reply will be masked, in a way that follows the charter.
        """
        given = Exchange.of(head.get("secure"))
        if not isinstance(value, dict) or set(value) != {"ask", "sealed"}:
            raise MalformedError("it does not say how its reply is masked")
        if given.weighting not in ("size", "equal"):
            raise MalformedError("it weights clients as the organiser chooses")
        if self.noise is not None and given.weighting != "equal":
            raise MalformedError("it weights clients by size, which the charter's noise does not")
        if not 1 <= given.room < MOST_ROOM:
            raise MalformedError("it has no room for sums, or too much")
        if given.limit < 0 or (given.limit and not self.capped):
            raise MalformedError("it limits weights, which the charter does not")
        if self._advert is None:
            raise MalformedError("it has no keys of this epoch")
        width = members.sealed_size(len(self._advert.slots))
        sealed = from_bytes(value["sealed"], len(given.owners), width)
        try:
            self.member.receive(given.epoch, dict(zip(given.owners, sealed, strict=True)))
            self.member.check(given.epoch, given.slot, given.asked)
        except ProtocolError as error:
            raise MalformedError(str(error)) from None
        return value["ask"], self._advert.box.hex()

    def masked(self, head: Header, declared: Declaration, message: Any, value: Tree) -> Tree:
        """The masked reply; raises MalformedError if it is not finite or cannot be written."""
        given = Exchange.of(head["secure"])
        weight = 1 if given.weighting == "equal" else self.size
        weight = min(weight, given.limit) if given.limit else weight
        try:
            noise = self.noise
            shares = None if noise is None else noise.shares
            encoding = encoding_of(declared, value, given.room, self.settings, shares)
            about = given.context(self.member.roster(given.epoch), head, message)
            if noise is None:
                vector = encoding.vector(value, weight)
            else:
                draw = noise.draw(head)
                vector = noise.shares.vector(encoding, declared, message, value, draw)
            return {"masked": self.member.mask(given.epoch, given.slot, given.asked, about, vector)}
        except (ConfigError, GarbledError, ProtocolError) as error:
            raise MalformedError(str(error)) from None


def signed_part(head: Header, k: int, advert: Advert) -> bytes:
    """What a participant signs: its keys, and what they are for."""
    keys = [key.hex() for key in (advert.box, *advert.slots)]
    return digest("advert", head.get("charter"), head.get("epoch"), k, keys)


def read_adverts(ids: list[int], value: Any, slots: int) -> dict[int, Advert]:
    """Clients' keys from a message; raises MalformedError for another form."""
    if not isinstance(value, dict) or not isinstance(value.get("slots"), Tensor):
        raise MalformedError("its keys or shares have another form")
    boxes = from_bytes(value.get("box"), len(ids), KEY)
    if value["slots"].shape != (len(ids), slots, KEY):
        raise MalformedError("its keys or shares have another form")
    keys = [tuple(from_bytes(own, slots, KEY)) for own in value["slots"]]
    return {k: Advert(box, own) for k, box, own in zip(ids, boxes, keys, strict=True)}


def _numbers(given: Any) -> list[int]:
    if not isinstance(given, list) or not all(type(k) is int for k in given):
        raise MalformedError("its list of clients cannot be read")
    return given
